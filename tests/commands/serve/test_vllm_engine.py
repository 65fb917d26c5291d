"""The command line that starts vLLM. The tests in tests/real_vllm start it."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentspec.cli import build_parser, main
from agentspec.commands.serve.options import ServeOptions
from agentspec.commands.serve.settings import read_settings, runtime_config_of
from agentspec.commands.serve.vllm_engine import behind_gateway, engine_only, zero_hop
from agentspec.errors import ConfigError
from agentspec.gateway import EngineSupervisor, Fleet
from agentspec.models import BUNDLED_MODEL, bundled_model_dir

pytestmark = pytest.mark.usefixtures("vllm")


def parsed(*options: str) -> ServeOptions:
    args, unknown = build_parser().parse_known_args(["serve", *options])
    args.unknown = unknown
    return ServeOptions.of(args)


def behind(options: ServeOptions) -> tuple[Fleet, str, EngineSupervisor]:
    settings = read_settings(options)
    return behind_gateway(options, settings, runtime_config_of(settings, options))


def no_hop(options: ServeOptions, port: int) -> tuple[EngineSupervisor, str]:
    return zero_hop(options, read_settings(options), port)


def value_of(argv: Sequence[str], flag: str) -> str:
    """Return the value that vLLM would use: the last one given."""
    return argv[len(argv) - 1 - list(reversed(argv)).index(flag) + 1]


def test_options_of_ours_become_flags_and_settings_and_all_others_pass() -> None:
    options = [
        "--model",
        "m",
        "--max-model-len",
        "512",
        "--dtype",
        "half",
        "--max-draft",
        "8",
        "--rule",
        "paper",
    ]
    options += ["--stage-budget-mb", "7", "--max-num-seqs", "4", "-tp", "2", "--hf-overrides", '{"a": -1}']
    _, name, process = behind(parsed(*options))
    argv = process.command.argv
    assert name == "m"
    assert value_of(argv, "--model") == "m"
    assert value_of(argv, "--host") == "127.0.0.1"
    assert (value_of(argv, "--max-model-len"), value_of(argv, "--dtype")) == ("512", "half")
    assert json.loads(value_of(argv, "--speculative-config"))["num_speculative_tokens"] == 8
    settings = json.loads(process.command.environment["AGENTSPEC_VLLM_SETTINGS"])
    assert settings == {"rule": "paper", "stage_budget_mb": 7}
    assert list(argv[-6:]) == ["--max-num-seqs", "4", "-tp", "2", "--hf-overrides", '{"a": -1}']
    assert int(value_of(argv, "--shutdown-timeout")) < process.command.stop_timeout_s


def test_without_a_model_it_is_the_bundled_one() -> None:
    _, name, process = behind(parsed("--engine", "vllm"))
    assert name == BUNDLED_MODEL
    assert value_of(process.command.argv, "--model") == str(bundled_model_dir())
    assert value_of(process.command.argv, "--served-model-name") == BUNDLED_MODEL


def test_secrets_are_in_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTSPEC_CONTROL_TOKEN", raising=False)
    processes = [behind(parsed("--model", "m"))[2] for _ in range(2)]
    processes.append(
        no_hop(
            parsed("--model", "m", "--admin-key", "boss", "--api-key", "s3cret=acme", "--api-key", "k2"), 8000
        )[0]
    )
    kept = [process.command.environment for process in processes]
    assert kept[0]["VLLM_API_KEY"] != kept[1]["VLLM_API_KEY"]
    assert kept[0]["AGENTSPEC_CONTROL_TOKEN"] != kept[1]["AGENTSPEC_CONTROL_TOKEN"]
    assert kept[2] == {"AGENTSPEC_API_KEYS": "s3cret=acme,k2", "AGENTSPEC_CONTROL_TOKEN": "boss"}
    for process in processes:
        secrets = process.command.environment.values()
        assert not any(secret in part for secret in secrets for part in process.command.argv)
        assert not any(secret in repr(process.command) for secret in secrets)


def test_the_data_parallel_ranks_are_known_where_requests_are_tagged() -> None:
    options = parsed("--model", "m", "--data-parallel-size", "4")
    fleet, _, _ = behind(options)
    assert [one.data_parallel_size for one in fleet.upstreams] == [4]
    process, _ = no_hop(options, 8000)
    assert process.command.environment["AGENTSPEC_DATA_PARALLEL_SIZE"] == "4"


def test_without_a_gateway_it_listens_where_we_would() -> None:
    process, _ = no_hop(parsed("--model", "m", "--host", "0.0.0.0", "--grace-s", "2.5"), 8123)
    argv = process.command.argv
    assert (value_of(argv, "--host"), value_of(argv, "--port")) == ("0.0.0.0", "8123")
    assert value_of(argv, "--shutdown-timeout") == "3"
    assert "agentspec.gateway.zero_hop.ZeroHop" in argv


def test_an_engine_for_gateways_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_ENGINE_API_KEY", "theirs")
    monkeypatch.setenv("AGENTSPEC_CONTROL_TOKEN", "token")
    options = parsed("--model", "m", "--engine-only", "--host", "0.0.0.0", "--grace-s", "30")
    process, name = engine_only(read_settings(options), 8000)
    argv = process.command.argv
    assert name == "m"
    assert (value_of(argv, "--host"), value_of(argv, "--port")) == ("0.0.0.0", "8000")
    assert value_of(argv, "--shutdown-timeout") == "30"
    assert "agentspec.vllm_plugin.control.Control" in argv
    assert "agentspec.gateway.zero_hop.ZeroHop" not in argv  # it would replace the gateway's tags
    assert process.command.environment == {"VLLM_API_KEY": "theirs", "AGENTSPEC_CONTROL_TOKEN": "token"}


def test_the_control_channel_of_an_engine_for_gateways_is_never_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTSPEC_CONTROL_TOKEN", raising=False)
    process, _ = engine_only(read_settings(parsed("--model", "m", "--engine-only")), 8000)
    assert len(process.command.environment["AGENTSPEC_CONTROL_TOKEN"]) > 20


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(ConfigError, match=f"--engine-port {port} can.t be vLLM.s: Address already"):
            behind(parsed("--model", "m", "--engine-port", port))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--worker-cls", "mine"], "--worker-cls"),
        (["--speculative-config", "{}"], "--speculative-config"),
        (["--max-draft", "500"], "at most 128 draft tokens of a request in a step, not 500"),
        (["-pp", "2"], "does not run with pipeline parallelism"),
        (["--max-draft", "0"], "--max-draft must be at least 1 with vLLM"),
        (["--model", "./gone"], "--model './gone' is not there"),
        (["--zero-hop", "--record", "calls.jsonl"], "no gateway to record: --record 'calls.jsonl'"),
        (["--engine-only", "--record", "calls.jsonl"], "no gateway to record: --record 'calls.jsonl'"),
        (["--engine-only", "--zero-hop"], "--engine-only for gateways elsewhere: give one of the two"),
        (["--engine-only", "--api-key", "k=acme"], "tenants' keys are for the gateways"),
        (["--engine-only", "--host", "0.0.0.0"], "set $AGENTSPEC_ENGINE_API_KEY here and in the gateways"),
        (["--forest-file", "/nowhere/at/all"], "/nowhere/at"),
        (["--forest-file", __file__, "--zero-hop"], "is no forest file and stays as it is"),
    ],
)
def test_what_can_not_be(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "--model", "m", *options]) == 1
    assert said in capsys.readouterr().err


def test_keys_of_the_configuration_reach_vllm_by_their_digests(tmp_path: Path) -> None:
    config, digest = tmp_path / "agentspec.yaml", "ab" * 32
    config.write_text(f"keys: [{{sha256: {digest.upper()}, tenant: acme}}]\nengine: {{model: m}}\n")
    process, name = no_hop(parsed("--config", str(config), "--zero-hop"), 8000)
    assert name == "m"
    assert process.command.environment["AGENTSPEC_API_KEYS"] == f"sha256:{digest}=acme"
    config.write_text(f"keys: [{{sha256: {digest}, max_concurrent: 1}}]\nengine: {{model: m}}\n")
    with pytest.raises(ConfigError, match="keys have no limits with --zero-hop"):
        no_hop(parsed("--config", str(config), "--zero-hop"), 8000)
