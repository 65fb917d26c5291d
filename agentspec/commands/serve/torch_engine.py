"""The embedded engine as ``agentspec serve`` starts it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec import DraftConfig, Forest, ForestConfig
from agentspec.commands.serve.options import ServeOptions
from agentspec.config import MIB
from agentspec.corpus.settings import check_corpus, reaches
from agentspec.engine.engine_config import DTYPES, EngineConfig
from agentspec.engine.model.checkpoint_config import check_files
from agentspec.errors import ConfigError
from agentspec.extras import check_installed, needed
from agentspec.forest.autosave import ForestAutosave
from agentspec.forest.file import check_place
from agentspec.forest_folder import ForestFolder
from agentspec.gateway import EmbeddedUpstream
from agentspec.generation import Engine
from agentspec.models import BUNDLED_MODEL, bundled_model_dir
from agentspec.recorded import CallLibrary, ReplayEngine, read
from agentspec.serve_settings import EngineSettings
from agentspec.vllm_plugin.checks import INSTALL, installed_version

if TYPE_CHECKING:
    from agentspec.corpus.corpus import Corpus

logger = logging.getLogger("agentspec")

DEFAULT_MAX_DRAFT = 16
ELSEWHERE = ", or use --engine-url for an engine elsewhere"


@dataclass(frozen=True, slots=True)
class EmbeddedPlan:
    """The settings of the embedded engine, checked as far as possible without torch.

    Attributes:
        settings: trees, files and corpus; ``config`` has the rest in the engine's form.
        library: recorded answers, from the file ``trace``; None = the model's own answers.
    """

    settings: EngineSettings
    config: EngineConfig
    library: CallLibrary | None

    @classmethod
    def of(cls, options: ServeOptions, engine: EngineSettings, *, is_replaying: bool = False) -> EmbeddedPlan:
        """Return the plan for ``engine``. Raises ConfigError, CheckpointError, which name the setting."""

        def name_of(setting: str) -> str:
            return options.name_of(setting, engine)

        check_installed("engine", hint=ELSEWHERE)
        _check_model(name_of("model"), engine, is_replaying)
        if engine.dtype is not None and engine.dtype not in DTYPES:
            raise ConfigError(f"{name_of('dtype')} must be one of {', '.join(DTYPES)}, not {engine.dtype!r}")
        config = _config(engine, is_replaying)
        for name in ("forest_file", "corpus"):
            if getattr(engine, name) is not None and config.draft.is_off:
                raise ConfigError(f"nothing is learned with --draft off: remove it or {name_of(name)}")
        if engine.forest_file is not None:
            check_place(engine.forest_file)
        if engine.corpus is not None:
            check_corpus(engine.corpus)
            reaches(engine.corpus_stages, name_of("corpus_stages"))
        if engine.forest_folder is not None and not Path(engine.forest_folder).is_dir():
            raise ConfigError(f"{name_of('forest_folder')} {engine.forest_folder!r}: there is no such folder")
        return cls(engine, config, _library(engine) if is_replaying else None)

    @property
    def files(self) -> ForestFolder:
        """Places for saved trees; its ``file``, if any, keeps the trees between runs."""
        return ForestFolder(_path(self.settings.forest_file), _path(self.settings.forest_folder))

    def in_force(self) -> dict[str, Any]:
        """Return the settings that differ from those given: defaults that depend on others."""
        config = self.config
        return {
            "model": str(config.model_path),
            "served_model_name": config.name,
            "threads": config.threads,
            "max_draft": config.draft.max_tokens,
        }


@dataclass(frozen=True, slots=True)
class EmbeddedEngine:
    """An engine in this process.

    Attributes:
        name: of the model that it serves.
        lifetime: a context for other services; it ends after the upstream is closed.
        corpus: shares outputs with other engines, if configured. ``lifetime`` starts and closes it.
    """

    upstream: EmbeddedUpstream
    name: str
    lifetime: AbstractContextManager[object]
    corpus: Corpus | None


def embedded(plan: EmbeddedPlan) -> EmbeddedEngine:
    """Return the engine in this process.

    Raises:
        ConfigError, CheckpointError, CorpusError: it can't start.
    """
    with needed("engine", hint=ELSEWHERE):
        from agentspec.engine import TorchEngine

    config, settings, files = plan.config, plan.settings, plan.files
    budget = ForestConfig(stage_limit_bytes=settings.stage_budget_mb * MIB)
    forest = None if config.draft.is_off else Forest(budget, learns_later=True)
    try:
        engine = TorchEngine(config, forest)
    except (RuntimeError, AssertionError) as error:  # torch: no such device, not enough memory
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the engine can't start on device {config.device!r}: {reason}") from error
    served: Engine = engine
    if plan.library is not None:
        logger.info("%d recorded answers in %s", len(plan.library), settings.trace)
        served = ReplayEngine(engine, plan.library)
    keeping: AbstractContextManager[object] = nullcontext()
    corpus: Corpus | None = None
    if settings.corpus is not None and forest is not None:
        from agentspec.corpus.corpus import open_corpus

        corpus = open_corpus(
            *(settings.corpus, engine.vocabulary, engine.vocab_size, forest),
            stages=reaches(settings.corpus_stages),
        )
        engine.share(corpus)
        keeping = _sharing(corpus)
    elif files.file is not None and engine.trees is not None and forest is not None:
        keeping = ForestAutosave(
            *(engine.trees, files.file, settings.save_every_s),
            is_strict=settings.strict_forest,
            version=lambda: (served.stats(), forest.memory_bytes()),
        )
    # recorded calls were made to other models
    any_model = plan.library is not None
    figures = None if corpus is None else lambda: corpus.figures().describe()
    upstream = EmbeddedUpstream(served, files, any_model=any_model, corpus_figures=figures)
    return EmbeddedEngine(upstream, engine.model.name, keeping, corpus)


@contextmanager
def _sharing(corpus: Corpus) -> Iterator[None]:
    corpus.start()
    try:
        yield
    finally:
        corpus.close()


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _library(engine: EngineSettings) -> CallLibrary:
    if engine.trace is None:
        raise ConfigError("--engine replay needs recorded calls: give it --trace FILE")
    library = CallLibrary(read(Path(engine.trace)))
    if not library:
        raise ConfigError(f"no calls in {engine.trace!r}")
    return library


def _config(engine: EngineSettings, is_replaying: bool) -> EngineConfig:
    return EngineConfig(
        model_path=engine.model or bundled_model_dir(),
        served_name=engine.served_model_name or ("" if engine.model else BUNDLED_MODEL),
        device=engine.device,
        dtype=engine.dtype,
        num_slots=engine.slots,
        kv_cache_mb=engine.kv_cache_mb,
        max_model_len=engine.max_model_len,
        draft=DraftConfig(
            mode=engine.draft,
            max_tokens=DEFAULT_MAX_DRAFT if engine.max_draft is None else engine.max_draft,
            rule=engine.rule,
            alpha=32,  # the price limits a draft; the paper's rule needs good evidence
            min_prob=0,
            doubt=1,
        ),
        price=engine.price,
        # the bundled model's products are too small to share: a second thread makes every step slower
        threads=engine.threads or (None if engine.model else 1),
        is_replaying=is_replaying,
    )


def _check_model(name: str, engine: EngineSettings, is_replaying: bool) -> None:
    """Raise ConfigError or CheckpointError unless the model is a folder with a supported checkpoint."""
    if not engine.model:
        return
    if not Path(engine.model).is_dir():
        names = "--engine vllm takes names" if installed_version() else f"names need vLLM: {INSTALL}"
        raise ConfigError(
            f"{name} {engine.model!r} is no folder here. The embedded engine takes "
            f"the folder of a downloaded checkpoint; a model hub's {names}"
        )
    check_files(engine.model, needs_weights=not is_replaying)
