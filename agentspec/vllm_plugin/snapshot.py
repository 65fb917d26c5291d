"""The figures of a worker at one moment, for clients that must not hold up its decode steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any


class Snapshot:
    """The last figures as JSON. Read by one thread, which may not wait long.

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
        self._last: tuple[float, str] | None = None  # when the making began, the figures
        self._making: Future[None] | None = None

    def read(self, *, is_quick: bool) -> str:
        """Return the figures as a JSON object, with their age in seconds as ``age_s``.

        If ``is_quick``, they are made now. Otherwise these are the last ones, and another thread makes new
        ones for the next reading.

        Raises whatever ``make`` raised, in this thread or in the other one.
        """
        if self._making is not None and self._making.done():
            making, self._making = self._making, None
            making.result()
        if is_quick or self._last is None:
            self._renew()
        elif self._making is None:
            self._making = self._submit(self._renew)
        assert self._last is not None
        begun_s, figures = self._last
        return f'{{"age_s": {self._clock() - begun_s:.3f}, {figures[1:]}'

    def _renew(self) -> None:
        begin_s = self._clock()
        self._last = begin_s, json.dumps(self._make())
