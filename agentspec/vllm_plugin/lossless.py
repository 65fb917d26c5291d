"""The settings of vLLM's speculative decoding with which every output stays the model's own.

Some of vLLM's settings accept draft tokens that the model would not have produced: ``synthetic`` accepts at
given rates, ``fly`` (0.33) loosens the test. So only known settings are allowed. Does not import vLLM.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import Field, fields
from typing import Any

from agentspec.errors import ConfigError

# what is drafted, and how the drafter runs: the model verifies each draft token, whoever drafted it
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
# how draft tokens are accepted: the values with which the outputs are the model's
ACCEPTANCE: dict[str, Collection[object]] = {
    "rejection_sample_method": ("standard",),
    "draft_sample_method": ("greedy",),
}


def check_lossless(config: Any) -> None:
    """Raise ConfigError if a setting may change outputs, or isn't known and isn't at its default.

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
