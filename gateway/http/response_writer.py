"""Writing a response below ASGI.

Our own server writes each part to the socket in the call that delivers it (``request_cycle``): no task, no
message and no copy in between. Behind any other ASGI server, :class:`AsgiResponseWriter` sends messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from starlette.types import Message, Scope, Send

WRITER_KEY = "agentspec.writer"
BODILESS_STATUSES = frozenset((204, 304))
RawHeader = tuple[bytes, bytes]
RawHeaders = Iterable[RawHeader]


class ResponseWriter(ABC):
    """``start``, ``write`` as often as there is something, ``end``; ``drain`` whenever it ``is_full``.

    Attributes:
        headers: added to whatever answer it becomes. Names in lower case.
        status: of the answer; 0 before it is started.
        is_complete: nothing follows.
        tells_of_leaving: ``on_disconnect`` will be called; else somebody has to receive.
        on_lost: called when the client has left before the answer was complete.
        is_client_known: it needs no key here, or has a valid one.
    """

    is_client_known = False
    reports_disconnect = False
    on_disconnect: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.headers: list[RawHeader] = []
        self.status = 0
        self.is_complete = False

    @abstractmethod
    def start(self, status: int, headers: RawHeaders) -> None:
        """Status and headers, whose names are in lower case."""

    @abstractmethod
    def write(self, part: bytes) -> None:
        """The next bytes of the body; at least one."""

    @abstractmethod
    def end(self) -> None:
        """Nothing follows."""

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """The client does not keep up: what is written now waits here."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until the client has taken what waits."""

    async def send(self, message: Message) -> None:
        """The same as ASGI has it, for an application."""
        if message["type"] == "http.response.start":
            self.start(message["status"], message.get("headers", ()))
        else:
            if body := message.get("body", b""):
                self.write(bytes(body))
            if not message.get("more_body", False):
                self.end()
        if self.is_full:
            await self.drain()


class AsgiResponseWriter(ResponseWriter):
    """Through another server's ``send``."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send
        self._messages: list[dict[str, Any]] = []

    def start(self, status: int, headers: RawHeaders) -> None:
        """See :class:`ResponseWriter`."""
        self.status = status
        all_headers = [*headers, *self.headers]
        self._messages.append({"type": "http.response.start", "status": status, "headers": all_headers})

    def write(self, part: bytes) -> None:
        """See :class:`ResponseWriter`."""
        self._messages.append({"type": "http.response.body", "body": part, "more_body": True})

    def end(self) -> None:
        """See :class:`ResponseWriter`."""
        self.is_complete = True
        self._messages.append({"type": "http.response.body", "body": b""})

    @property
    def is_full(self) -> bool:
        """Always: nothing is sent but by ``drain``."""
        return True

    async def drain(self) -> None:
        """See :class:`ResponseWriter`."""
        while self._messages:
            await self._send(self._messages.pop(0))


def writer_of(scope: Scope, send: Send) -> ResponseWriter:
    """The one of this request."""
    known: ResponseWriter | None = scope.get(WRITER_KEY)
    if known is None:
        known = scope[WRITER_KEY] = AsgiResponseWriter(send)
    return known
