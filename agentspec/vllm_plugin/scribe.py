"""What a step leaves to do that nobody waits for: outputs go into the shared trees, counters move.

A step has to know what a request wrote to draft for it; that others may draft from it can wait until the next
forward pass. So the requests that draft only read the shared trees, and each that is learned has a twin that
only writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from agentspec.config import DraftConfig
from agentspec.draft import Source
from agentspec.forest import Forest, Tokens
from agentspec.vllm_plugin.live import LiveRequest

logger = logging.getLogger(__name__)

# a request, what a step gave it, the draft tokens that were verified in it and where they came from
Gain = tuple[LiveRequest, int, int, Source]

_NO_TOKENS: Tokens = np.empty(0, np.int32)
_NO_DRAFTS = DraftConfig(mode="off")


class Scribe:
    """Writes in a thread of its own: calls return at once, and happen in order.

    What fails there is logged and not learned.
    """

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._thread = ThreadPoolExecutor(1, "agentspec-scribe")
        # the thread's own: twins by their requests, and when these got their first and last token
        self._twins: dict[str, str] = {}
        self._times_s: dict[str, tuple[float, float]] = {}

    def start(self, live: LiveRequest) -> None:
        """From now on write what this request writes, if it is to be learned."""
        if live.tags.learn:
            self._later(self._start, live)

    def write(self, now_s: float, gains: Sequence[Gain], updates: Sequence[tuple[str, Tokens]]) -> None:
        """What a step gave each request; the arrays are copied."""
        tokens = np.concatenate([new for _, new in updates]) if updates else _NO_TOKENS
        ends = [(name, len(new)) for name, new in updates]
        self._later(self._write, now_s, gains, ends, tokens)

    def finish(self, live: LiveRequest) -> None:
        """The request is over; what it wrote stays."""
        self._later(self._finish, live)

    def settle(self) -> None:
        """Return when all that was told so far is in the trees and the counters."""
        self._thread.submit(int).result()

    def close(self) -> None:
        """Settle, and end the thread."""
        self._thread.shutdown(wait=True)

    def _start(self, live: LiveRequest) -> None:
        twin = f"{live.name}+"
        tags = live.tags
        self._forest.start(twin, tags.trees, _NO_TOKENS, session=tags.session, draft=_NO_DRAFTS)
        self._twins[live.name] = twin

    def _write(
        self, now_s: float, gains: Sequence[Gain], ends: Sequence[tuple[str, int]], tokens: Tokens
    ) -> None:
        for live, num_sampled, num_verified, source in gains:
            self._count(live, num_sampled, num_verified, source, now_s)
        updates, begin = [], 0
        for name, num_tokens in ends:
            if twin := self._twins.get(name):
                updates.append((twin, tokens[begin : begin + num_tokens]))
            begin += num_tokens
        self._forest.step(updates, 0)

    def _count(
        self, live: LiveRequest, num_sampled: int, num_verified: int, source: Source, now_s: float
    ) -> None:
        live.counters.num_output_tokens += num_sampled
        if live.name in self._times_s:
            # without a source it was padded by vLLM
            live.counters.count_step(source, num_verified if source else 0, num_sampled - 1)
        first_s, _ = self._times_s.get(live.name, (now_s, now_s))
        self._times_s[live.name] = first_s, now_s

    def _finish(self, live: LiveRequest) -> None:
        first_s, last_s = self._times_s.pop(live.name, (0.0, 0.0))
        live.counters.decode_s += last_s - first_s
        if twin := self._twins.pop(live.name, None):
            self._forest.finish(twin)

    def _later(self, call: Callable[..., None], *arguments: object) -> None:
        self._thread.submit(_logged, call, *arguments)


def _logged(call: Callable[..., None], *arguments: object) -> None:
    try:
        call(*arguments)
    except Exception:
        logger.exception("a step was not counted, or not learned")
