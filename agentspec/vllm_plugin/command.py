"""The command line and environment of a vLLM server with the plugin. Does not import vLLM."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence

from agentspec.config import check_int
from agentspec.distribution import DOCUMENTS
from agentspec.errors import ConfigError
from agentspec.vllm_plugin.arguments import config_file, expanded, is_meant, names, value
from agentspec.vllm_plugin.control import TOKEN_VARIABLE
from agentspec.vllm_plugin.model_runner import DEFAULT_MAX_DRAFT, SCHEDULER, ModelRunner
from agentspec.vllm_plugin.settings import CONFIG_KEY, SETTINGS_VARIABLE, PluginSettings
from agentspec.vllm_plugin.versions import (
    CPU_DISTRIBUTION,
    FIRST_WITH_MESSAGE_TAGS,
    FIRST_WITH_REQUEST_METRICS,
    INSTALL,
    check_draft_length,
    check_executor,
    check_pipeline,
    check_version,
    has_own_command,
    installed_version,
    is_for_cpus,
    parse,
)
from agentspec.wire import MAX_DRAFT_TOKENS

SERVER_MODULE = "vllm.entrypoints.openai.api_server"
OWN_COMMAND_MODULE = "vllm.entrypoints.cli.main"  # of the command ``vllm``
WORKER = "agentspec.vllm_plugin.worker.AgentSpecWorker"
CONTROL = "agentspec.vllm_plugin.control.Control"
ZERO_HOP = "agentspec.gateway.zero_hop.ZeroHop"
PIPELINE_FLAGS = ("--pipeline-parallel-size", "-pp")
DATA_PARALLEL_FLAGS = ("--data-parallel-size", "-dp")
OTHER_BALANCER_FLAGS = frozenset(  # only some of the ranks are behind the server's own port
    (
        *("--data-parallel-external-lb", "-dpe", "--data-parallel-hybrid-lb", "-dph"),
        *("--data-parallel-multi-port-external-lb", "-dpm", "--data-parallel-rank", "-dpn"),
    )
)
EXECUTOR_FLAG = "--distributed-executor-backend"
KV_TRANSFER_FLAG, KV_LOAD_POLICY = "--kv-transfer-config", "kv_load_failure_policy"
API_SERVER_FLAGS = ("--api-server-count", "-asc")
SPECULATIVE_START = "spec"  # of the names of all flags that change vLLM's speculative settings
PLACES = ("--model", "--host", "--port")
OURS = (
    *(*PLACES, "--worker-cls", "--scheduler-cls"),
    *("--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens"),
)
ADDITIONAL_CONFIG = "--additional-config"
SHUTDOWN_TIMEOUT = "--shutdown-timeout"
SHUTDOWN_TIMEOUT_S = "30"
WORKER_SHUTDOWN_VARIABLE = "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"
WORKER_SHUTDOWN_S = 5  # vLLM's default


def vllm_command(
    model: str,
    extra: Sequence[str] = (),
    *,
    settings: Mapping[str, object] | None = None,
    num_speculative_tokens: int = DEFAULT_MAX_DRAFT,
    draft_model: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    zero_hop: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """Return the command that starts the server, in :func:`vllm_environment` of the same settings.

    Args:
        model: value of vLLM's ``--model``.
        extra: flags of vLLM, passed on.
        settings: settings of the plugin, see :class:`PluginSettings`; only checked here.
        num_speculative_tokens: most draft tokens of a request in a step.
        draft_model: folder or name of an EAGLE head or a smaller model, which drafts as well as the trees;
            ``"mtp"``: the model's own heads.
        zero_hop: tag requests inside this server, without a gateway in front of it.
        environment: the server's variables: they may choose its model runner.

    Raises:
        ConfigError: vLLM is missing or unsupported, a setting is invalid, or a flag is the plugin's.
    """
    version = installed_version()
    if version is None:
        raise ConfigError(f"there is no vLLM here: {INSTALL}, see {DOCUMENTS}/vllm.md")
    given = expanded(extra)
    checked = _in_force(settings, given)
    check_version(version, allows_untested=checked.allow_untested_vllm)
    check_int("num_speculative_tokens", num_speculative_tokens, 1, MAX_DRAFT_TOKENS)
    check_draft_length(num_speculative_tokens)
    if zero_hop and parse(version) < FIRST_WITH_MESSAGE_TAGS and not checked.allow_untested_vllm:
        raise ConfigError(
            f"--zero-hop needs vLLM 0.29: in {version!r} requests to /v1/messages carry no tags"
        )
    runner = chosen_runner(extra, environment)
    _check_given(extra, given, runner)
    if checked.ragged_graphs:
        runner.check_is_v2("ragged_graphs")
    speculative = runner.speculative_config(
        num_speculative_tokens,
        draft_model=draft_model,
        adaptive_verification=checked.adaptive_verification,
    )
    middleware = [CONTROL, *([ZERO_HOP] if zero_hop else [])]
    defaults = {}
    if parse(version) >= FIRST_WITH_REQUEST_METRICS:
        defaults["--per-request-spec-decode-metrics"] = "summary"
    if checked.keeps_outputs:
        defaults[SHUTDOWN_TIMEOUT] = SHUTDOWN_TIMEOUT_S  # by default vLLM kills its workers immediately
    return [
        *(sys.executable, "-m", *_server(model, given), "--host", host, "--port", str(port)),
        *("--worker-cls", WORKER, "--scheduler-cls", SCHEDULER),
        *("--speculative-config", json.dumps(speculative)),
        *(part for path in middleware for part in ("--middleware", path)),
        *(part for flag in defaults if flag not in names(given) for part in (flag, defaults[flag])),
        *extra,
    ]


def num_ranks(arguments: Sequence[str]) -> int:
    """Return the number of data-parallel ranks that a vLLM with these flags chooses from; 1 if unknown."""
    arguments = expanded(arguments)
    if not OTHER_BALANCER_FLAGS.isdisjoint(names(arguments)):
        return 1
    sizes = (value(arguments, name) for name in DATA_PARALLEL_FLAGS)
    return next((int(size) for size in sizes if size and size.isdecimal() and int(size)), 1)


def vllm_environment(
    control_token: str | None = None,
    settings: Mapping[str, object] | None = None,
    command: Sequence[str] = (),
) -> dict[str, str]:
    """Return the variables that the server of this command needs in addition to this process's."""
    environment = {} if control_token is None else {TOKEN_VARIABLE: control_token}
    if settings:
        environment[SETTINGS_VARIABLE] = json.dumps(dict(settings))
    command = expanded(command)
    timeout_s = value(command, SHUTDOWN_TIMEOUT)
    keeps_outputs = _in_force(settings, command).keeps_outputs
    if keeps_outputs and timeout_s and timeout_s.isdecimal() and int(timeout_s) > WORKER_SHUTDOWN_S:
        # with tensor parallelism a worker is a process of its own, and is killed after its own time-out
        environment[WORKER_SHUTDOWN_VARIABLE] = os.environ.get(WORKER_SHUTDOWN_VARIABLE, timeout_s)
    return environment


def chosen_runner(extra: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> ModelRunner:
    """Return the model runner of a server with these flags of vLLM and these variables."""
    version = installed_version()
    assert version is not None
    given = expanded(extra)
    return ModelRunner.choose(
        version,
        environment,
        set(names(given)),
        is_for_cpus=is_for_cpus(),
        recomputes_failed_loads=_recomputes_failed_loads(given),
    )


def _recomputes_failed_loads(given: Sequence[str]) -> bool:
    """Return True if vLLM computes blocks of the KV cache that a connector fails to load."""
    policy = value(given, f"{KV_TRANSFER_FLAG}.{KV_LOAD_POLICY}")
    try:
        config = json.loads(value(given, KV_TRANSFER_FLAG) or "{}")
    except ValueError:  # vLLM reports it
        config = None
    in_config = config.get(KV_LOAD_POLICY) if isinstance(config, dict) else None
    return "recompute" in (policy, in_config)


def _server(model: str, given: Sequence[str]) -> list[str]:
    """Return the module to run, and its model. Only vLLM's own command starts several API servers."""
    numbers = (value(given, name) for name in API_SERVER_FLAGS)
    number = next(filter(None, numbers), "1")
    if number.isdecimal() and int(number) <= 1:
        return [SERVER_MODULE, "--model", model]
    if not has_own_command():
        raise ConfigError(
            f"{API_SERVER_FLAGS[0]} {number} needs the command 'vllm', which the distribution "
            f"{CPU_DISTRIBUTION} breaks: leave the flag out"
        )
    return [OWN_COMMAND_MODULE, "serve", model]


def _check_given(extra: Sequence[str], given: Sequence[str], runner: ModelRunner) -> None:
    """Raise ConfigError if a flag is the plugin's, or if the plugin can't work with it.

    Args:
        extra: the user's flags.
        given: the same, with those of a configuration file.
    """
    _refuse(extra, OURS)
    _refuse(config_file(extra), [name for name in OURS if name not in PLACES])  # ours come later, and win
    check_executor(value(given, EXECUTOR_FLAG))
    for name in () if runner.is_v2 else PIPELINE_FLAGS:
        size = value(given, name)
        if size is not None and size.isdecimal():  # vLLM refuses anything else
            check_pipeline(int(size))


def _refuse(arguments: Sequence[str], refused: Sequence[str]) -> None:
    for flag in names(arguments):
        if flag.lstrip("-").startswith(SPECULATIVE_START) or any(is_meant(flag, name) for name in refused):
            raise ConfigError(
                f"{flag} {value(arguments, flag)!r} sets what agentspec sets itself: leave it out of vLLM's "
                "arguments, and use --max-draft, --draft-model and other options of agentspec serve --help"
            )


def _in_force(settings: Mapping[str, object] | None, command: Sequence[str]) -> PluginSettings:
    """Return these settings and, for the rest, those in the command. Raises ConfigError if one is invalid."""
    config = value(command, ADDITIONAL_CONFIG)
    try:
        given = json.loads(config or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ConfigError(f"{ADDITIONAL_CONFIG} is a JSON object, not {config!r}")
    in_config = given.get(CONFIG_KEY, {})
    PluginSettings.of(in_config)
    return PluginSettings.of({**in_config, **(settings or {})})
