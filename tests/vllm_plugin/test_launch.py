from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.vllm_plugin import launch
from agentspec.vllm_plugin.launch import (
    DEFAULT_MAX_DRAFT,
    PROPOSER,
    SCHEDULER,
    WORKER,
    ModelRunner,
    num_ranks,
    vllm_command,
    vllm_environment,
)
from agentspec.vllm_plugin.settings import PluginSettings
from tests.vllm_plugin.support.speculative_arguments import (
    CHANGED,
    CHANGED_BY_FILE,
    UNCHANGED,
    UNCHANGED_BY_FILE,
    by_file,
)


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a setter for the version of the installed vLLM for GPUs, 0.32.0 at first; None = no vLLM."""
    monkeypatch.setattr(launch, "is_for_cpus", lambda: False)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)

    def set_version(version: str | None) -> None:
        monkeypatch.setattr(launch, "installed_version", lambda: version)

    set_version("0.32.0")
    return set_version


def value(arguments: list[str], flag: str) -> str:
    assert arguments.count(flag) == 1
    return arguments[arguments.index(flag) + 1]


def test_the_command_has_all_the_plugin_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    arguments = vllm_command("Qwen/Qwen3-8B", port=9000, num_speculative_tokens=24, settings={"price": 0.1})
    assert value(arguments, "--model") == "Qwen/Qwen3-8B"
    assert value(arguments, "--port") == "9000"
    assert value(arguments, "--worker-cls") == WORKER
    assert json.loads(value(arguments, "--speculative-config")) == {
        "method": "custom_class",
        "model": PROPOSER,
        "num_speculative_tokens": 24,
    }
    assert "--additional-config" not in arguments  # vLLM would compile the model anew for every setting
    assert value(arguments, "--per-request-spec-decode-metrics") == "summary"
    assert value(arguments, "--middleware") == launch.CONTROL


def test_flags_of_vllm_are_passed_on() -> None:
    extra = [
        "--tensor-parallel-size",
        "2",
        "--enable-prefix-caching",
        "--per_request_spec_decode_metrics=none",
    ]
    arguments = vllm_command("m", extra)
    assert arguments[-4:] == extra
    assert "--per-request-spec-decode-metrics" not in arguments


def test_a_server_that_saves_its_forest_gets_the_time_to(tmp_path: Path) -> None:
    settings = {"forest_file": str(tmp_path / "forest")}
    assert int(value(vllm_command("m", settings=settings), "--shutdown-timeout")) > 10
    assert (
        value(vllm_command("m", ["--shutdown-timeout", "3"], settings=settings), "--shutdown-timeout") == "3"
    )
    assert "--shutdown-timeout" not in vllm_command("m")


def test_zero_hop_tags_inside_the_server() -> None:
    arguments = vllm_command("m", zero_hop=True)
    middleware = [arguments[i + 1] for i, flag in enumerate(arguments) if flag == "--middleware"]
    assert middleware == [launch.CONTROL, launch.ZERO_HOP]


def test_an_additional_config_of_the_users_is_kept() -> None:
    for given in (["--additional-config", '{"a": 1}'], ['--additional_config={"a": 1}']):
        arguments = vllm_command("m", given, settings={"threads": 2})
        assert arguments[-len(given) :] == given


@pytest.mark.parametrize("given", ["[1]", "{", "7"])
def test_an_additional_config_must_be_an_object(given: str) -> None:
    with pytest.raises(ConfigError, match="JSON object"):
        vllm_command("m", ["--additional-config", given])


def test_settings_in_the_users_additional_config_are_checked() -> None:
    with pytest.raises(ConfigError, match="price"):
        vllm_command("m", ["--additional-config", '{"agentspec": {"price": 2}}'])


@pytest.mark.parametrize(
    "flag",
    [
        "--worker-cls",
        "--worker_cls=x",
        "--worker",
        "--port",
        "--por",
        "--scheduler-cls",
    ],
)
def test_flags_of_the_plugin_are_refused(flag: str) -> None:
    with pytest.raises(ConfigError, match=flag.partition("=")[0].replace("_", "-") + " 'x' sets what"):
        vllm_command("m", [flag, "x"])


@pytest.mark.parametrize("arguments", CHANGED)
def test_arguments_that_change_the_speculative_settings_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^-.* '.+' sets what agentspec sets itself: leave it out "):
        vllm_command("m", arguments)


@pytest.mark.parametrize("text", CHANGED_BY_FILE)
def test_a_file_that_changes_the_speculative_settings_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sets what agentspec sets itself"):
        vllm_command("m", by_file(text, tmp_path))


@pytest.mark.parametrize("arguments", UNCHANGED)
def test_other_arguments_are_passed_on(arguments: tuple[str, ...]) -> None:
    assert vllm_command("m", arguments) == [*vllm_command("m"), *arguments]


@pytest.mark.parametrize("text", [*UNCHANGED_BY_FILE, "", "[1]", "{", "a: b: c"])
def test_a_file_that_changes_something_else_is_passed_on(text: str, tmp_path: Path) -> None:
    arguments = by_file(text, tmp_path)
    assert vllm_command("m", arguments)[-2:] == list(arguments)
    assert vllm_command("m", ["--config", str(tmp_path / "none.yaml")])  # vLLM reports it


def test_what_a_file_says_counts_as_if_it_stood_on_the_command_line(tmp_path: Path) -> None:
    arguments = by_file("data-parallel-size: 4\nenable_dbo: yes\nshutdown-timeout: 7", tmp_path)
    assert num_ranks(arguments) == 4
    assert num_ranks([*arguments, "-dp", "2"]) == 4  # as of several spellings: the first
    assert not launch.chosen_runner(arguments, {}).is_v2
    settings = {"forest_file": str(tmp_path / "forest")}
    assert "--shutdown-timeout" not in vllm_command("m", arguments, settings=settings)
    with pytest.raises(ConfigError, match="external_launcher"):
        vllm_command("m", by_file("distributed_executor_backend: external_launcher", tmp_path))


def test_without_vllm_or_with_another_one_there_is_no_command(version: Any) -> None:
    version(None)
    with pytest.raises(ConfigError, match="pip install vllm"):
        vllm_command("m")
    version("0.40.0")
    with pytest.raises(ConfigError, match=r"0\.40\.0"):
        vllm_command("m")
    assert vllm_command("m", settings={"allow_untested_vllm": True})


@pytest.mark.parametrize("number", [0, 129, 500, 5000])
def test_the_longest_draft_is_checked(number: int) -> None:
    with pytest.raises(ConfigError, match=rf"\b{number}\b"):
        vllm_command("m", num_speculative_tokens=number)


def test_a_draft_longer_than_the_sampler_takes_names_the_limit() -> None:
    with pytest.raises(ConfigError, match=r"at most 128 .* not 129: set --max-draft"):
        vllm_command("m", num_speculative_tokens=129)
    assert vllm_command("m", num_speculative_tokens=128)


@pytest.mark.parametrize(
    "flags",
    [
        ["--pipeline-parallel-size", "2"],
        ["--pipeline_parallel_size=2"],
        ["-pp", "2"],
        ["-pp=2"],
        ["--max-num-seqs", "4", "-pp", "2"],
    ],
)
def test_pipeline_parallelism_is_refused_with_the_reason(
    flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    with pytest.raises(ConfigError, match=r"pipeline parallelism \(size 2\)"):
        vllm_command("m", flags)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    assert vllm_command("m", flags)[-len(flags) :] == flags  # the runner V2 has it


def test_several_api_servers_are_started_by_vllms_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--api-server-count", "3"]
    monkeypatch.setattr(launch, "has_own_command", lambda: True)
    module = vllm_command("m", flags).index("-m") + 1
    assert vllm_command("m", flags)[module : module + 3] == [launch.OWN_COMMAND_MODULE, "serve", "m"]
    assert vllm_command("m", ["-asc", "3"])[module] == launch.OWN_COMMAND_MODULE
    assert value(vllm_command("m", ["--api_server_count=1"]), "-m") == launch.SERVER_MODULE
    monkeypatch.setattr(launch, "has_own_command", lambda: False)
    assert value(vllm_command("m", ["--api-server-count", "1"]), "-m") == launch.SERVER_MODULE
    with pytest.raises(ConfigError, match="--api-server-count 3 needs the command 'vllm'"):
        vllm_command("m", flags)


@pytest.mark.parametrize("size", ["1", "", "two"])
def test_one_pipeline_stage_and_what_is_no_number_are_left_to_vllm(size: str) -> None:
    flags = ["--pipeline-parallel-size", size]
    assert vllm_command("m", flags)[-2:] == flags


@pytest.mark.parametrize(
    ("flags", "number"),
    [
        ([], 1),
        (["--data-parallel-size", "8"], 8),
        (["--data_parallel_size=4"], 4),
        (["-tp", "2", "-dp", "2"], 2),
        (["-dp", "many"], 1),  # vLLM refuses it
        (["-dp", "0"], 1),
        (["-dp", "8", "--data-parallel-rank", "3"], 1),
        (["-dp", "8", "-dph", "-dpl", "2"], 1),
        (["-dp", "8", "--data_parallel_external_lb"], 1),
    ],
)
def test_the_data_parallel_ranks_behind_the_port(flags: list[str], number: int) -> None:
    assert num_ranks(flags) == number


def test_the_control_token_goes_by_the_environment() -> None:
    assert vllm_environment("secret", {}, vllm_command("m")) == {"AGENTSPEC_CONTROL_TOKEN": "secret"}
    assert vllm_environment(None, None, vllm_command("m")) == {}
    assert "secret" not in " ".join(vllm_command("m"))


def test_a_worker_process_that_saves_its_forest_gets_the_servers_time_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worker_s(*extra: str, **settings: object) -> str | None:
        return vllm_environment(None, settings, vllm_command("m", extra, settings=settings)).get(name)

    name = launch.WORKER_SHUTDOWN_VARIABLE
    monkeypatch.delenv(name, raising=False)
    file = str(tmp_path / "forest")
    assert worker_s() is None
    assert worker_s(forest_file=file) == launch.SHUTDOWN_TIMEOUT_S
    assert worker_s("--shutdown-timeout", "20", forest_file=file) == "20"
    assert worker_s("--shutdown-timeout", "20", "--shutdown_timeout=90", forest_file=file) == "90"
    assert worker_s("--shutdown-timeout", "3", forest_file=file) is None  # less than vLLM's own
    assert worker_s("--additional-config", json.dumps({"agentspec": {"forest_file": file}})) is not None
    monkeypatch.setenv(name, "600")
    assert worker_s(forest_file=file) == "600"


def test_settings_go_by_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = vllm_environment(settings={"price": 0.25, "rule": "paper"})
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    config = {"agentspec": {"price": 0.5, "threads": 1}}
    assert PluginSettings.read(config) == PluginSettings(price=0.25, rule="paper", threads=1)
    for text in ("[1]", "{", "price=1"):
        monkeypatch.setenv("AGENTSPEC_VLLM_SETTINGS", text)
        with pytest.raises(ConfigError, match=r"AGENTSPEC_VLLM_SETTINGS is a JSON object"):
            PluginSettings.read({})


@pytest.mark.parametrize("setting", ["external_launcher"])
def test_ranks_that_schedule_by_themselves_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"each rank schedules by itself.* Use 'mp' or 'ray'"):
        vllm_command("m", ["--distributed-executor-backend", setting])
    assert vllm_command("m", ["--distributed-executor-backend", "mp"])


@pytest.mark.parametrize(
    ("environment", "flags", "is_for_cpus", "is_v2", "reason"),
    [
        ({}, (), False, True, None),
        ({}, ("--enable-dbo",), False, False, "--enable-dbo"),
        ({}, (), True, False, "Triton"),
        ({"VLLM_USE_V2_MODEL_RUNNER": "1"}, (), True, True, None),
        ({"VLLM_USE_V2_MODEL_RUNNER": "0"}, (), False, False, "VLLM_USE_V2_MODEL_RUNNER=0"),
    ],
)
def test_the_model_runner_is_v2_where_it_can_be(
    environment: dict[str, str],
    flags: tuple[str, ...],
    is_for_cpus: bool,
    is_v2: bool,
    reason: str | None,
) -> None:
    runner = ModelRunner.choose(environment, flags, is_for_cpus=is_for_cpus)
    assert runner.is_v2 == is_v2
    assert (runner.reason is None) == (reason is None)
    assert (reason or "") in (runner.reason or "")


@pytest.mark.parametrize(
    ("flags", "is_v2"),
    [
        ((), True),
        (("--kv-transfer-config", '{"kv_load_failure_policy": "fail"}'), True),
        (("--kv-transfer-config", "not JSON"), True),
        (("--kv-transfer-config", '["recompute"]'), True),
        (("--kv-transfer-config", '{"kv_load_failure_policy": "recompute"}'), False),
        (('--kv_transfer_config={"kv_load_failure_policy": "recompute"}',), False),
        (("--kv-transfer-config.kv_load_failure_policy", "recompute"), False),
    ],
)
def test_failed_loads_are_computed_again_by_the_runner_v1(flags: tuple[str, ...], is_v2: bool) -> None:
    runner = launch.chosen_runner(flags, {})
    assert runner.is_v2 == is_v2
    assert is_v2 or "failed load" in (runner.reason or "")
    assert launch.chosen_runner(flags, {"VLLM_USE_V2_MODEL_RUNNER": "1"}).is_v2


def test_the_runner_v2_has_its_own_method_and_a_scheduler_of_ours() -> None:
    arguments = vllm_command("m", num_speculative_tokens=7)
    speculative = json.loads(value(arguments, "--speculative-config"))
    assert (speculative["method"], speculative["num_speculative_tokens"]) == ("ngram_gpu", 7)
    assert value(arguments, "--scheduler-cls") == SCHEDULER


def test_vllm_may_choose_what_a_step_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = vllm_command("m", settings={"adaptive_verification": True})
    assert json.loads(value(arguments, "--speculative-config"))["enable_adaptive_verification"] is True
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    with pytest.raises(
        ConfigError, match=r"needs vLLM's model runner V2, not V1 .*VLLM_USE_V2_MODEL_RUNNER=0"
    ):
        vllm_command("m", settings={"adaptive_verification": True})


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ({"architectures": ["LlamaForCausalLM"]}, None),  # vLLM finds out
        (["no object"], None),
    ],
)
def test_a_draft_model_drafts_beside_the_trees(config: Any, method: str | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = vllm_command("m", draft_model=str(tmp_path), num_speculative_tokens=7)
    speculative = json.loads(value(arguments, "--speculative-config"))
    assert speculative.pop("method", None) == method
    assert speculative == {"model": str(tmp_path), "num_speculative_tokens": 7}
    assert value(arguments, "--scheduler-cls") == SCHEDULER


def test_a_draft_model_may_be_a_name_or_the_models_own_heads() -> None:
    arguments = vllm_command("m", draft_model="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
    assert json.loads(value(arguments, "--speculative-config")) == {
        "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "num_speculative_tokens": 15,
    }
    own = json.loads(value(vllm_command("m", draft_model="mtp"), "--speculative-config"))
    assert own == {"method": "mtp", "num_speculative_tokens": 15}


def test_where_a_draft_model_is_impossible_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="adaptive_verification can't be used with a draft model"):
        vllm_command("m", draft_model="mtp", settings={"adaptive_verification": True})
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    with pytest.raises(ConfigError, match=r"draft_model needs vLLM's model runner V2, not V1 "):
        vllm_command("m", draft_model="mtp")


def test_the_default_draft_fits_the_sizes_of_cuda_graphs() -> None:
    assert (1 + DEFAULT_MAX_DRAFT).bit_count() == 1
    speculative = json.loads(value(vllm_command("m"), "--speculative-config"))
    assert speculative["num_speculative_tokens"] == DEFAULT_MAX_DRAFT
