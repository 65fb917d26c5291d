"""Settings of the plugin: a JSON object in ``$AGENTSPEC_VLLM_SETTINGS``, or vLLM's ``--additional-config``.

vLLM compiles the model anew for every other ``additional_config``, so ``agentspec serve`` uses the variable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from agentspec.config import MIB, DraftConfig, ForestConfig, check_int, check_positive, check_prob
from agentspec.draft import Source
from agentspec.errors import ConfigError
from agentspec.forest_folder import ForestFolder
from agentspec.removed_settings import refuse_removed_plugin_settings, refuse_removed_variables
from agentspec.wire import MAX_DRAFT_TOKENS

CONFIG_KEY = "agentspec"  # in additional_config
SETTINGS_VARIABLE = "AGENTSPEC_VLLM_SETTINGS"
BATCH_SHAPES = ("ragged", "uniform")
MOST_MB = 1 << 24


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """Plugin settings, checked when created. Errors name the setting.

    Attributes:
        rule: ``"learned"`` or ``"paper"``, see docs/drafting.md.
        price: least chance of acceptance at which a draft token is worth verifying, 0 to 1; None = learned
            from this server's steps.
        stage_budget_mb, tenant_budget_mb, total_budget_mb: MiB of one stage's tree, of all trees of one
            tenant, of all trees.
        threads: number of threads that draft for one batch, from 16 requests on.
        batch_shape: ``"ragged"``: each request has as many draft tokens as are worth verifying.
            ``"uniform"``: all requests have the maximum, padded, or none, for full CUDA graphs.
        forest_file: file of the forest; loaded at the start if it exists, and saved.
        forest_folder: folder of other files that operators may name; None = the folder of ``forest_file``.
        strict_forest: refuse to start with an unusable forest file. Otherwise it is moved aside.
        save_every_s: seconds between two saves; another save is at shutdown. None = 500 times what the last
            save took, but 10 to 300.
        corpus: place of the outputs that engines share: a folder or ``redis://...``; not with a forest file.
        corpus_snapshots: URL of an object store that keeps the snapshots of the corpus.
        corpus_stages: how far the outputs of a stage, and of all below it, travel: none, host or fleet.
        corpus_host: folder for the outputs of stages that do not leave this machine.
        draft_model_tokens: most tokens that vLLM's draft model, if any, drafts for a request in a step.
        adaptive_verification: let vLLM's model runner V2 choose, by its own measured costs and by the chances
            of the draft tokens, how many a step verifies. GPUs only.
        ragged_graphs: capture full CUDA graphs for decode steps with drafts of any lengths, with vLLM's model
            runner V2 and an attention that can replay them (FlashAttention 3). GPUs only.
        allow_untested_vllm: run in a vLLM that the plugin was not written for.
    """

    rule: str = "learned"
    price: float | None = None
    stage_budget_mb: int = 64
    tenant_budget_mb: int = 512
    total_budget_mb: int = 1024
    threads: int = 2
    batch_shape: str = "ragged"
    forest_file: str | None = None
    forest_folder: str | None = None
    strict_forest: bool = False
    save_every_s: float | None = None
    corpus: str | None = None
    corpus_snapshots: str | None = None
    corpus_stages: Mapping[str, str] = field(default_factory=dict)
    corpus_host: str | None = None
    draft_model_tokens: int = 4
    adaptive_verification: bool = False
    ragged_graphs: bool = False
    allow_untested_vllm: bool = False

    def __post_init__(self) -> None:
        for name in ("stage_budget_mb", "tenant_budget_mb", "total_budget_mb"):
            check_int(name, getattr(self, name), 1, MOST_MB)
        check_int("draft_model_tokens", self.draft_model_tokens, 1, MAX_DRAFT_TOKENS)
        if self.price is not None:
            check_prob("price", self.price)
        if self.save_every_s is not None:
            check_positive("save_every_s", self.save_every_s)
        if self.batch_shape not in BATCH_SHAPES:
            raise ConfigError(f"batch_shape must be 'ragged' or 'uniform', not {self.batch_shape!r}")
        if self.forest_file is not None:
            self._check_file(self.forest_file)
        if self.forest_folder is not None:
            self._check_folder(self.forest_folder)
        if self.corpus is not None:
            self._check_corpus(self.corpus, self.corpus_snapshots, self.corpus_host)
        for name in ("corpus_snapshots", "corpus_stages", "corpus_host"):
            if getattr(self, name) and self.corpus is None:
                raise ConfigError(f"{name} is for nothing without corpus")
        for name in ("strict_forest", "adaptive_verification", "ragged_graphs", "allow_untested_vllm"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, not {getattr(self, name)!r}")
        self.forest_config(), self.draft_config(1)  # check the rest

    @classmethod
    def read(cls, additional_config: object) -> PluginSettings:
        """Read the variable and, for settings that it does not have, vLLM's ``additional_config``.

        Raises:
            ConfigError: a setting is unknown or invalid.
        """
        given = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, Mapping) else {}
        refuse_removed_variables(os.environ)
        cls.of(given)
        return cls.of({**given, **_settings_of(os.environ.get(SETTINGS_VARIABLE, "{}"))})

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> PluginSettings:
        """Return the settings from names and values. Raises ConfigError if one is unknown or invalid."""
        if not isinstance(given, Mapping):
            raise ConfigError(f"the settings of {CONFIG_KEY!r} are an object, not {given!r}")
        refuse_removed_plugin_settings(given)
        known = {field.name for field in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(f"there is no setting {name!r} of {CONFIG_KEY!r}, only {sorted(known)}")
        return cls(**given)

    @property
    def keeps_outputs(self) -> bool:
        """True if a file or a corpus keeps outputs, which takes time at a shutdown."""
        return self.forest_file is not None or self.corpus is not None

    def forest_files(self) -> ForestFolder:
        """Return the files that an operator may name."""
        file, folder = (one and Path(one) for one in (self.forest_file, self.forest_folder))
        return ForestFolder(file or None, folder or None)

    def forest_config(self) -> ForestConfig:
        """Return the forest's budgets and threads."""
        return ForestConfig(
            stage_limit_bytes=self.stage_budget_mb * MIB,
            tenant_limit_bytes=self.tenant_budget_mb * MIB,
            total_limit_bytes=self.total_budget_mb * MIB,
            threads=self.threads,
            sources=(Source.SESSION, Source.STAGE, Source.WORKFLOW),  # see tags.adapted
        )

    def draft_config(self, max_tokens: int) -> DraftConfig:
        """Return the settings of a request without its own. The price is set per step."""
        doubt = 0.5 if self.rule == "paper" else 0.0
        return DraftConfig(rule=self.rule, max_tokens=max_tokens, min_prob=0.0, doubt=doubt)

    def _check_corpus(self, location: object, snapshots: object, host: object) -> None:
        if not isinstance(location, str):
            raise ConfigError(f"corpus must be a folder or a Redis URL, not {location!r}")
        if not isinstance(snapshots, str | None):
            raise ConfigError(f"corpus_snapshots must be a URL, not {snapshots!r}")
        if not isinstance(host, str | None):
            raise ConfigError(f"corpus_host must be a folder, not {host!r}")
        for name in ("forest_file", "forest_folder"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} can't be used with corpus: the corpus keeps the outputs, and a forest file may "
                    "hold outputs that were erased from it"
                )
        from agentspec.corpus.opening import check_corpus
        from agentspec.corpus.reach import reaches

        check_corpus(location, snapshots, reaches(self.corpus_stages), host)

    @staticmethod
    def _check_file(path: object) -> None:
        if not isinstance(path, str) or not path:
            raise ConfigError(f"forest_file must be a path, not {path!r}")
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise ConfigError(f"forest_file {path!r}: there is no folder {folder!r}")

    @staticmethod
    def _check_folder(path: object) -> None:
        if not isinstance(path, str) or not os.path.isdir(path):
            raise ConfigError(f"forest_folder {path!r}: there is no such folder")


def _settings_of(variable: str) -> Mapping[str, Any]:
    try:
        settings = json.loads(variable)
    except ValueError:
        settings = None
    if not isinstance(settings, Mapping):
        raise ConfigError(f"${SETTINGS_VARIABLE} is a JSON object, not {variable!r}")
    return settings
