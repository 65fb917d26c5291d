"""Novelty: how much of a finished output other engines need."""

from __future__ import annotations

from enum import Enum

from agentspec.corpus.memory import OutputMemory
from agentspec.corpus.output import Output

MOST_DRAFTED = 0.9  # of an output's tokens: beyond it, the trees of others draft it as well


class Novelty(Enum):
    """How an output is published."""

    WHOLE = "whole"
    COUNT = "count"  # its digest and its uses
    SKIP = "skip"


class NoveltyGate:
    """Decides how finished outputs are published.

    Args:
        memory: the outputs that other engines know.
        most_drafted: share of tokens that shared trees drafted and the model accepted, from which on an
            output is skipped.
    """

    def __init__(self, memory: OutputMemory, most_drafted: float = MOST_DRAFTED) -> None:
        self._memory = memory
        self._most_drafted = most_drafted

    def judge(self, output: Output, num_accepted_from_shared: int) -> Novelty:
        """Return how to publish an output, and remember it if it is to be published whole.

        An output with a subject is never skipped: an erasure must find it.
        """
        if self._memory.is_known(output):
            return Novelty.COUNT
        if not output.subject and num_accepted_from_shared >= self._most_drafted * len(output.tokens):
            self._memory.note(output.stage)
            return Novelty.SKIP
        self._memory.add(output)
        return Novelty.WHOLE
