"""The way from the decoding thread to the event loops that wait for its deltas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentspec.engine.request import Item, LiveRequest


class Outbox:
    """Collects what a step has for its requests and hands it over at the step's end.

    One wake-up per event loop and step, however many requests took part: waking the loop for each
    would make both threads contend for the interpreter in the middle of a step. Used by one thread.
    """

    def __init__(self) -> None:
        self._posts: dict[asyncio.AbstractEventLoop, list[tuple[LiveRequest, Item]]] = {}

    def post(self, live: LiveRequest, item: Item) -> None:
        """Keep ``item`` for ``live`` until the next flush."""
        self._posts.setdefault(live.loop, []).append((live, item))

    def flush(self) -> None:
        """Deliver everything. A request is cancelled if its loop is closed: it has no reader."""
        posts, self._posts = self._posts, {}
        for loop, items in posts.items():
            try:
                loop.call_soon_threadsafe(_deliver, items)
            except RuntimeError:  # the loop is closed
                for live, _ in items:
                    live.is_cancelled = True


def _deliver(items: Sequence[tuple[LiveRequest, Item]]) -> None:
    for live, item in items:
        live.inbox.put_nowait(item)
