"""Each reader of settings refuses a removed name with the sentence that says what to use instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentspec import removed_settings
from agentspec.cli import main
from agentspec.errors import ConfigError
from agentspec.gateway.config_file import load_settings
from agentspec.gateway.settings import Settings
from agentspec.removed_settings import REMOVED
from agentspec.serve_settings import EngineSettings
from agentspec.vllm_plugin.settings import SETTINGS_VARIABLE, PluginSettings

INSTEAD = "set engine.price instead."
EXAMPLES = (
    *("engine.gone", "routing.gone", "upstreams.gone", "plugin.gone_too", "$AGENTSPEC_GONE"),
    *("agentspec serve --gone-flag", "agentspec init --gone", "agentspec gone", "agentspec corpus gone"),
)


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removed_settings, "REMOVED", {**REMOVED, **dict.fromkeys(EXAMPLES, INSTEAD)})


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["serve", "--gone", "1"], "--gone"),
        (["serve", "--engine-only", "--model", "x", "--gone=1"], "--gone"),
        (["serve", "--gone-flag"], "--gone-flag"),
        (["init", "--gone"], "--gone"),
        (["gone"], "agentspec gone"),
        (["corpus", "gone", "PLACE"], "agentspec corpus gone"),
    ],
)
def test_the_command_line(arguments: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert f"error: {shown} was removed: {INSTEAD}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("engine:\n  gone: 1\n", "2: engine.gone"),
        ("routing:\n  spill: 2\n  gone: 1\n", "3: routing.gone"),
        ("upstreams:\n- url: http://a\n  gone: 1\n", "3: upstreams[0].gone"),
    ],
)
def test_the_file(text: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "agentspec.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_settings(path)
    assert str(refused.value) == f"{path}:{place} was removed: {INSTEAD}"


@pytest.mark.parametrize("name", ["AGENTSPEC_ENGINE__GONE", "AGENTSPEC_ROUTING__GONE", "AGENTSPEC_GONE"])
@pytest.mark.parametrize("read", [lambda: load_settings(None), lambda: PluginSettings.read(None)])
def test_the_environment(name: str, read: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError) as refused:
        read()
    assert str(refused.value) == f"${name} was removed: {INSTEAD}"


@pytest.mark.parametrize("name", ["gone", "gone_too"])
def test_the_plug_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = f"the plug-in's setting {name!r} was removed: {INSTEAD}"
    with pytest.raises(ConfigError) as refused:
        PluginSettings.read({"agentspec": {name: 1}})
    assert str(refused.value) == error
    monkeypatch.setenv(SETTINGS_VARIABLE, json.dumps({name: 1}))
    with pytest.raises(ConfigError) as refused:
        PluginSettings.read(None)
    assert str(refused.value) == error


def test_the_table_is_sorted_and_names_nothing_that_exists() -> None:
    assert list(REMOVED) == sorted(REMOVED)
    settings = {f"engine.{name}" for name in EngineSettings.model_fields} | set(Settings.model_fields)
    assert not settings & set(REMOVED)
    assert all(instead.endswith(".") and "\n" not in instead for instead in REMOVED.values())
