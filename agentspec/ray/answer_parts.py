"""An answer between two processes: what an engine replica sends to a gateway."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple, TypeAlias

from agentspec.gateway.http.api_response import RawHeaders, ResponseWriter


class AnswerHead(NamedTuple):
    """The first part of an answer."""

    status: int
    headers: list[tuple[bytes, bytes]]


class AnswerBody(NamedTuple):
    """A later part: bytes of the body. An answer without a last part broke off."""

    content: bytes
    is_last: bool


AnswerPart: TypeAlias = AnswerHead | AnswerBody


class AnswerParts(ResponseWriter):
    """A response writer with the parts of the answer as an iterator. Use it in one event loop.

    Bytes that are written before the reader takes them become one part.
    """

    def __init__(self) -> None:
        super().__init__()
        self._head: AnswerHead | None = None
        self._body: deque[bytes] = deque()
        self._is_closed = False
        self._changed = asyncio.Event()

    def start(self, status: int, headers: RawHeaders) -> None:
        """See :class:`ResponseWriter`."""
        self.status = status
        self._head = AnswerHead(status, [*headers, *self.headers])
        self._changed.set()

    def write(self, part: bytes) -> None:
        """See :class:`ResponseWriter`."""
        self._body.append(part)
        self._changed.set()

    def end(self) -> None:
        """See :class:`ResponseWriter`."""
        self.is_complete = True
        self._changed.set()

    def close(self) -> None:
        """End the iterator after the parts that were written."""
        self._is_closed = True
        self._changed.set()

    @property
    def is_full(self) -> bool:
        """Always False: Ray takes each part immediately."""
        return False

    async def drain(self) -> None:
        """Return immediately: nothing is ever full."""

    async def __aiter__(self) -> AsyncIterator[AnswerPart]:
        """Yield the parts while they are written, until :meth:`close`."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            is_closed = self._is_closed
            if self._head is not None:
                yield self._head
                self._head = None
            if self._body or self.is_complete:
                body = AnswerBody(b"".join(self._body), self.is_complete)
                self._body.clear()
                yield body
                if body.is_last:
                    return
            if is_closed:
                return
