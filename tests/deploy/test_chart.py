"""The chart, linted and rendered by the real Helm 3 and 4."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from agentspec.cli import build_parser, main
from agentspec.commands.serve.options import ServeOptions
from agentspec.gateway.auth.api_keys import ApiKeys, parse_keys
from agentspec.gateway.config_file import load_settings
from agentspec.gateway.server import LAST_WORDS_S
from tests.deploy.support.chart import (
    DEPLOY,
    HELMS,
    KUBERNETES,
    NAMESPACE,
    REASON,
    RELEASE,
    TOOLS,
    VALUES_FILES,
    check,
    given,
    has_tools,
    helm,
    one_of,
    rendered,
)
from tests.gateway.support.live import chat_body, post, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine
from tests.support.ports import reserved_port

pytestmark = pytest.mark.skipif(not has_tools(), reason=REASON)

ALL, ONLY_GATEWAYS, ONE_NODE = VALUES_FILES
EACH = [None, *VALUES_FILES]
SECRETS = ("AGENTSPEC_API_KEYS", "AGENTSPEC_ADMIN_KEY", "AGENTSPEC_ENGINE_API_KEY", "AGENTSPEC_CONTROL_TOKEN")
LAST_SPANS_S = 10  # OpenTelemetry's own default
VLLM_END_S = 10


def named(values: Path | None) -> str:
    return "defaults" if values is None else values.name


@pytest.mark.parametrize("program", HELMS)
@pytest.mark.parametrize("values", EACH, ids=named)
def test_it_passes_the_strict_lint(values: Path | None, program: str) -> None:
    run = helm("lint", "--strict", ".", *given(values), program=program)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 chart(s) failed" in run.stdout


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", EACH, ids=named)
def test_every_object_is_valid(values: Path | None, version: str) -> None:
    objects = rendered(values)
    for thing in objects:
        check(thing, version)
    names = [(thing["kind"], thing["metadata"]["name"]) for thing in objects]
    assert len(names) == len(set(names)) >= 4


def test_a_wrong_object_is_not_valid() -> None:
    for kind, place in (("Deployment", "replica"), ("ScaledObject", "minReplicas"), ("PodMonitor", "select")):
        thing = one_of(rendered(ALL), kind, "gateway")
        with pytest.raises(jsonschema.ValidationError, match=place):
            check({**thing, "spec": {**thing["spec"], place: 1}}, KUBERNETES[0])


def test_helm_3_renders_the_same() -> None:
    for values in EACH:
        assert rendered(values) == rendered(values, program="helm-3")


def test_the_plain_manifests_are_valid() -> None:
    run = subprocess.run(
        [str(TOOLS / "kubectl"), "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True
    )
    objects = list(yaml.safe_load_all(run.stdout))
    assert len(objects) == 5, run.stderr
    for thing in objects:
        for version in KUBERNETES:
            check(thing, version)


def settings_of(values: Path | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the gateway's file, and set the variables that its pod has."""
    for name in SECRETS:
        monkeypatch.setenv(name, "k=acme" if name == "AGENTSPEC_API_KEYS" else "x")
    file = folder / "agentspec.yaml"
    file.write_text(one_of(rendered(values), "ConfigMap", "gateway")["data"]["agentspec.yaml"])
    return file


@pytest.mark.parametrize("values", EACH, ids=named)
def test_a_gateway_starts_with_its_file(
    values: Path | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = settings_of(values, tmp_path, monkeypatch)
    args = one_of(rendered(values), "Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]
    here = [str(file) if one == "/etc/agentspec/agentspec.yaml" else one for one in args]
    assert main([*here, "--dry-run", "--port", "0"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["engine"]["engine"] == "running"
    server = load_settings(file).server
    assert (server.host, server.port) == ("0.0.0.0", 8000)


def test_the_gateways_know_every_engine_by_the_name_of_its_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = one_of(rendered(ALL), "StatefulSet", "engine")
    service = one_of(rendered(ALL), "Service", "engine")
    assert engines["spec"]["serviceName"] == service["metadata"]["name"]
    upstreams = load_settings(settings_of(ALL, tmp_path, monkeypatch)).upstreams
    most = one_of(rendered(ALL), "ScaledObject", "engine")["spec"]["maxReplicaCount"]
    name, port = engines["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert [one.url for one in upstreams] == [
        f"http://{name}-{number}.{service['metadata']['name']}:{port}" for number in range(most)
    ]
    assert {(one.api_key, one.control_token) for one in upstreams} == {("x", "x")}


def test_engines_that_are_absent_cost_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(settings_of(ALL, tmp_path, monkeypatch))
    common = {"health": settings.health, "retries": settings.retries, "timeouts": settings.timeouts}
    with ExitStack() as stack:
        present = stack.enter_context(serving_engine(ScriptedEngine()))
        absent = [f"http://127.0.0.1:{stack.enter_context(reserved_port())}" for _ in settings.upstreams[1:]]
        root = stack.enter_context(serving_proxy(present, *absent, fleet=common))
        while httpx.get(f"{root}/health").status_code != 200:
            continue
        responses = [post(root, chat_body(), x_agentspec_stage=f"a/{number}") for number in range(40)]
        assert {response.status_code for response in responses} == {200}
        running = 'agentspec_upstream_requests_total{upstream="engine-%d"} 0.0'
        scraped = httpx.get(f"{root}/metrics").text
        assert all(running % number in scraped for number in range(1, len(settings.upstreams)))


def test_an_engine_is_started_by_options_that_exist() -> None:
    pod = one_of(rendered(ALL), "StatefulSet", "engine")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"] == ["python3", "-m", "agentspec"]
    args, unknown = build_parser().parse_known_args(container["args"])
    args.unknown = unknown
    options = ServeOptions.of(args)
    assert options.unknown == ("--max-num-seqs", "64", "--tensor-parallel-size", "2")  # vLLM's
    assert options.given["server"] == {"host": "0.0.0.0", "port": 8000, "grace_s": 60}
    assert options.given["engine"] == {
        "model": "Qwen/Qwen3-8B",
        "served_model_name": "qwen",
        "engine_only": True,
        "engine_start_timeout_s": 1800,
    }
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > 1800
    assert pod["terminationGracePeriodSeconds"] > 60 + VLLM_END_S


def test_secrets_are_named_and_none_is_made() -> None:
    assert not [thing for values in EACH for thing in rendered(values) if thing["kind"] == "Secret"]
    pod = one_of(rendered(ALL), "StatefulSet", "engine")["spec"]["template"]["spec"]
    variables = {
        one["name"]: tuple(one["valueFrom"]["secretKeyRef"].values())
        for one in pod["containers"][0]["env"]
        if "valueFrom" in one
    }
    assert variables == {
        "AGENTSPEC_ENGINE_API_KEY": ("agentspec", "AGENTSPEC_ENGINE_API_KEY"),
        "AGENTSPEC_CONTROL_TOKEN": ("agentspec", "AGENTSPEC_CONTROL_TOKEN"),
        "HF_TOKEN": ("hugging-face", "token"),
        "AGENTSPEC_ENGINE__CORPUS": ("agentspec-corpus", "url"),
        "AGENTSPEC_CORPUS_KEY": ("agentspec-corpus", "key"),
    }
    monitor = one_of(rendered(ALL), "PodMonitor", "gateway")["spec"]["podMetricsEndpoints"][0]
    assert monitor["authorization"]["credentials"] == {"name": "agentspec", "key": "AGENTSPEC_ADMIN_KEY"}


def test_the_corpus_of_the_variables_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_ENGINE__CORPUS", "redis://store:6379/0")
    assert load_settings(None).engine.corpus == "redis://store:6379/0"


@pytest.mark.parametrize("values", EACH, ids=named)
def test_a_gateway_is_given_the_time_to_end(values: Path | None) -> None:
    objects = rendered(values)
    pod = one_of(objects, "Deployment", "gateway")["spec"]["template"]["spec"]
    pause_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    grace_s = yaml.safe_load(one_of(objects, "ConfigMap", "gateway")["data"]["agentspec.yaml"])["server"][
        "grace_s"
    ]
    end_s = pod["terminationGracePeriodSeconds"]
    assert end_s > pause_s + grace_s + 1 + LAST_WORDS_S + LAST_SPANS_S
    for scaling in [
        thing for thing in objects if thing["kind"] in ("ScaledObject", "HorizontalPodAutoscaler")
    ]:
        advanced = scaling["spec"].get("advanced", {}).get("horizontalPodAutoscalerConfig", scaling["spec"])
        down = advanced["behavior"]["scaleDown"]
        assert down["stabilizationWindowSeconds"] >= end_s
        [policy] = down["policies"]
        assert (policy["type"], policy["value"]) == ("Pods", 1)
        assert policy["periodSeconds"] >= end_s


@pytest.mark.parametrize("values", EACH, ids=named)
def test_what_selects_pods_selects_them(values: Path | None) -> None:
    objects = rendered(values)
    pods = {
        thing["metadata"]["labels"]["app.kubernetes.io/component"]: thing["spec"]["template"]["metadata"][
            "labels"
        ]
        for thing in objects
        if thing["kind"] in ("Deployment", "StatefulSet")
    }
    num_checked = 0
    for thing in objects:
        spec = thing.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector")
        if selector:
            labels = selector.get("matchLabels", selector)
            component = thing["metadata"]["labels"]["app.kubernetes.io/component"]
            assert [name for name, given in pods.items() if labels.items() <= given.items()] == [component]
            num_checked += 1
    assert num_checked >= 2 * len(pods)


def test_two_gateways_are_kept_apart_and_never_evicted_together() -> None:
    spec = one_of(rendered(), "Deployment", "gateway")["spec"]
    assert spec["replicas"] == 2
    assert one_of(rendered(), "PodDisruptionBudget", "gateway")["spec"]["maxUnavailable"] == 1
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    [preferred] = spec["template"]["spec"]["affinity"]["podAntiAffinity"].values()
    assert preferred[0]["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert not spec["template"]["spec"]["enableServiceLinks"]  # AGENTSPEC_..._PORT would look like a setting


def test_a_scaler_decides_the_number_alone() -> None:
    for kind, component in (("Deployment", "gateway"), ("StatefulSet", "engine")):
        assert "replicas" not in one_of(rendered(ALL), kind, component)["spec"]
        target = one_of(rendered(ALL), "ScaledObject", component)["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) == (kind, f"{RELEASE}-agentspec-{component}")
    target = one_of(rendered(ONLY_GATEWAYS), "HorizontalPodAutoscaler", "gateway")["spec"]["scaleTargetRef"]
    assert target["name"] == "edge-gateway"
    assert "replicas" not in one_of(rendered(ONLY_GATEWAYS), "Deployment", "gateway")["spec"]


def test_without_figures_nothing_is_removed() -> None:
    for component in ("gateway", "engine"):
        spec = one_of(rendered(ALL), "ScaledObject", component)["spec"]
        assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
        assert spec["fallback"]["replicas"] == spec["minReplicaCount"]
        asked = [one for one in spec["triggers"] if one["type"] == "prometheus"]
        assert {one["metadata"]["ignoreNullValues"] for one in asked} == {"false"}  # no series: no figures


def probes() -> list[tuple[str, int]]:
    container = one_of(rendered(), "Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0]
    names = ("startupProbe", "readinessProbe", "livenessProbe")
    return [(container[name]["httpGet"]["path"], 200 if name != "readinessProbe" else 503) for name in names]


def test_the_probes_are_answered_without_a_key_and_readiness_needs_an_engine() -> None:
    engine = ScriptedEngine()
    with serving_engine(engine, keys=ApiKeys(parse_keys(["k=acme"])), admin_key="boss") as root:
        for path, _ in probes():
            assert httpx.get(f"{root}{path}").status_code == 200
        engine.is_healthy = False
        for path, without_engine in probes():
            assert httpx.get(f"{root}{path}").status_code == without_engine


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("gateway.replica=3", "replica"),
        ('gateway.replicas="two"', "gateway/replicas"),
        ("gateway.replicas=0", "gateway/replicas"),
        ('gateway.antiAffinity="always"', "gateway/antiAffinity"),
        ("gateway.config.upstream=[]", "upstream"),
        ('gateway.image.digest="latest"', "gateway/image/digest"),
        ('gateway.autoscaling.kind="yes"', "gateway/autoscaling/kind"),
        ("engine.autoscaling.requestsPerEngine=0", "engine/autoscaling/requestsPerEngine"),
        ('engine.model=""', "engine/model"),
        ("engine.arguments=[64]", "engine/arguments/0"),
        ('existingSecret=""', "existingSecret"),
        ('prometheus.serverAddress="prometheus:9090"', "prometheus/serverAddress"),
        ("gateway.config.server.grace_s=60", "grace_s is 60: set gateway.graceSeconds instead"),
        ("gateway.config.server.port=80", "choose the port of clients by gateway.service.port"),
        (
            'gateway.config.upstreams=[{"url": "http://e:1"}]',
            "set engine.enabled=false, or leave the list out",
        ),
        ("engine.enabled=false", "there is no engine: set engine.enabled=true, or list running engines"),
        (
            "gateway.autoscaling.minReplicas=9",
            "minReplicas is 9, more than maxReplicas, 6: raise maxReplicas",
        ),
        ("gateway.autoscaling.scaleDownSeconds=10", "scaleDownSeconds is 10: set at least 55"),
        ("engine.autoscaling.scaleDownSeconds=60", "scaleDownSeconds is 60: set at least 90"),
        ('engine.modelCache={"existingClaim": "a", "storage": "1Gi"}', "give one of the two"),
        (
            'gateway={"autoscaling": {"kind": "hpa"}, "resources": {"requests": {"cpu": null}}}',
            "resources.requests.cpu",
        ),
    ],
)
def test_what_can_not_be_is_refused(setting: str, said: str) -> None:
    run = helm("template", RELEASE, ".", *given(None, setting))
    assert run.returncode != 0, setting
    assert said in run.stderr


def test_the_notes_show_the_url_and_how_to_make_the_secret() -> None:
    run = helm("install", RELEASE, ".", "--namespace", NAMESPACE, "--dry-run=client")
    assert run.returncode == 0, run.stderr
    assert f"http://{RELEASE}-agentspec-gateway.{NAMESPACE}.svc:80/v1" in run.stdout
    for name in SECRETS:
        assert f"--from-literal={name}=" in run.stdout
    run = helm("install", RELEASE, ".", "--dry-run=client", *given(None, 'engine.autoscaling.kind="keda"'))
    assert "no PodMonitor was made" in run.stdout


def test_the_package_holds_no_values_of_tests(tmp_path: Path) -> None:
    run = helm("package", ".", "--destination", str(tmp_path))
    assert run.returncode == 0, run.stderr
    shown = subprocess.run(["tar", "-tzf", *map(str, tmp_path.glob("*.tgz"))], capture_output=True, text=True)
    names: list[Any] = shown.stdout.split()
    assert "agentspec/values.schema.json" in names
    assert not [name for name in names if "/ci/" in name]
