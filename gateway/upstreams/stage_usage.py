"""Counters per stage for an engine behind HTTP: what the gateway itself sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentspec.draft import Source
from agentspec.stages import StageKey
from agentspec.stats import MAX_STAGES, StageStats, StageTable

# in messages, tokens of a cache are counted apart; in responses they are among the input_tokens
INPUT_NAMES = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class StageLedger:
    """Adds up answers."""

    def __init__(self, max_stages: int = MAX_STAGES) -> None:
        self._stages = StageTable(max_stages)

    @property
    def stats(self) -> Mapping[StageKey, StageStats]:
        """The counters so far."""
        return self._stages.all

    def count_request(self, stage: StageKey) -> None:
        """A request was forwarded."""
        self._stages.of(stage).num_requests += 1

    def count_answer(self, stage: StageKey, payload: Mapping[str, Any]) -> None:
        """Add the ``usage`` and ``metrics.speculative_decoding`` of an answer, as far as it has them.

        The names in ``usage`` may be those of completions, of responses or of messages.
        """
        stats = self._stages.of(stage)
        num_output = num_output_tokens(payload)
        stats.num_prompt_tokens += num_input_tokens(payload)
        stats.num_output_tokens += num_output
        figures = _member(_member(payload, "metrics"), "speculative_decoding")
        num_accepted = _count(figures, "num_accepted_draft_tokens")
        if figures:
            # vLLM's num_spec_steps are those with a draft; each step adds one token to the accepted ones, and
            # the first token comes before any step
            num_steps = num_output - 1 - num_accepted
            stats.num_steps += max(num_steps, _count(figures, "num_spec_steps"))
        stats.num_draft_tokens += _count(figures, "num_draft_tokens")
        stats.num_accepted_tokens += num_accepted
        _add(stats.drafted_by_source, _member(figures, "draft_tokens_by_source"))
        _add(stats.accepted_by_source, _member(figures, "accepted_tokens_by_source"))


def num_input_tokens(payload: Mapping[str, Any]) -> int:
    """Of the ``usage`` of an answer, whichever API's it is; 0 if it does not tell."""
    usage = _member(payload, "usage")
    return _count(usage, "prompt_tokens") or sum(_count(usage, name) for name in INPUT_NAMES)


def num_output_tokens(payload: Mapping[str, Any]) -> int:
    """As ``num_input_tokens``, of what was written."""
    usage = _member(payload, "usage")
    return _count(usage, "completion_tokens") or _count(usage, "output_tokens")


def _member(payload: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    member = payload.get(name)
    return member if isinstance(member, dict) else {}


def _count(payload: Mapping[str, Any], name: str) -> int:
    value = payload.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _add(total: dict[Source, int], counts: Mapping[str, Any]) -> None:
    for source in Source if counts else ():
        if num := _count(counts, source.name.lower()):
            total[source] = total.get(source, 0) + num
