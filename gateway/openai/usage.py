"""Token and speculation counts of one answer."""

from __future__ import annotations

from typing import Any

from agentspec.draft import Source, reported
from agentspec.generation import GenerationDelta, TracedStep
from agentspec.stats import SpeculationStats


class AnswerUsage:
    """Counts over all prompts and choices of one answer."""

    def __init__(self) -> None:
        self._prompt_tokens: dict[int, int] = {}
        self._num_output_tokens = 0
        self._speculation: list[SpeculationStats] = []
        self._trace: tuple[TracedStep, ...] = ()

    def add(self, prompt_index: int, delta: GenerationDelta) -> None:
        """Count one delta."""
        self._prompt_tokens[prompt_index] = delta.num_prompt_tokens
        self._num_output_tokens += len(delta.token_ids)
        if delta.speculation is not None:
            self._speculation.append(delta.speculation)
            self._trace = delta.trace

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens in all prompts."""
        return sum(self._prompt_tokens.values())

    def usage(self) -> dict[str, int]:
        """Return ``usage`` in the form of OpenAI's completions."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self._num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self._num_output_tokens,
        }

    def responses_usage(self) -> dict[str, Any]:
        """Return ``usage`` in the form of OpenAI's responses. Cached and reasoning tokens are always 0."""
        return {
            "input_tokens": self.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self._num_output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.num_prompt_tokens + self._num_output_tokens,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the body's ``metrics`` member in vLLM's form; empty unless there was exactly one choice."""
        if len(self._speculation) != 1:
            return {}
        figures = describe_speculation(self._speculation[0])
        if self._trace:
            figures["steps"] = [step.describe() for step in self._trace]
        return {"metrics": {"speculative_decoding": figures}}


def describe_speculation(stats: SpeculationStats) -> dict[str, Any]:
    """Return vLLM's per-request figures, extended by counts per source.

    ``mean_acceptance_length`` is the number of output tokens after the first one, per decode step.
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
    return {source.name.lower(): counts.get(source, 0) for source in reported(counts)}
