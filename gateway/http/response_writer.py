"""Writing a response below ASGI.

Our own server writes each part to the socket in the call that delivers it (``request_cycle``): no task, no
message and no copy in between. Behind any other ASGI server, :class:`AsgiResponseWriter` sends messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from starlette.types import Message, Send

BODILESS_STATUSES = frozenset((204, 304))
RawHeader = tuple[bytes, bytes]
RawHeaders = Iterable[RawHeader]


class ResponseWriter(ABC):
    """The interface of response writers.

    Call ``start``, then ``write`` any number of times, then ``end``. Call ``drain`` whenever it ``is_full``.

    Attributes:
        headers: added to every response, including errors. Names in lower case.
        status: status of the response; 0 before it starts.
        is_complete: True if the response has ended.
        reports_disconnect: True if ``on_disconnect`` will be called; else a task must call ``receive``.
        on_disconnect: called if the client disconnects before the response is complete.
        is_client_known: True if the client needs no key here, or has a valid one.
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
        """Write status and headers. Header names are in lower case."""

    @abstractmethod
    def write(self, part: bytes) -> None:
        """Write the next bytes of the body; at least one."""

    @abstractmethod
    def end(self) -> None:
        """Complete the response."""

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """True if the client does not keep up, so that further writes are buffered here."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until the client has read the buffered data."""

    async def send(self, message: Message) -> None:
        """Handle one ASGI message, so that an application can use this as ``send``."""
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
    """A response writer on top of another server's ``send``."""

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
        """True always: only ``drain`` sends."""
        return True

    async def drain(self) -> None:
        """See :class:`ResponseWriter`."""
        while self._messages:
            await self._send(self._messages.pop(0))
