"""The bounded queue between decode steps and the publisher's thread."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from agentspec.corpus.batch import Part
from agentspec.corpus.output import Output, Tokens
from agentspec.forest.sessions import session_hash
from agentspec.stages import StageKey

DroppedName = tuple[StageKey, bytes]  # and the subject

_MINUTE_S = 60
_UNCOUNTED = 16  # outputs that may wait without being counted
_LONG_TOKENS = 4096  # a longer output is counted at once
_ENTRY_BYTES = 400  # without tokens and session
_INTEGER_BYTES = 36  # of a token in a list


class FinishedOutput(NamedTuple):
    """An output, or a part of one, as it is put into the queue.

    Nothing is converted or checked on the path of an answer.

    Attributes:
        token_ids: int32 ``[n]``, or a sequence of integers.
        ended_s: when it ended, in seconds since 1970.
        num_accepted_from_shared: tokens that shared trees drafted and the model accepted.
        uses: how often it occurred.
        number: of an output of which parts were sent; -1: there were none.
        begin: the place of a part in its output; -1: it is a whole output.
        session: the run that it belongs to, by its name or its hash; an empty hash if there is none.
    """

    stage: StageKey
    token_ids: Tokens | Sequence[int]
    subject: bytes
    ended_s: float
    num_accepted_from_shared: int
    uses: int = 1
    number: int = -1
    begin: int = -1
    session: str | bytes = b""

    @property
    def is_part(self) -> bool:
        """True for tokens of an output that is being written."""
        return self.begin >= 0

    @property
    def part(self) -> Part:
        """The part, converted and checked. Raises as its constructor."""
        tokens = np.array(self.token_ids, "<i4").tobytes()
        return Part(self.stage.path, self.number, self.begin, tokens, self.subject)

    @property
    def output(self) -> Output:
        """The output, converted and checked. Raises as its constructor."""
        token_ids = self.token_ids
        tokens = token_ids if isinstance(token_ids, np.ndarray) else np.array(token_ids, np.int32)
        minute = int(self.ended_s) // _MINUTE_S
        session = self.session
        if isinstance(session, str):
            session = session_hash(self.stage.tenant, session)
        return Output(self.stage, tokens, self.subject, self.uses, minute, session)

    @property
    def num_bytes(self) -> int:
        """Its size, estimated."""
        other = _ENTRY_BYTES + sys.getsizeof(self.session)
        if isinstance(self.token_ids, np.ndarray):
            return self.token_ids.nbytes + other
        return _INTEGER_BYTES * len(self.token_ids) + other


# the members of a FinishedOutput: making one takes longer than all else on the path of an answer
Entry = tuple[StageKey, Tokens | Sequence[int], bytes, float, int, int, int, int, str | bytes]


class OutputQueue:
    """Finished outputs within a number of bytes: the oldest are dropped. Thread-safe.

    A writer is on the path of an answer. It appends to a deque without the lock. After every sixteenth
    output, or a long one, it takes the lock to count the bytes of the new ones.
    """

    __slots__ = (
        "_count_at",
        "_dropped",
        "_finished",
        "_is_awaited",
        "_lock",
        "_most_bytes",
        "_num_bytes",
        "_num_counted",
        "_num_dropped",
        "_woken",
    )

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()  # guards what follows but the deque
        self._woken = threading.Event()  # set only for a thread that waits: that takes longer than all else
        self._is_awaited = False
        self._finished: deque[Entry] = deque()
        self._num_counted = 0  # the oldest ones
        self._num_bytes = 0  # of these
        self._count_at = _UNCOUNTED  # outputs
        self._num_dropped = 0
        self._dropped: set[DroppedName] = set()

    def put(self, finished: Entry) -> None:
        """Add an output: the members of a :class:`FinishedOutput`, as any tuple."""
        self._finished.append(finished)
        if len(self._finished) >= self._count_at or len(finished[1]) > _LONG_TOKENS:
            self._count()
        if self._is_awaited:
            self._woken.set()

    def take(self) -> list[FinishedOutput]:
        """Remove and return all outputs."""
        with self._lock:
            taken = [self._finished.popleft() for _ in range(len(self._finished))]
            self._num_counted = self._num_bytes = 0
            self._count_at = _UNCOUNTED
        return [FinishedOutput(*entry) for entry in taken]

    def withdraw(self, is_covered: Callable[[StageKey, bytes], bool]) -> list[Output]:
        """Remove what an erasure covers, by stage and subject. Return the whole outputs among it."""
        kept: list[Entry] = []
        withdrawn: list[Output] = []
        for finished in self.take():
            if not is_covered(finished.stage, finished.subject):
                kept.append(finished)
            elif not finished.is_part:
                withdrawn.append(finished.output)
        self._put_back(kept)
        self.wake()
        return withdrawn

    def drop_parts(self) -> None:
        """Remove the parts: nobody can follow them now."""
        kept: list[Entry] = [finished for finished in self.take() if not finished.is_part]
        self._put_back(kept)

    def take_dropped(self) -> set[DroppedName]:
        """Return the stages and subjects of which outputs were dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, set()
        return dropped

    def wait(self, timeout_s: float) -> None:
        """Return once there is an output, or after the time-out. For one thread."""
        self._is_awaited = True  # before the look: a writer appends first (else the time-out ends the wait)
        if not self._finished:
            self._woken.wait(timeout_s)
        self._is_awaited = False
        self._woken.clear()

    def wake(self) -> None:
        """End a wait, or the next one."""
        self._woken.set()

    @property
    def num_dropped(self) -> int:
        """Count the outputs dropped for want of room."""
        return self._num_dropped

    def _put_back(self, kept: list[Entry]) -> None:
        with self._lock:  # writers may have counted new outputs meanwhile
            self._finished.extendleft(reversed(kept))
            self._num_counted = self._num_bytes = 0
        self._count()

    def _count(self) -> None:
        """Count the bytes of new outputs, and drop the oldest ones if there is no room."""
        with self._lock:
            waiting = len(self._finished)
            for number in range(self._num_counted, waiting):
                self._num_bytes += FinishedOutput(*self._finished[number]).num_bytes
            while self._num_bytes > self._most_bytes:
                waiting -= 1
                self._drop(FinishedOutput(*self._finished.popleft()))
            self._num_counted = waiting
            self._count_at = waiting + _UNCOUNTED

    def _drop(self, finished: FinishedOutput) -> None:
        self._num_bytes -= finished.num_bytes
        if not finished.is_part:
            self._num_dropped += 1
            self._dropped.add((finished.stage, finished.subject))
