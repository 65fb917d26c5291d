"""The embedded engine as ``agentspec serve`` starts it."""

from __future__ import annotations

import argparse
import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from agentspec import DraftConfig, Forest, ForestConfig
from agentspec.errors import ConfigError
from agentspec.extras import needed
from agentspec.forest_folder import ForestFolder
from agentspec.gateway import EmbeddedUpstream
from agentspec.kept_forest import KeptForest
from agentspec.recorded import CallLibrary, ReplayEngine, read

logger = logging.getLogger("agentspec")

DEFAULT_MAX_DRAFT = 16
DEFAULT_SAVE_EVERY_S = 300.0


def embedded(
    args: argparse.Namespace, *, is_replaying: bool = False
) -> tuple[EmbeddedUpstream, str, AbstractContextManager[object]]:
    """The engine in this process, the name it serves, and what is to be around it while it serves.

    ``is_replaying``: it answers from the recorded calls of ``--trace``.

    Raises:
        ConfigError: it can't start.
    """
    with needed("engine", hint=", or use --engine-url for an engine elsewhere"):
        from agentspec.engine import EngineConfig, TorchEngine
    from agentspec.models import BUNDLED_MODEL, bundled_model_dir

    library = _library(args) if is_replaying else None  # first: a mistake in it is told at once
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
        is_replaying=is_replaying,
    )
    forest = None if config.draft.is_off else _forest(args)
    try:
        engine = TorchEngine(config, forest)
    except (RuntimeError, AssertionError) as error:  # torch: no such device, not enough memory
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the engine can't start on device {config.device!r}: {reason}") from error
    served = engine if library is None else ReplayEngine(engine, library)
    upstream = EmbeddedUpstream(
        served,
        ForestFolder(_path(args.forest_file), _path(args.forest_folder)),
        any_model=library is not None,  # recorded calls were made to other models
    )
    if args.forest_folder is not None and not Path(args.forest_folder).is_dir():
        raise ConfigError(f"--forest-folder {args.forest_folder!r}: there is no such folder")
    if args.forest_file is None:
        return upstream, engine.model.name, nullcontext()
    if engine.trees is None:
        raise ConfigError(
            f"nothing is learned with --draft off: --forest-file {args.forest_file!r} is for nothing"
        )
    keeping = KeptForest(engine.trees, Path(args.forest_file), args.save_every_s or DEFAULT_SAVE_EVERY_S)
    return upstream, engine.model.name, keeping


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _library(args: argparse.Namespace) -> CallLibrary:
    if args.trace is None:
        raise ConfigError("--engine replay needs recorded calls: give it --trace FILE")
    library = CallLibrary(read(Path(args.trace)))
    if not library:
        raise ConfigError(f"no calls in {args.trace!r}")
    logger.info("%d recorded answers in %s", len(library), args.trace)
    return library


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
