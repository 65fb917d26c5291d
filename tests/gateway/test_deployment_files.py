"""The deployment files for operators agree with the gateway."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from agentspec.errors import ConfigError
from agentspec.gateway.config_file import load_settings
from agentspec.gateway.http.client_connection import KEEPALIVE_S
from agentspec.gateway.server import LAST_WORDS_S
from agentspec.gateway.settings import KeySettings, Settings, UpstreamSettings
from agentspec.serve_settings import EngineSettings
from agentspec.vllm_plugin.launch import CONTROL, SCHEDULER, WORKER
from agentspec.wire import AFFINITY_HEADER
from tests.gateway.support.live import chat_body, post, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
REFERENCE = DEPLOY / "agentspec.yaml"
ROUTERS_PAGE = DEPLOY.parent / "docs" / "routers.md"
LISTED = {"keys": KeySettings, "upstreams": UpstreamSettings, "engine": EngineSettings}
SECRETS = ("AGENTSPEC_API_KEYS", "AGENTSPEC_ADMIN_KEY", "AGENTSPEC_ENGINE_API_KEY", "AGENTSPEC_CONTROL_TOKEN")
LAST_SPANS_S = 10  # OpenTelemetry's own default
DIGEST = "ab" * 32


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def uncommented(text: str) -> str:
    """Return the file with its examples uncommented: text directly after a #, or two spaces after it."""
    return re.sub(r"^#(?=[a-z]|  )", "", text, flags=re.MULTILINE)


def fields_of(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


def test_the_reference_holds_the_defaults() -> None:
    assert load_settings(REFERENCE) == Settings()


def test_the_reference_without_its_comment_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACME_KEY_SHA256", "ADMIN_KEY_SHA256", "ENGINE_API_KEY", "CONTROL_TOKEN"):
        monkeypatch.setenv(name, DIGEST)
    full = tmp_path / "agentspec.yaml"
    full.write_text(uncommented(REFERENCE.read_text()))
    settings = load_settings(full)
    given = yaml.safe_load(full.read_text())
    assert set(given) == fields_of(Settings)
    for name, model in LISTED.items():
        entry = given[name] if isinstance(given[name], dict) else given[name][0]
        assert set(entry) == fields_of(model), name
    assert settings.keys[0].tenant == "acme"
    assert settings.upstreams[0].control_token == DIGEST


def test_what_the_files_configure_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "x")
    mounted = tmp_path / "agentspec.yaml"
    mounted.write_text(read("kubernetes/configmap.yaml")["data"]["agentspec.yaml"])
    assert load_settings(mounted) == load_settings(DEPLOY / "gateway.yaml")
    assert load_settings(mounted).upstreams[0].api_key == "x"


def test_who_ends_a_gateway_waits_for_its_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "x")
    grace_s = load_settings(DEPLOY / "gateway.yaml").server.grace_s
    needed_s = grace_s + 1 + LAST_WORDS_S + LAST_SPANS_S
    pod = read("kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    pause_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > needed_s + pause_s
    assert int(read("docker-compose.yaml")["services"]["gateway"]["stop_grace_period"].rstrip("s")) > needed_s


def test_vllm_is_started_as_the_plugin_wants_it() -> None:
    flags = [one.partition("=")[::2] for one in read("docker-compose.yaml")["services"]["vllm"]["command"]]
    ours = {flag: value for flag, value in flags if value.startswith("agentspec.")}
    assert ours == {"--worker-cls": WORKER, "--scheduler-cls": SCHEDULER, "--middleware": CONTROL}


def test_the_secrets_are_asked_for_and_none_is_there() -> None:
    secret = read("kubernetes/secret.yaml")["stringData"]
    assert secret == dict.fromkeys(SECRETS, "")
    environment = read("docker-compose.yaml")["services"]["gateway"]["environment"]
    assert all(environment[name].startswith(f"${{{name}:?") for name in SECRETS)


def test_the_gateway_and_what_is_before_it_are_open_to_others() -> None:
    services = read("docker-compose.yaml")["services"]
    published = {name: port for name, service in services.items() for port in service.get("ports", ())}
    assert {name for name, port in published.items() if not port.startswith("127.0.0.1:")} == {
        "gateway",
        "haproxy",
    }
    ours = ("gateway", "gateway-2")  # their image has one
    assert all("healthcheck" in service for name, service in services.items() if name not in ours)


def test_the_second_gateway_is_as_the_first() -> None:
    services = read("docker-compose.yaml")["services"]
    first, second = services["gateway"], services["gateway-2"]
    assert {**second, "ports": first["ports"]} == {**first, "profiles": ["two-gateways"]}
    servers = re.findall(
        r"presetenv AGENTSPEC_GATEWAY_\d (\S+)", (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    )
    assert servers == ["gateway:8000", "gateway-2:8000"]


def test_haproxy_waits_longer_than_a_gateway() -> None:
    waits = dict(re.findall(r"(?:timeout )?(\S+)\s+(\d+)s", (DEPLOY / "haproxy" / "haproxy.cfg").read_text()))
    settings = Settings()
    slowest_s = max(settings.timeouts.first_byte_s, settings.timeouts.idle_s)
    assert int(waits["client"]) > slowest_s
    assert int(waits["server"]) > slowest_s + settings.timeouts.queue_s
    assert int(waits["check"]) > settings.health.timeout_s
    assert int(waits["http-request"]) > settings.limits.head_s + settings.limits.body_s
    assert int(waits["pool-purge-delay"]) < KEEPALIVE_S


def expressions() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "agentspec.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return asked + [
        one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"
    ]


def test_the_dashboard_asks_for_what_is_there() -> None:
    with serving_engine(ScriptedEngine()) as engine, serving_proxy(engine) as root:
        post(root, chat_body())
        text = httpx.get(f"{root}/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    labels = {sample.name: set(sample.labels) for sample in samples}
    asked: set[str] = set()
    for expression in expressions():
        names = set(re.findall(r"agentspec_\w+", expression))
        asked |= names
        assert names
        assert names <= labels.keys()
        grouped = ", ".join(re.findall(r"by \(([^)]*)\)", expression)).split(", ")
        matched = re.findall(r"[{,](\w+)=~", expression)
        for label in filter(None, {*grouped, *matched}):
            assert any(label in labels[name] for name in names), (label, expression)
    assert len(asked) > 12


def test_the_gateway_s_files_before_routers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_URL", "http://router:8100")
    monkeypatch.setenv("AFFINITY_KEY", "secret")
    names = {"gateway.yaml": AFFINITY_HEADER, "gateway-vllm-router.yaml": "x-session-id"}
    assert {file.name for file in (DEPLOY / "routers").glob("gateway*.yaml")} == set(names)
    for name, header in names.items():
        settings = load_settings(DEPLOY / "routers" / name)
        assert settings.routing.affinity_key == "secret"
        assert [upstream.affinity_header for upstream in settings.upstreams] == [header]
    monkeypatch.delenv("AFFINITY_KEY")
    with pytest.raises(ConfigError, match="AFFINITY_KEY"):
        load_settings(DEPLOY / "routers" / "gateway.yaml")


def test_a_page_s_upstreams_before_routers_are_settings() -> None:
    blocks = re.findall(r"```yaml\n(upstreams:.*?)```", ROUTERS_PAGE.read_text(encoding="utf-8"), re.DOTALL)
    upstreams = [UpstreamSettings(**one) for block in blocks for one in yaml.safe_load(block)["upstreams"]]
    assert {one.affinity_header for one in upstreams} == {"x-dynamo-session-id", "x-aibrix-session-key"}


@pytest.mark.parametrize("name", ["smg.sh", "vllm-router.sh"])
def test_a_script_without_engines_asks_for_them(name: str) -> None:
    environment = {"PATH": os.defpath}
    run = subprocess.run([DEPLOY / "routers" / name], env=environment, capture_output=True, text=True)
    assert run.returncode != 0
    assert "name the engines" in run.stderr


def test_the_routers_read_our_header() -> None:
    assert f"balance hdr({AFFINITY_HEADER})" in (DEPLOY / "routers" / "haproxy.cfg").read_text()
    assert f"--routing-key-headers {AFFINITY_HEADER}" in (DEPLOY / "routers" / "smg.sh").read_text()
    listener = read("routers/envoy.yaml")["static_resources"]["listeners"][0]
    [host] = listener["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
    assert host["routes"][-1]["route"]["hash_policy"] == [{"header": {"header_name": AFFINITY_HEADER}}]
