"""A bounded FIFO queue of requests that wait for an engine with room."""

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
    """A bounded FIFO queue in front of places with limited room.

    Args:
        max_waiting: largest number of waiters; a further one is refused.
        timeout_s: seconds after which a waiter is refused.
    """

    def __init__(self, max_waiting: int, timeout_s: float) -> None:
        self.max_waiting = max_waiting
        self.timeout_s = timeout_s
        self._waiters: dict[_Waiter[Place], None] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    async def acquire(
        self, kind: Hashable, take: Callable[[], Place | None], leave: Callable[[Place], None]
    ) -> Place:
        """Wait until ``take`` returns a place: immediately if the queue is empty, or at a ``move``.

        Args:
            kind: group of the waiter. If ``take`` returns None for one waiter, ``move`` skips the later ones
                of its kind.
            leave: returns a place, if the waiter left at the moment in which it was served.

        Raises:
            QueueFullError, QueueTimeoutError, and any error of ``take``
        """
        if not self._waiters and (place := take()) is not None:
            return place
        if len(self._waiters) >= self.max_waiting:
            raise QueueFullError(f"all engines are busy and {len(self._waiters)} requests wait already")
        waiter = _Waiter(kind, take, asyncio.get_running_loop().create_future())
        self._waiters[waiter] = None
        self.notify()  # earlier waiters may be waiting for other engines than the one with room
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

    def notify(self) -> None:
        """Serve every waiter for which there is room now, in order. Call after each change."""
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
