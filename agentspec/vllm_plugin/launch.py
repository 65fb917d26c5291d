"""A vLLM server with the plug-in: its model runner, command line and environment. Does not import vLLM."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.config import OWN_HEADS, check_int
from agentspec.distribution import DOCUMENTS
from agentspec.errors import ConfigError
from agentspec.vllm_plugin.arguments import config_file, expanded, is_meant, names, value
from agentspec.vllm_plugin.checks import (
    CPU_DISTRIBUTION,
    INSTALL,
    check_draft_length,
    check_executor,
    check_pipeline,
    check_version,
    has_own_command,
    installed_version,
    is_for_cpus,
)
from agentspec.vllm_plugin.control import TOKEN_VARIABLE
from agentspec.vllm_plugin.settings import CONFIG_KEY, SETTINGS_VARIABLE, PluginSettings
from agentspec.wire import MAX_DRAFT_TOKENS

SERVER_MODULE = "vllm.entrypoints.openai.api_server"
OWN_COMMAND_MODULE = "vllm.entrypoints.cli.main"  # of the command ``vllm``
DEFAULT_MAX_DRAFT = 15  # 1 + K is a power of two, as are the sizes that vLLM captures CUDA graphs for
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
V1_METHOD, V2_METHOD = "custom_class", "ngram_gpu"  # vLLM runs the second one with asynchronous scheduling
MODEL_METHODS = ("eagle", "eagle3", "mtp", "draft_model")  # can run together with the trees
# features that the runner V2 refuses (VllmConfig._get_v2_model_runner_unsupported_features)
REFUSED_FLAGS = ("--enable-dbo", "--ubatch-size")
_OFF = ("0", "false", "off", "no")
PROPOSER = "agentspec.vllm_plugin.v1.proposer.ForestProposer"
SCHEDULER = "agentspec.vllm_plugin.scheduler.ForestScheduler"
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
SPECULATIVE_START = "spec"  # prefix of all flags that change vLLM's speculative settings
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


def asks_for_v2(environment: Mapping[str, str]) -> bool | None:
    """Return the user's choice of the runner; None if these variables leave it open."""
    wish = environment.get(RUNNER_VARIABLE)
    return None if wish is None else wish.strip().lower() not in _OFF


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """A choice of model runner.

    Attributes:
        is_v2: V2, otherwise V1.
        reason: why it is V1; None with V2.
    """

    is_v2: bool
    reason: str | None = None

    @classmethod
    def choose(
        cls,
        environment: Mapping[str, str],
        flags: Collection[str],
        *,
        is_for_cpus: bool,
        recomputes_failed_loads: bool = False,
    ) -> ModelRunner:
        """Return the runner for a server with these variables and flags.

        Args:
            flags: names of the user's flags, such as ``--enable-dbo``.
            is_for_cpus: this vLLM was built for CPUs.
            recomputes_failed_loads: True if vLLM recomputes blocks of the KV cache that it can't load. V2
                (0.32) does
                    not: it keeps its own count of computed tokens, and continues without the lost blocks.
        """
        wish = asks_for_v2(environment)
        if wish is not None:
            return cls(wish, None if wish else f"{RUNNER_VARIABLE}={environment[RUNNER_VARIABLE]}")
        if is_for_cpus:
            return cls(False, "vLLM's build for CPUs has no Triton")
        if recomputes_failed_loads:
            return cls(False, "its runner V2 does not recompute after a failed load of the KV cache")
        refused = next((flag for flag in REFUSED_FLAGS if flag in flags), None)
        return cls(refused is None, None if refused is None else f"its runner V2 does not support {refused}")

    @property
    def name(self) -> str:
        """``V1`` or ``V2``."""
        return "V2" if self.is_v2 else "V1"

    def check_is_v2(self, setting: str) -> None:
        """Raise ConfigError if the runner is V1, on which the setting has no effect."""
        if not self.is_v2:
            reason = f" ({self.reason})" if self.reason else ""
            raise ConfigError(f"{setting} needs vLLM's model runner V2, not {self.name}{reason}")

    def speculative_config(
        self,
        num_speculative_tokens: int,
        *,
        draft_model: str | None = None,
        adaptive_verification: bool = False,
    ) -> dict[str, Any]:
        """Return the value of ``--speculative-config``.

        Args:
            num_speculative_tokens: most draft tokens of a request in a step.
            draft_model: folder or name of a draft model, which drafts as well as the trees, or ``OWN_HEADS``.
            adaptive_verification: see :class:`PluginSettings`.

        Raises:
            ConfigError: the runner has no adaptive verification, or can't combine it with a draft model.
        """
        if draft_model is not None:
            self.check_is_v2("draft_model")
            if adaptive_verification:
                raise ConfigError("adaptive_verification can't be used with a draft model")
            return {**_drafting(draft_model), "num_speculative_tokens": num_speculative_tokens}
        if adaptive_verification:
            self.check_is_v2("adaptive_verification")
        if not self.is_v2:
            return {
                "method": V1_METHOD,
                "model": PROPOSER,
                "num_speculative_tokens": num_speculative_tokens,
            }
        config = {
            "method": V2_METHOD,
            "num_speculative_tokens": num_speculative_tokens,
            "prompt_lookup_min": 2,  # not used, but vLLM requires both
            "prompt_lookup_max": 4,
        }
        return {**config, "enable_adaptive_verification": True} if adaptive_verification else config


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
    runner = chosen_runner(extra, environment)
    _check_given(extra, given, runner)
    speculative = runner.speculative_config(
        num_speculative_tokens,
        draft_model=draft_model,
        adaptive_verification=checked.adaptive_verification,
    )
    middleware = [CONTROL, *([ZERO_HOP] if zero_hop else [])]
    defaults = {"--per-request-spec-decode-metrics": "summary"}
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
    given = expanded(extra)
    return ModelRunner.choose(
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
    _refuse(config_file(extra), [name for name in OURS if name not in PLACES])  # later flags win
    check_executor(value(given, EXECUTOR_FLAG))
    for name in () if runner.is_v2 else PIPELINE_FLAGS:
        size = value(given, name)
        if size is not None and size.isdecimal():  # vLLM reports any other value
            check_pipeline(int(size))


def _refuse(arguments: Sequence[str], refused: Sequence[str]) -> None:
    for flag in names(arguments):
        if flag.lstrip("-").startswith(SPECULATIVE_START) or any(is_meant(flag, name) for name in refused):
            raise ConfigError(
                f"{flag} {value(arguments, flag)!r} sets what agentspec sets itself: leave it out of vLLM's "
                "arguments, and use --max-draft, --draft-model and others of agentspec serve --help-all"
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


def _drafting(draft_model: str) -> dict[str, Any]:
    """Return vLLM's settings for a draft model. vLLM detects the kind of other models."""
    if draft_model == OWN_HEADS:
        return {"method": OWN_HEADS}
    try:
        config = json.loads((Path(draft_model) / "config.json").read_text())
    except (OSError, ValueError):  # a name that vLLM downloads; otherwise vLLM reports the error
        return {"model": draft_model}
    names = config.get("architectures") if isinstance(config, dict) else None
    kinds = {"Eagle3": "eagle3", "Eagle": "eagle"}
    method = next((kinds[kind] for kind in kinds if any(kind in str(name) for name in names or ())), None)
    return {"model": draft_model} if method is None else {"method": method, "model": draft_model}
