"""Traces of the last traced requests: the draft of each decode step, and the accepted tokens.

Traces store token ids, which are converted to texts on request. A tenant can read only traces of its own
requests, an operator all traces.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentspec.draft import Source
from agentspec.forest import Tokens
from agentspec.generation import MAX_TRACED_STEPS, TracedStep

MAX_TRACES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One decode step: a chain of draft tokens, the number of accepted ones, and the model's own token."""

    source: Source
    draft: Tokens
    num_accepted: int
    own: int | None

    @property
    def num_tokens(self) -> int:
        """Number of output tokens of the step."""
        return self.num_accepted + (self.own is not None)

    def as_texts(self, text: Callable[[int], str]) -> TracedStep:
        """Return the step as texts; ``text`` converts one token."""
        return TracedStep(
            source=self.source,
            texts=tuple(map(text, self.draft.tolist())),
            parents=tuple(range(-1, len(self.draft) - 1)),
            accepted=tuple(range(self.num_accepted)),
            own_text=None if self.own is None else text(self.own),
        )


class Trace:
    """The first ``MAX_TRACED_STEPS`` steps of one request. Written by one thread at a time, read by any."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(self, source: Source, draft: Sequence[int], sampled: Sequence[int], num_kept: int) -> None:
        """Add a step. The first ``num_kept`` sampled tokens are part of the output.

        Args:
            draft: the draft tokens that the step verified.
            sampled: the step's tokens, ending with the model's own.
        """
        if not num_kept or len(self.steps) >= MAX_TRACED_STEPS:
            return
        own = sampled[-1] if num_kept == len(sampled) else None
        num_accepted = min(num_kept, len(sampled) - 1)
        self.steps.append(Step(source, np.array(draft, np.int32), num_accepted, own))

    def cut(self, num_tokens: int) -> None:
        """Drop the steps after the output's first ``num_tokens`` tokens."""
        kept: list[Step] = []
        for step in self.steps:
            if num_tokens <= 0:
                break
            kept.append(
                step if step.num_tokens <= num_tokens else replace(step, num_accepted=num_tokens, own=None)
            )
            num_tokens -= step.num_tokens
        self.steps = kept


class Traces:
    """The traces of the last ``MAX_TRACES`` traced requests. Thread-safe.

    Attributes:
        live: traces of running requests, by vLLM's request id. For one thread.
    """

    def __init__(self) -> None:
        self.live: dict[str, Trace] = {}
        self._kept: dict[tuple[str, str], Trace] = {}  # by tenant and id, oldest first
        self._keeping = threading.Lock()

    def begin(self, name: str, tenant: str, trace_id: str, *, is_held: bool = False) -> Trace:
        """Trace a request from its first step on. Replaces an earlier trace with the same id.

        With ``is_held`` the trace reads as empty until :meth:`keep` is called for it.
        """
        trace = self.live[name] = Trace()
        self.keep(tenant, trace_id, Trace() if is_held else trace)
        return trace

    def keep(self, tenant: str, trace_id: str, trace: Trace) -> None:
        """Make a trace readable from now on."""
        with self._keeping:
            self._kept.pop((tenant, trace_id), None)
            self._kept[tenant, trace_id] = trace
            if len(self._kept) > MAX_TRACES:
                del self._kept[next(iter(self._kept))]

    def end(self, name: str) -> Trace | None:
        """End a request. Return its trace, which stays readable; None without one."""
        return self.live.pop(name, None)

    def drop(self, name: str) -> None:
        """Drop the trace of a live request, if there is one."""
        trace = self.live.pop(name, None)
        if trace is not None:
            self.forget(trace)

    def forget(self, trace: Trace) -> None:
        """Drop a trace."""
        with self._keeping:
            self._kept = {key: one for key, one in self._kept.items() if one is not trace}

    def of(self, tenant: str | None, trace_id: str) -> Trace | None:
        """Return the trace of the tenant's last request with this id. Tenant None, an operator, reads any."""
        if tenant is not None:
            return self._kept.get((tenant, trace_id))
        found = [trace for (_, known), trace in list(self._kept.items()) if known == trace_id]
        return found[-1] if found else None
