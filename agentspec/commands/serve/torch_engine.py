"""The embedded engine as ``agentspec serve`` starts it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec import DraftConfig, Forest, ForestConfig
from agentspec.commands.serve.options import ServeOptions
from agentspec.config import MIB, OWN_HEADS
from agentspec.corpus.store import without_password
from agentspec.engine.engine_config import DTYPES, EngineConfig
from agentspec.engine.model.checkpoint_config import CONFIG_FILE, check_files, check_has_heads
from agentspec.errors import CheckpointError, ConfigError
from agentspec.extras import check_installed, needed
from agentspec.forest.autosave import ForestAutosave
from agentspec.forest.file import check_place
from agentspec.forest_folder import ForestFolder
from agentspec.gateway import EmbeddedUpstream
from agentspec.gateway.settings import EngineSettings
from agentspec.generation import Engine
from agentspec.models import BUNDLED_MODEL, bundled_model_dir
from agentspec.recorded import CallLibrary, ReplayEngine, read
from agentspec.vllm_plugin.versions import INSTALL, installed_version

if TYPE_CHECKING:
    from agentspec.corpus.opening import EngineCorpus

logger = logging.getLogger("agentspec")

DEFAULT_MAX_DRAFT = 16
ELSEWHERE = ", or use --engine-url for an engine elsewhere"


@dataclass(frozen=True, slots=True)
class EmbeddedPlan:
    """The settings of the embedded engine, checked as far as possible without torch.

    Attributes:
        library: recorded answers, from the file ``trace``; None = the model's own answers.
        files: places for saved trees; its ``file``, if any, keeps the trees between runs.
        save_every_s: seconds between two saves; None = by what a save takes.
        is_strict: True if an unusable file stops the start; otherwise it is moved aside.
        corpus: place of the outputs that engines share; None = they stay here.
        corpus_snapshots: URL of an object store for its snapshots; None = they are in the corpus.
        corpus_stages: how far the outputs of stages travel, by name.
        corpus_host: folder for the outputs of stages that do not leave this machine; None = there is none.
    """

    config: EngineConfig
    forest: ForestConfig
    trace: str | None
    library: CallLibrary | None
    files: ForestFolder
    save_every_s: float | None
    is_strict: bool
    corpus: str | None
    corpus_snapshots: str | None
    corpus_stages: Mapping[str, str]
    corpus_host: str | None

    @classmethod
    def of(cls, options: ServeOptions, engine: EngineSettings, *, is_replaying: bool = False) -> EmbeddedPlan:
        """Return the plan for ``engine``. Raises ConfigError, CheckpointError, which name the option."""
        check_installed("engine", hint=ELSEWHERE)
        _check_model(options, engine, is_replaying)
        _check_draft_model(options, engine)
        if engine.dtype is not None and engine.dtype not in DTYPES:
            raise ConfigError(
                f"{options.name_of('dtype')} must be one of {', '.join(DTYPES)}, not {engine.dtype!r}"
            )
        config = EngineConfig(
            model_path=engine.model or bundled_model_dir(),
            served_name=engine.served_model_name or ("" if engine.model else BUNDLED_MODEL),
            device=engine.device or "cpu",
            dtype=engine.dtype,
            num_slots=16 if engine.slots is None else engine.slots,
            kv_cache_mb=engine.kv_cache_mb,
            max_model_len=engine.max_model_len,
            draft=_drafts(engine),
            price=engine.price,
            # the bundled model's products are too small to share: a second thread makes every step slower
            threads=engine.threads or (None if engine.model else 1),
            draft_model=engine.draft_model,
            hybrid_threshold=engine.hybrid_threshold,
            is_replaying=is_replaying,
        )
        for name, what in (("forest_file", "learned"), ("corpus", "learned"), ("draft_model", "drafted")):
            if getattr(engine, name) is not None and config.draft.is_off:
                raise ConfigError(
                    f"nothing is {what} with --draft off: {options.name_of(name)} is for nothing"
                )
        if engine.forest_file is not None:
            check_place(engine.forest_file)
        if engine.corpus is not None:
            from agentspec.corpus.opening import check_corpus
            from agentspec.corpus.reach import reaches

            check_corpus(
                engine.corpus,
                engine.corpus_snapshots,
                reaches(engine.corpus_stages or {}, options.name_of("corpus_stages")),
                engine.corpus_host,
                options.name_of("corpus_host"),
            )
        if engine.forest_folder is not None and not Path(engine.forest_folder).is_dir():
            folder = options.name_of("forest_folder")
            raise ConfigError(f"{folder} {engine.forest_folder!r}: there is no such folder")
        return cls(
            config,
            _forest_config(engine),
            engine.trace,
            _library(engine) if is_replaying else None,
            ForestFolder(_path(engine.forest_file), _path(engine.forest_folder)),
            engine.save_every_s,
            is_strict=bool(engine.strict_forest),
            corpus=engine.corpus,
            corpus_snapshots=engine.corpus_snapshots,
            corpus_stages=engine.corpus_stages or {},
            corpus_host=engine.corpus_host,
        )

    def shown(self) -> dict[str, Any]:
        """Return the options in force, by name; None if the checkpoint or torch decides."""
        config = self.config
        return {
            "model": str(config.model_path),
            "served_model_name": config.name,
            "max_model_len": config.max_model_len,
            "dtype": config.dtype,
            "device": config.device,
            "slots": config.num_slots,
            "kv_cache_mb": config.kv_cache_mb,
            "threads": config.threads,
            "draft": config.draft.mode,
            "max_draft": config.draft.max_tokens,
            "rule": config.draft.rule,
            "draft_model": config.draft_model and str(config.draft_model),
            "hybrid_threshold": config.hybrid_threshold,
            "price": config.price,
            "stage_budget_mb": self.forest.stage_limit_bytes // MIB,
            "forest_file": self.files.file and str(self.files.file),
            "forest_folder": self.files.folder and str(self.files.folder),
            "strict_forest": self.is_strict,
            "save_every_s": self.save_every_s,
            "corpus": self.corpus and without_password(self.corpus),
            "corpus_snapshots": self.corpus_snapshots,
            "corpus_stages": dict(self.corpus_stages),
            "corpus_host": self.corpus_host,
            "trace": self.trace,
        }


@dataclass(frozen=True, slots=True)
class EmbeddedEngine:
    """An engine in this process.

    Attributes:
        name: of the model that it serves.
        lifetime: a context that runs what is beside the engine; it ends after the upstream is closed.
        corpus: what it shares with other engines, if anything. ``lifetime`` starts and closes it.
    """

    upstream: EmbeddedUpstream
    name: str
    lifetime: AbstractContextManager[object]
    corpus: EngineCorpus | None


def embedded(plan: EmbeddedPlan) -> EmbeddedEngine:
    """Return the engine in this process.

    Raises:
        ConfigError, CheckpointError, CorpusError: it can't start.
    """
    with needed("engine", hint=ELSEWHERE):
        from agentspec.engine import TorchEngine

    config = plan.config
    forest = None if config.draft.is_off else Forest(plan.forest, learns_later=True)
    try:
        engine = TorchEngine(config, forest)
    except (RuntimeError, AssertionError) as error:  # torch: no such device, not enough memory
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the engine can't start on device {config.device!r}: {reason}") from error
    served: Engine = engine
    if plan.library is not None:
        logger.info("%d recorded answers in %s", len(plan.library), plan.trace)
        served = ReplayEngine(engine, plan.library)
    keeping: AbstractContextManager[object] = nullcontext()
    corpus: EngineCorpus | None = None
    if plan.corpus is not None and forest is not None:
        from agentspec.corpus.opening import open_corpus
        from agentspec.corpus.reach import reaches

        corpus = open_corpus(
            *(plan.corpus, engine.vocabulary, engine.vocab_size, forest),
            snapshots=plan.corpus_snapshots,
            stages=reaches(plan.corpus_stages),
            host=plan.corpus_host,
        )
        engine.share(corpus)
        keeping = _sharing(corpus)
    elif plan.files.file is not None and engine.trees is not None and forest is not None:
        keeping = ForestAutosave(
            *(engine.trees, plan.files.file, plan.save_every_s),
            is_strict=plan.is_strict,
            version=lambda: (served.stats(), forest.memory_bytes()),
        )
    # recorded calls were made to other models
    any_model = plan.library is not None
    figures = None if corpus is None else lambda: corpus.figures().describe()
    upstream = EmbeddedUpstream(served, plan.files, any_model=any_model, corpus_figures=figures)
    return EmbeddedEngine(upstream, engine.model.name, keeping, corpus)


@contextmanager
def _sharing(corpus: EngineCorpus) -> Iterator[None]:
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


def _drafts(engine: EngineSettings) -> DraftConfig:
    """Return draft settings limited by the cost of a token only; the paper's rule needs good evidence."""
    return DraftConfig(
        mode=engine.draft or "tree",
        max_tokens=DEFAULT_MAX_DRAFT if engine.max_draft is None else engine.max_draft,
        rule=engine.rule or "learned",
        alpha=32,
        min_prob=0,
        doubt=1,
    )


def _forest_config(engine: EngineSettings) -> ForestConfig:
    if engine.stage_budget_mb is None:
        return ForestConfig()
    return ForestConfig(stage_limit_bytes=engine.stage_budget_mb * MIB)


def _check_draft_model(options: ServeOptions, engine: EngineSettings) -> None:
    """Raise ConfigError unless the draft model, if any, is a folder with a configuration.

    Raise CheckpointError if it is the served model's own heads, and there are none.
    """
    if engine.draft_model is None:
        if engine.hybrid_threshold is not None:
            threshold, model = options.name_of("hybrid_threshold"), options.name_of("draft_model")
            raise ConfigError(f"{threshold} is for nothing without {model}")
        return
    if engine.draft_model == OWN_HEADS:
        try:
            check_has_heads(engine.model or bundled_model_dir())
        except CheckpointError as error:
            raise CheckpointError(f"{options.name_of('draft_model')} {OWN_HEADS!r}: {error}") from error
    elif not (Path(engine.draft_model) / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{options.name_of('draft_model')} {engine.draft_model!r} is no folder with a {CONFIG_FILE}: "
            f"name that of an EAGLE-3 head, Medusa heads or a smaller model, or {OWN_HEADS!r}"
        )


def _check_model(options: ServeOptions, engine: EngineSettings, is_replaying: bool) -> None:
    """Raise ConfigError or CheckpointError unless the model is a folder with a supported checkpoint."""
    if not engine.model:
        return
    if not Path(engine.model).is_dir():
        names = "--engine vllm takes names" if installed_version() else f"names need vLLM: {INSTALL}"
        raise ConfigError(
            f"{options.name_of('model')} {engine.model!r} is no folder here. The embedded engine takes "
            f"the folder of a downloaded checkpoint; a model hub's {names}"
        )
    check_files(engine.model, needs_weights=not is_replaying)
