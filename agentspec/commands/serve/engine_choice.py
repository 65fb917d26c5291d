"""The choice of the engine for ``agentspec serve``, its reason, and the options that it does not support."""

from __future__ import annotations

from dataclasses import dataclass

from agentspec.commands.option_types import unrecognized
from agentspec.commands.serve.options import ServeOptions, is_given
from agentspec.errors import ConfigError
from agentspec.gateway.settings import Settings
from agentspec.vllm_plugin.versions import installed_version

ENGINES = {
    "running": "a running one",
    "torch": "the embedded one",
    "replay": "the embedded one with recorded calls",
    "vllm": "vLLM",
}
TORCH_OPTIONS = ("draft", "hybrid_threshold", "slots", "kv_cache_mb", "threads", "device")
REPLAY_OPTIONS = ("trace",)
VLLM_OPTIONS = ("zero_hop", "engine_only", "engine_port", "engine_start_timeout_s")
RUNNING_OPTIONS = ("control_token",)
STARTED_OPTIONS = (
    *("model", "served_model_name", "max_model_len", "dtype", "max_draft", "draft_model", "rule", "price"),
    *("stage_budget_mb", "forest_file", "forest_folder", "strict_forest", "save_every_s"),
    *("corpus", "corpus_snapshots", "corpus_stages", "corpus_host"),
)
FOREST_FILE_OPTIONS = ("forest_file", "forest_folder", "strict_forest", "save_every_s")
# options that each engine does not support
FOREIGN = {
    "running": (*TORCH_OPTIONS, *REPLAY_OPTIONS, *VLLM_OPTIONS, *STARTED_OPTIONS),
    "torch": (*REPLAY_OPTIONS, *VLLM_OPTIONS, *RUNNING_OPTIONS),
    "replay": (*VLLM_OPTIONS, *RUNNING_OPTIONS),
    "vllm": (*TORCH_OPTIONS, *REPLAY_OPTIONS, *RUNNING_OPTIONS),
}


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """One of ``ENGINES`` and the reason for it, in words."""

    engine: str
    reason: str

    @property
    def is_embedded(self) -> bool:
        """True if the engine runs in this process, with torch."""
        return self.engine in ("torch", "replay")

    def __str__(self) -> str:
        return f"{ENGINES[self.engine]}, because {self.reason}"


def choose_engine(options: ServeOptions, settings: Settings) -> EngineChoice:
    """Return the engine that these options and settings ask for.

    Raises:
        ConfigError, ArgumentError: an option was given that this engine does not support.
    """
    choice = _choice(options, settings)
    for name in FOREIGN[choice.engine]:
        if is_given(options.control_token if name in RUNNING_OPTIONS else getattr(settings.engine, name)):
            raise ConfigError(
                f"{options.name_of(name)} is not for {ENGINES[choice.engine]}, which serves because "
                f"{choice.reason}"
            )
    _check_corpus(options, settings)
    if choice.engine == "vllm":
        return choice
    if options.unknown:
        raise unrecognized(options.unknown, options.flags)
    if settings.engine.arguments:
        raise ConfigError(
            f"engine.arguments are vLLM's and not for {ENGINES[choice.engine]}, which serves because "
            f"{choice.reason}"
        )
    return choice


def _check_corpus(options: ServeOptions, settings: Settings) -> None:
    if settings.engine.corpus is None:
        for name in ("corpus_snapshots", "corpus_stages", "corpus_host"):
            if getattr(settings.engine, name):
                corpus = options.name_of("corpus")
                raise ConfigError(f"{options.name_of(name)} is for nothing without {corpus}")
        return
    for name in FOREST_FILE_OPTIONS:
        if is_given(getattr(settings.engine, name)):
            raise ConfigError(
                f"{options.name_of(name)} can't be used with {options.name_of('corpus')}: the corpus keeps "
                "the outputs, and a forest file may hold outputs that were erased from it"
            )


def _choice(options: ServeOptions, settings: Settings) -> EngineChoice:
    engine = settings.engine
    if options.engine_url:
        return EngineChoice("running", "--engine-url was given")
    if settings.upstreams:
        return EngineChoice("running", "the configuration has upstreams")
    if engine.engine is not None and engine.engine != "auto":
        return EngineChoice(engine.engine, f"{options.name_of('engine')} {engine.engine} was given")
    if not engine.model:
        return EngineChoice("torch", "no --model was given")
    if version := installed_version():
        return EngineChoice("vllm", f"--model was given and vLLM {version} is installed")
    return EngineChoice("torch", "vLLM is not installed")
