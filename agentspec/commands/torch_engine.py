"""The embedded engine as ``agentspec serve`` starts it."""

from __future__ import annotations

import argparse

from agentspec import DraftConfig, Forest, ForestConfig
from agentspec.errors import ConfigError
from agentspec.extras import needed
from agentspec.gateway import EmbeddedUpstream

DEFAULT_MAX_DRAFT = 16


def embedded(args: argparse.Namespace) -> tuple[EmbeddedUpstream, str]:
    """The engine in this process, and the name it serves. Raises ConfigError if it can't start."""
    with needed("engine", hint=", or use --engine-url for an engine elsewhere"):
        from agentspec.engine import EngineConfig, TorchEngine
    from agentspec.models import BUNDLED_MODEL, bundled_model_dir

    config = EngineConfig(
        model_path=args.model or bundled_model_dir(),
        served_name=args.served_model_name or ("" if args.model else BUNDLED_MODEL),
        device=args.device or "cpu",
        dtype=args.dtype,
        num_slots=16 if args.slots is None else args.slots,
        max_model_len=args.max_model_len,
        draft=_drafts(args),
        price=args.price,
        # the bundled model's products are too small to share: a second thread makes every step slower
        threads=args.threads or (None if args.model else 1),
    )
    forest = None if config.draft.is_off else _forest(args)
    try:
        engine = TorchEngine(config, forest)
    except (RuntimeError, AssertionError) as error:  # torch: no such device, not enough memory
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the engine can't start on device {config.device!r}: {reason}") from error
    return EmbeddedUpstream(engine), engine.model.name


def _drafts(args: argparse.Namespace) -> DraftConfig:
    """As far as the price allows; the paper's rule on good evidence only."""
    return DraftConfig(
        mode=args.draft or "tree",
        max_tokens=DEFAULT_MAX_DRAFT if args.max_draft is None else args.max_draft,
        rule=args.rule or "learned",
        alpha=32,
        min_prob=0,
        doubt=1,
    )


def _forest(args: argparse.Namespace) -> Forest:
    if args.stage_budget_mb is None:
        return Forest(ForestConfig())
    return Forest(ForestConfig(stage_limit_bytes=args.stage_budget_mb << 20))
