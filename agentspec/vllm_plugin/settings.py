"""Settings of the plugin: a JSON object in ``$AGENTSPEC_VLLM_SETTINGS``, or vLLM's ``--additional-config``.

vLLM compiles the model anew for every other ``additional_config``, so ``agentspec serve`` uses the variable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError

from agentspec.config import MIB, DraftConfig, ForestConfig
from agentspec.corpus.settings import check_corpus, reaches
from agentspec.draft import Source
from agentspec.errors import ConfigError
from agentspec.forest_folder import ForestFolder
from agentspec.removed_settings import refuse_removed_plugin_settings, refuse_removed_variables
from agentspec.serve_settings import MAX_MB, DraftingSettings, mistakes, setting
from agentspec.wire import MAX_DRAFT_TOKENS

CONFIG_KEY = "agentspec"  # in additional_config
SETTINGS_VARIABLE = "AGENTSPEC_VLLM_SETTINGS"


class PluginSettings(DraftingSettings):
    """Settings of the plug-in in vLLM. Checked when created; raises ConfigError with the setting's name."""

    model_config = ConfigDict(strict=True)

    tenant_budget_mb: int = setting(512, "MiB of all trees of one tenant", ge=1, le=MAX_MB)
    total_budget_mb: int = setting(1024, "MiB of all trees", ge=1, le=MAX_MB)
    threads: int = setting(2, "threads that draft for one batch, from 16 requests on", ge=1, le=64)
    draft_model_tokens: int = setting(
        4,
        "most tokens that vLLM's draft model, if any, drafts for a request in a step",
        ge=1,
        le=MAX_DRAFT_TOKENS,
    )
    adaptive_verification: bool = setting(
        False,
        "let vLLM's model runner V2 choose how many draft tokens a step verifies, by its own measured costs "
        "and by the chances of the tokens; GPUs only",
    )
    allow_untested_vllm: bool = setting(False, "run in a vLLM that the plug-in was not written for")

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigError(mistakes(error)) from None
        self._check_files()
        self.check_places()
        if self.corpus is not None:
            check_corpus(self.corpus)
            reaches(self.corpus_stages)
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
        for name in given:
            if name not in cls.model_fields:
                raise ConfigError(
                    f"there is no setting {name!r} of {CONFIG_KEY!r}, only {sorted(cls.model_fields)}"
                )
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

    def _check_files(self) -> None:
        if self.forest_file is not None:
            folder = os.path.dirname(os.path.abspath(self.forest_file))
            if not os.path.isdir(folder):
                raise ConfigError(f"forest_file {self.forest_file!r}: there is no folder {folder!r}")
        if self.forest_folder is not None and not os.path.isdir(self.forest_folder):
            raise ConfigError(f"forest_folder {self.forest_folder!r}: there is no such folder")


def _settings_of(variable: str) -> Mapping[str, Any]:
    try:
        settings = json.loads(variable)
    except ValueError:
        settings = None
    if not isinstance(settings, Mapping):
        raise ConfigError(f"${SETTINGS_VARIABLE} is a JSON object, not {variable!r}")
    return settings
