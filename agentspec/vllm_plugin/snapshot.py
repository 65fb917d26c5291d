"""The figures of a worker at one moment, for clients that must not hold up its decode steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

MOST_PAUSE_S = 0.002  # a decode step on a GPU takes 4 ms or more


class Snapshot:
    """The last figures as JSON. Read by one thread, which may not wait long.

    Figures that are quickly made are made at every reading. Others are made by another thread, for the next
    reading: a reading then returns the last ones and their age.

    Args:
        make: returns the figures; runs in the reading thread or in another.
        submit: starts a call in another thread.
        clock: clock in seconds, from any start.
    """

    def __init__(
        self,
        make: Callable[[], Mapping[str, Any]],
        submit: Callable[[Callable[[], None]], Future[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._submit = submit
        self._clock = clock
        self._last = (0.0, 0.0, "{}")  # when the making began, its duration, the figures
        self._making: Future[None] | None = None

    def read(self) -> str:
        """Return the figures as a JSON object, with their age in seconds as ``age_s``.

        Raises whatever ``make`` raised, in this thread or in the other one.
        """
        if self._making is not None and self._making.done():
            making, self._making = self._making, None
            making.result()
        if self._making is None:
            _, duration_s, _ = self._last
            if duration_s <= MOST_PAUSE_S:
                self._renew()
            else:
                self._making = self._submit(self._renew)
        begun_s, _, figures = self._last
        return f'{{"age_s": {self._clock() - begun_s:.3f}, {figures[1:]}'

    def _renew(self) -> None:
        begin_s = self._clock()
        figures = json.dumps(self._make())
        self._last = begin_s, self._clock() - begin_s, figures
