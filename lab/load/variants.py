"""The variants that are compared: draft rules and prices."""

from __future__ import annotations

from dataclasses import dataclass

from agentspec.config import DraftConfig

FIXED_PRICES = (0.1, 0.2, 0.3, 0.5, 0.7)
MAX_DRAFT = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to draft. ``price`` as in EngineConfig: None = learned from the steps."""

    draft: DraftConfig
    price: float | None = 0.0


def _paper(min_prob: float = 0.0) -> DraftConfig:
    return DraftConfig(mode="tree", max_tokens=MAX_DRAFT, alpha=32, min_prob=min_prob, doubt=1)


_LEARNED = DraftConfig(mode="tree", max_tokens=MAX_DRAFT, min_prob=0.0, rule="learned")

OFF = "off"
FIXED = {f"learned {price}": Variant(_LEARNED, price) for price in FIXED_PRICES}
AUTO = {"learned auto": Variant(_LEARNED, None), "paper auto": Variant(_paper(), None)}
VARIANTS = {
    OFF: Variant(DraftConfig(mode="off")),
    "paper 0.25": Variant(_paper(), 0.25),
    **FIXED,
    **AUTO,
}
