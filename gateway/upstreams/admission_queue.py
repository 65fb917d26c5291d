"""Requests that wait until an engine has room: first come, first served, and no more than so many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentspec.errors import AgentSpecError
from agentspec.gateway.errors import QueueFullError, QueueTimeoutError

Place = TypeVar("Place")


@dataclass(slots=True, eq=False)
class _Waiter(Generic[Place]):
    kind: Hashable
    take: Callable[[], Place | None]
    served: asyncio.Future[Place]


class AdmissionQueue(Generic[Place]):
    """A bounded FIFO line in front of whatever has room or has not.

    Args:
        max_waiting: whoever comes when so many wait is refused.
        timeout_s: whoever waited so long is refused too.
    """

    def __init__(self, max_waiting: int, timeout_s: float) -> None:
        self.max_waiting = max_waiting
        self.timeout_s = timeout_s
        self._waiters: dict[_Waiter[Place], None] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    async def enter(
        self, kind: Hashable, take: Callable[[], Place | None], leave: Callable[[Place], None]
    ) -> Place:
        """Wait until ``take`` gives a place: now, if nobody waits already, or at a ``move``.

        Args:
            kind: where one is not given a place, others of its kind behind it are not either.
            leave: gives a place back, if whoever waited for it has left in the moment in which it came.

        Raises:
            QueueFullError, QueueTimeoutError, and what ``take`` raises
        """
        if not self._waiters and (place := take()) is not None:
            return place
        if len(self._waiters) >= self.max_waiting:
            raise QueueFullError(f"all engines are busy and {len(self._waiters)} requests wait already")
        waiter = _Waiter(kind, take, asyncio.get_running_loop().create_future())
        self._waiters[waiter] = None
        self.move()  # who waits may wait for another engine than the one that has room
        try:
            async with asyncio.timeout(self.timeout_s):
                return await asyncio.shield(waiter.served)
        except BaseException as error:
            if waiter.served.done() and waiter.served.exception() is None:
                leave(waiter.served.result())
            if isinstance(error, TimeoutError):
                raise QueueTimeoutError(f"no engine had room within {self.timeout_s:g} s") from None
            raise
        finally:
            self._waiters.pop(waiter, None)

    def move(self) -> None:
        """Something has changed: serve whoever can be served now, in order."""
        refused: set[Hashable] = set()
        for waiter in list(self._waiters):
            if waiter.kind in refused:
                continue
            try:
                place = waiter.take()
            except AgentSpecError as error:
                del self._waiters[waiter]
                waiter.served.set_exception(error)
                continue
            if place is None:
                refused.add(waiter.kind)
            else:
                del self._waiters[waiter]
                waiter.served.set_result(place)
