"""Counting one answer: its tokens, and what speculation did for it."""

from __future__ import annotations

from typing import Any

from agentspec.draft import Source
from agentspec.generation import GenerationDelta
from agentspec.stats import SpeculationStats


class Tally:
    """Tokens over all prompts and choices of one answer."""

    def __init__(self) -> None:
        self._prompt_tokens: dict[int, int] = {}
        self._num_output_tokens = 0
        self._speculation: list[SpeculationStats] = []

    def add(self, prompt_index: int, delta: GenerationDelta) -> None:
        """Count one delta."""
        self._prompt_tokens[prompt_index] = delta.num_prompt_tokens
        self._num_output_tokens += len(delta.token_ids)
        if delta.speculation is not None:
            self._speculation.append(delta.speculation)

    def usage(self) -> dict[str, int]:
        """OpenAI's ``usage``."""
        num_prompt_tokens = sum(self._prompt_tokens.values())
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": self._num_output_tokens,
            "total_tokens": num_prompt_tokens + self._num_output_tokens,
        }

    def metrics(self) -> dict[str, Any]:
        """The body's ``metrics`` member, in vLLM's shape; empty unless there was exactly one choice."""
        if len(self._speculation) != 1:
            return {}
        return {"metrics": {"speculative_decoding": describe_speculation(self._speculation[0])}}


def describe_speculation(stats: SpeculationStats) -> dict[str, Any]:
    """vLLM's per-request figures, and ours by source.

    ``mean_acceptance_length`` is the mean number of output tokens per decode step.
    """
    steps, drafted, accepted = stats.num_steps, stats.num_draft_tokens, stats.num_accepted_tokens
    return {
        "num_spec_steps": steps,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "mean_acceptance_length": (steps + accepted) / steps if steps else 0.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "draft_tokens_by_source": _by_name(stats.drafted_by_source),
        "accepted_tokens_by_source": _by_name(stats.accepted_by_source),
    }


def _by_name(counts: dict[Source, int]) -> dict[str, int]:
    return {source.name.lower(): counts.get(source, 0) for source in Source if source is not Source.NONE}
