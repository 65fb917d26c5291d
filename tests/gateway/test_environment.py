"""Environment variables that resemble settings, and those of other programs."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from agentspec.cli import main
from agentspec.errors import ConfigError
from agentspec.gateway.config_file import load_settings
from agentspec.gateway.environment import OTHER_VARIABLES, unknown_variables

ROOT = Path(__file__).resolve().parents[2]
OF_KUBERNETES = {  # for Services named agentspec, agentspec-engine and agentspec-server
    "AGENTSPEC_SERVICE_HOST": "10.0.0.7",
    "AGENTSPEC_SERVICE_PORT": "80",
    "AGENTSPEC_SERVICE_PORT_HTTP": "80",
    "AGENTSPEC_PORT": "tcp://10.0.0.7:80",
    "AGENTSPEC_PORT_80_TCP": "tcp://10.0.0.7:80",
    "AGENTSPEC_PORT_80_TCP_PROTO": "tcp",
    "AGENTSPEC_PORT_80_TCP_PORT": "80",
    "AGENTSPEC_PORT_80_TCP_ADDR": "10.0.0.7",
    "AGENTSPEC_ENGINE_PORT": "tcp://10.0.0.8:8000",
    "AGENTSPEC_ENGINE_SERVICE_HOST": "10.0.0.8",
    "AGENTSPEC_SERVER_PORT_53_UDP_ADDR": "10.0.0.9",
}


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("AGENTSPEC_SPILL", "$AGENTSPEC_ROUTING__SPILL"),
        ("AGENTSPEC_PORT", "$AGENTSPEC_SERVER__PORT"),
        ("AGENTSPEC_SAVE_EVERY_S", "$AGENTSPEC_ENGINE__SAVE_EVERY_S"),
        ("AGENTSPEC_ROUTING_SPILL", "$AGENTSPEC_ROUTING__SPILL"),
        ("AGENTSPEC_ROUTNG__SPILL", "$AGENTSPEC_ROUTING__SPILL"),
        ("agentspec_spill", "$AGENTSPEC_ROUTING__SPILL"),
        ("AGENTSPEC_APIKEYS", "$AGENTSPEC_API_KEYS"),
        ("AGENTSPEC_ADMIN_KEYS", "$AGENTSPEC_ADMIN_KEY"),
        ("AGENTSPEC_SERVED_MODEL_NAME", "$AGENTSPEC_ENGINE__SERVED_MODEL_NAME"),
    ],
)
def test_a_misspelt_setting_is_named(name: str, right: str) -> None:
    with pytest.raises(ConfigError) as caught:
        unknown_variables({name: "2"})
    assert f"${name} is no setting: write {right}," in str(caught.value)


def test_what_kubernetes_sets_for_a_service_of_our_name_is_no_mistake() -> None:
    assert unknown_variables(OF_KUBERNETES) == []


def test_the_gateway_starts_beside_a_service_of_its_name(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in OF_KUBERNETES.items():
        monkeypatch.setenv(name, value)
    assert main(["serve", "--dry-run"]) == 0
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("AGENTSPEC_SPILL", "2")
    assert main(["serve", "--dry-run"]) == 1


def test_settings_and_our_other_variables_are_known() -> None:
    settings = {
        "AGENTSPEC_ROUTING__SPILL": "2",
        "agentspec_server__port": "80",
        "AGENTSPEC_UPSTREAMS": "[]",
        "AGENTSPEC_SERVER": "{}",
    }
    assert unknown_variables({**settings, **dict.fromkeys(OTHER_VARIABLES, "x"), "HOME": "/"}) == []


def test_a_variable_of_somebody_else_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AGENTSPEC_BILLING_CODE", "s3cret")
    with caplog.at_level(logging.WARNING):
        load_settings(None)
    assert "$AGENTSPEC_BILLING_CODE" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_variable_that_the_file_names_may_be_called_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "agentspec.yaml"
    file.write_text("upstreams: [{url: http://a, api_key: '${AGENTSPEC_ENGINE_API_KEYS}'}]")
    monkeypatch.setenv("AGENTSPEC_ENGINE_API_KEYS", "k")
    assert load_settings(file).upstreams[0].api_key == "k"
    assert not caplog.text


def test_every_variable_of_ours_is_known() -> None:
    """A quoted name in the sources is a variable that the code reads or sets."""
    files = [file for part in ("agentspec", "gateway", "adapters") for file in (ROOT / part).rglob("*.py")]
    found = {
        name for file in files for name in re.findall(r"[\"'](AGENTSPEC_[A-Z_]+)[\"']", file.read_text())
    }
    assert len(found) > 8
    assert unknown_variables(dict.fromkeys(found - {"AGENTSPEC_"}, "")) == []
