"""Hints about the longest draft, for the log at the start of a worker. Does not import vLLM."""

from __future__ import annotations

from agentspec.vllm_plugin.versions import FIRST_WITH_FULL_BITMASKS

MOST_HYBRID_DRAFT = 7
MOST_MASKED_DRAFT = 15
_EXAMPLE_REQUESTS = 64


def advice(
    version: tuple[int, int],
    num_draft_tokens: int,
    *,
    is_hybrid: bool,
    vocab_size: int,
    num_workers: int,
) -> list[str]:
    """Return sentences about a longest draft that is too long for this model or server.

    Args:
        version: vLLM's.
        num_draft_tokens: most draft tokens of a request in a step.
        is_hybrid: True for a model with recurrent layers, vLLM's ``model_config.is_hybrid``.
        vocab_size: number of logits of a token.
        num_workers: worker processes of one engine, its tensor-parallel size.
    """
    found = []
    if is_hybrid and num_draft_tokens > MOST_HYBRID_DRAFT:
        found.append(
            f"this model has recurrent layers, and vLLM keeps {recurrent_states(num_draft_tokens)} states of "
            f"them for each request: set --max-draft (num_speculative_tokens) to {MOST_HYBRID_DRAFT} or less"
        )
    if version >= FIRST_WITH_FULL_BITMASKS and num_workers > 1 and num_draft_tokens > MOST_MASKED_DRAFT:
        mib = bitmask_bytes(_EXAMPLE_REQUESTS, num_draft_tokens, vocab_size) / (1 << 20)
        found.append(
            f"for structured output vLLM sends each worker {mib:.0f} MiB a step at {_EXAMPLE_REQUESTS} "
            f"requests: --max-draft {MOST_MASKED_DRAFT} (num_speculative_tokens) or less is faster"
        )
    return found


def recurrent_states(num_draft_tokens: int) -> int:
    """Return the recurrent states that vLLM keeps for a request, to continue after any draft token."""
    return 1 + num_draft_tokens


def bitmask_bytes(num_requests: int, num_draft_tokens: int, vocab_size: int) -> int:
    """Return the bytes of a step's masks of structured output, however short its drafts are.

    One row per draft token and one more, a bit per word of the vocabulary, in int32.
    """
    return num_requests * (1 + num_draft_tokens) * 4 * -(-vocab_size // 32)
