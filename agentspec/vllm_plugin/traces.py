"""Traces of the last traced requests: the draft of each decode step, and the accepted tokens.

They store token ids, which are converted to texts on request. A tenant finds only the traces of its own
requests, an operator finds all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from agentspec.draft import Source
from agentspec.forest import RowCounts, Tokens
from agentspec.generation import MAX_TRACED_STEPS, TracedStep

MAX_TRACES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One decode step: a chain of draft tokens, the number of accepted ones, and the model's own token."""

    source: Source
    draft: Tokens
    num_accepted: int
    own: int | None

    def told(self, text: Callable[[int], str]) -> TracedStep:
        """Return the step as texts; ``text`` converts one token."""
        return TracedStep(
            source=self.source,
            texts=tuple(map(text, self.draft.tolist())),
            parents=tuple(range(-1, len(self.draft) - 1)),
            accepted=tuple(range(self.num_accepted)),
            own_text=None if self.own is None else text(self.own),
        )


class Trace:
    """The first ``MAX_TRACED_STEPS`` steps of one request. Written under a lock, read without one."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._num_kept = 0  # output tokens since the last noted step
        self._source = Source.NONE

    def count(self, counts: RowCounts) -> None:
        """Add the counts of the request's row: its output tokens, and the source of its draft."""
        self._num_kept += counts.num_output_tokens
        if counts.num_drafts:
            self._source = max(Source, key=counts.drafted.__getitem__)

    def note(self, draft: Sequence[int], sampled: Sequence[int]) -> None:
        """Add the counted step, which verified ``draft`` and sampled ``sampled``, its own token last.

        Raises:
            ValueError: more tokens were counted than sampled: a step was missed.
        """
        num_kept, source = self._num_kept, self._source
        self._num_kept, self._source = 0, Source.NONE
        if num_kept > len(sampled):
            raise ValueError(f"{num_kept} tokens were counted in a step that sampled {len(sampled)}")
        self.add(source, draft, sampled, num_kept)

    def add(self, source: Source, draft: Sequence[int], sampled: Sequence[int], num_kept: int) -> None:
        """Add a step, of whose sampled tokens ``num_kept`` are before the end of the output."""
        if not num_kept or len(self.steps) >= MAX_TRACED_STEPS:
            return
        own = sampled[-1] if num_kept == len(sampled) else None
        num_accepted = min(num_kept, len(sampled) - 1)
        self.steps.append(Step(source, np.array(draft, np.int32), num_accepted, own))


class Traces:
    """The traces of the last ``MAX_TRACES`` traced requests. Written by one thread, read by any thread.

    Attributes:
        live: traces of running requests, by vLLM's request id.
    """

    def __init__(self) -> None:
        self.live: dict[str, Trace] = {}
        self._kept: dict[tuple[str, str], Trace] = {}  # by tenant and id, oldest first

    def begin(self, name: str, tenant: str, trace_id: str) -> Trace:
        """Trace a request from its first step on. Replaces an earlier trace with the same id."""
        self._kept.pop((tenant, trace_id), None)
        trace = self.live[name] = self._kept[tenant, trace_id] = Trace()
        if len(self._kept) > MAX_TRACES:
            del self._kept[next(iter(self._kept))]
        return trace

    def end(self, name: str) -> None:
        """End a request. Its trace can still be read."""
        self.live.pop(name, None)

    def drop(self, name: str) -> None:
        """Forget the trace of a live request, if there is one."""
        trace = self.live.pop(name, None)
        self._kept = {key: one for key, one in self._kept.items() if one is not trace}

    def of(self, tenant: str | None, trace_id: str) -> Trace | None:
        """Return the trace of the tenant's last request with this id. Tenant None, an operator, finds any."""
        if tenant is not None:
            return self._kept.get((tenant, trace_id))
        found = [trace for (_, known), trace in list(self._kept.items()) if known == trace_id]
        return found[-1] if found else None
