from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentspec.config import MIB
from agentspec.errors import ConfigError
from agentspec.vllm_plugin.settings import PluginSettings


def test_without_any_settings_the_defaults_hold() -> None:
    for config in ({}, {"other": 1}, None, {"agentspec": {}}):
        assert PluginSettings.read(config) == PluginSettings()


def test_settings_become_the_forests_and_a_requests() -> None:
    settings = PluginSettings.read({"agentspec": {"stage_budget_mb": 3, "threads": 2, "rule": "paper"}})
    assert settings.forest_config().stage_limit_bytes == 3 * MIB
    assert settings.forest_config().threads == 2
    draft = settings.draft_config(24)
    assert (draft.rule, draft.max_tokens, draft.min_prob) == ("paper", 24, 0.0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rule", "best"),
        ("price", 1.5),
        ("price", "cheap"),
        ("stage_budget_mb", 0),
        ("tenant_budget_mb", 1.5),
        ("total_budget_mb", -1),
        ("threads", 0),
        ("save_every_s", 0),
        ("draft_model_tokens", 0),
        ("forest_file", ""),
        ("forest_file", "/nowhere/at/all/forest"),
        ("allow_untested_vllm", "yes"),
        ("stage_budget", 64),
    ],
)
def test_bad_settings_are_refused_with_name_and_value(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        PluginSettings.read({"agentspec": {setting: value}})
    assert setting.split("_")[0] in str(caught.value)
    if setting != "stage_budget":
        assert repr(value) in str(caught.value)


def test_settings_are_an_object() -> None:
    with pytest.raises(ConfigError, match="object"):
        PluginSettings.read({"agentspec": "price=1"})


def test_a_forest_file_needs_its_folder_only(tmp_path: Path) -> None:
    path = str(tmp_path / "forest")
    assert PluginSettings(forest_file=path).forest_file == path


@pytest.mark.parametrize("name", ["batch_shape", "ragged_graphs"])
def test_a_removed_setting_is_refused_with_what_to_do_instead(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' was removed: leave it out"):
        PluginSettings.read({"agentspec": {name: "uniform"}})
