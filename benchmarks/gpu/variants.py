"""What is compared: vLLM without speculation, with its own drafters, and with the plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from agentspec.errors import ConfigError

RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
NUM_SPECULATIVE_TOKENS = 15


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run vLLM.

    Attributes:
        has_plugin: the plugin's own command line decides runner, scheduling and method.
        settings: of the plugin.
    """

    name: str
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    has_plugin: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)


def speculative(method: str, **settings: int) -> tuple[str, str]:
    """Return the flag of a method of vLLM's own."""
    config = {"method": method, "num_speculative_tokens": NUM_SPECULATIVE_TOKENS, **settings}
    return "--speculative-config", json.dumps(config)


PLAIN = "plain"
_LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
_V2, _V1 = {RUNNER_VARIABLE: "1"}, {RUNNER_VARIABLE: "0"}
_SUFFIX = Variant("suffix", speculative("suffix"))
ON_GPU = (  # most valuable first
    Variant(PLAIN, ("--async-scheduling",), _V2),
    Variant("agentspec", has_plugin=True),
    Variant("ngram_gpu", ("--async-scheduling", *speculative("ngram_gpu", **_LOOKUP))),
    Variant("agentspec-ragged-graphs", has_plugin=True, settings={"ragged_graphs": True}),
    Variant("agentspec-adaptive", has_plugin=True, settings={"adaptive_verification": True}),
    Variant("agentspec-v1-sync", ("--no-async-scheduling",), _V1, has_plugin=True),
    _SUFFIX,
)
ON_CPU = (
    Variant(PLAIN),
    Variant("agentspec", has_plugin=True),
    Variant("ngram", speculative("ngram", **_LOOKUP)),
    _SUFFIX,
)


def chosen(names: Sequence[str] | None, *, on_cpu: bool) -> tuple[Variant, ...]:
    """Return the named variants, or all that can run here: ``suffix`` needs arctic-inference.

    Raises:
        ConfigError: there is no variant of this name.
    """
    known = {one.name: one for one in (ON_CPU if on_cpu else ON_GPU)}
    if names is None:
        return tuple(one for one in known.values() if one is not _SUFFIX or find_spec("arctic_inference"))
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no variant {name!r}, only {', '.join(known)}")
    return tuple(one for name, one in known.items() if name in names)
