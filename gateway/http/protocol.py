"""The limits of a connection to a client, which apply before a request is interpreted.

They bound the time and size of a head, and the bytes that are read after an early response. Parse errors are
reported in OpenAI's form.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import httptools
from starlette.types import ASGIApp

from agentspec.gateway.errors import error_body
from agentspec.gateway.http.api_response import encode_json
from agentspec.gateway.http.client_connection import ClientConnection, ServerState
from agentspec.gateway.http.request_cycle import STATUS_LINES, Http11Cycle
from agentspec.gateway.settings import GatewaySettings

BYTES_PER_S = 32 << 20
BURST_BYTES = 16 << 20
# A connection that is closed while its client still sends is reset, and the response may be lost. So bytes
# after an early response are read and discarded, within these limits.
UNPACED_BYTES = 1 << 20  # per connection
UNKNOWN_CLIENT_BYTES = (
    8 << 20
)  # from a client without a valid key; bytes beyond UNPACED_BYTES share one rate limit
KNOWN_CLIENT_BODIES = 4  # from the other clients, in multiples of ``body_limit_bytes``
LINGER_S = 1.0  # from the last byte read to the close, for the client to read its response
KEEPALIVE_IDLE_S = 30
KEEPALIVE_PROBE_S = 10

logger = logging.getLogger("agentspec.gateway")


class DiscardRate:
    """A token bucket with a balance that may be negative: bytes are counted after they were read.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_left = float(BURST_BYTES)
        self._filled_s = clock()

    def take(self, num_bytes: int) -> float:
        """Count bytes that were read. Return the seconds until more may be read."""
        now_s = self._clock()
        self._num_left = min(BURST_BYTES, self._num_left + (now_s - self._filled_s) * BYTES_PER_S) - num_bytes
        self._filled_s = now_s
        return max(0.0, -self._num_left / BYTES_PER_S)


class HttpProtocol(ClientConnection):
    """One connection to a client, within limits.

    The clock runs while the client must send: from the start of a connection or request to the end of the
    head, and while the rest of an unwanted body arrives. A wanted body has its own limit in ``request_body``.

    Args:
        limits: returns those in force; a request keeps the ones from its start.
        pace: common rate limit at which bodies of refused requests are discarded.
        app, server_state, app_state: as in :class:`ClientConnection`.
    """

    def __init__(
        self,
        app: ASGIApp,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        limits: Callable[[], GatewaySettings],
        pace: DiscardRate,
    ) -> None:
        super().__init__(app, server_state, app_state)
        self._limits_in_force = limits
        self._pace = pace
        self._limits = limits()
        self._clock: asyncio.TimerHandle | None = None
        self._is_head = True  # the next bytes belong to a head
        self._is_too_large = self._is_refused = False
        self._num_idle_bytes = 0  # bytes since the last head, part of a body or end of a request
        self._is_discarding = False  # the next bytes belong to a request with a complete response
        self._num_discarded = 0  # bytes discarded of that request
        self._num_unpaced = UNPACED_BYTES  # bytes that may still be discarded without rate limit
        self._is_ending = False  # the server is shutting down
        self._resuming: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock for a new client's first request."""
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request and the timers of a client that disconnected."""
        self._stop_clock()
        self._stop_resuming()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process the next bytes of one or more requests."""
        if self._is_refused:
            self._discard(len(data))
            return
        self._num_idle_bytes += len(data)
        try:
            self.feed(data)
        except httptools.HttpParserError as error:
            self._refuse_for(error)
            return
        if self._num_idle_bytes > self._limits.head_limit_bytes:
            self._refuse_size()
            return
        if self._clock is None and self._is_clients_turn:
            self._start_clock()
        if self._is_discarding:
            self._discard(len(data))

    def shutdown(self) -> None:
        """End the connection. A client that still sends gets ``LINGER_S`` to read its response."""
        self._is_ending = True
        if self._is_discarding or self._is_refused:
            self._close_in(LINGER_S)
        else:
            super().shutdown()

    # httptools

    def on_message_begin(self) -> None:
        """Handle a request's first byte."""
        if not self.is_deaf:
            self._limits = self._limits_in_force()
            super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Handle a complete head, unless it is too large."""
        if self.is_deaf:
            return
        if self._has_too_much:
            self._is_too_large = True
            raise ValueError("too large a head")
        super().on_headers_complete()
        self._is_head, self._num_idle_bytes = False, 0
        self._stop_clock()

    def on_body(self, body: bytes) -> None:
        """Handle the next part of the body."""
        self._num_idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of a request."""
        if self.has_only_head:
            return
        self._is_head, self._num_idle_bytes = True, 0
        self._stop_clock()
        super().on_message_complete()
        if self._is_discarding:
            self._is_discarding, self._num_discarded = False, 0
            if self._is_ending or (self.answered is not None and not self.answered.can_go_on):
                self.transport.close()

    # request_cycle

    def on_response_complete(self) -> None:
        """Handle the end of a response. The rest of the request's body is discarded."""
        answered = self.answered
        if self._is_refused or answered is None:
            return
        if not answered.more_body:
            if not answered.can_go_on:
                self.transport.close()
        elif not self.transport.is_closing():
            self._start_discarding(answered)
        super().on_response_complete()

    @property
    def _has_too_much(self) -> bool:
        limits = self._limits
        if len(self.headers) > limits.max_headers:
            return True
        if self._num_idle_bytes <= limits.head_limit_bytes:  # nearly always
            return False
        num_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        return num_bytes > limits.head_limit_bytes

    @property
    def _is_clients_turn(self) -> bool:
        return (self.has_begun and self._is_head) or not self.is_answering

    def _start_discarding(self, answered: Http11Cycle) -> None:
        self._is_discarding = True
        if not answered.can_go_on:
            self.transport.write_eof()
        limits = self._limits
        self._close_in(limits.body_s if answered.is_client_known else limits.head_s)

    def _discard(self, num_bytes: int) -> None:
        """Count discarded bytes. Stop reading after too many, so that TCP stops the sender."""
        self._num_discarded += num_bytes
        answered = None if self._is_refused else self.answered
        is_known = answered is not None and answered.is_client_known
        limit = UNKNOWN_CLIENT_BYTES
        if is_known:
            limit = max(limit, KNOWN_CLIENT_BODIES * self._limits.body_limit_bytes)
        if self._num_discarded > limit:
            self._hang_up()
        elif not is_known:
            self._num_unpaced -= num_bytes
            wait_s = self._pace.take(num_bytes) if self._num_unpaced < 0 else 0.0
            if wait_s:
                self.flow.pause_reading()
                self._resuming = self.loop.call_later(wait_s, self.flow.resume_reading)

    def _hang_up(self) -> None:
        """Stop reading, and close after the client had time to read its response."""
        self._is_refused = True
        self.flow.pause_reading()
        self.transport.write_eof()
        self._close_in(LINGER_S)

    def _close_in(self, seconds: float) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(
            min(seconds, LINGER_S) if self._is_ending else seconds, self._close
        )

    def _close(self) -> None:
        self._clock = None
        self._stop_resuming()
        self.transport.close()

    def _start_clock(self) -> None:
        self._clock = self.loop.call_later(self._limits_in_force().head_s, self._ring)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _stop_resuming(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None

    def _ring(self) -> None:
        self._clock = None
        if self.is_answering:  # the request before this one, which may wait
            self._start_clock()
        elif self.has_begun and self._is_head:
            seconds = self._limits.head_s
            self._refuse(408, "request_timeout", f"the head did not arrive within {seconds:g} s")
        else:
            self.transport.close()

    def _refuse_for(self, error: httptools.HttpParserError) -> None:
        is_cut = self._is_head and self._num_idle_bytes > self._limits.head_limit_bytes
        if self._is_too_large or is_cut:
            self._refuse_size()
        else:
            reason = "" if isinstance(error, httptools.HttpParserCallbackError) else f": {error}"
            self._refuse(400, "invalid_http", f"this is no HTTP/1.1 request{reason}")

    def _refuse_size(self) -> None:
        limits = self._limits
        self._refuse(
            431,
            "head_too_large",
            f"a head has at most {limits.head_limit_bytes} bytes and {limits.max_headers} headers",
        )

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Send an error and close. In the middle of another response, close without an error."""
        logger.debug("a connection is refused: %s", message)
        self._is_refused = True
        if self._is_discarding:  # the response is complete, and the client has time to read it
            self.transport.write_eof()
            return
        self._stop_clock()
        if not self.has_begun or (self.is_answering and not self._take_over()):
            self.transport.close()
            return
        body = encode_json(error_body(status, message, code=code))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(
            body
        )
        self.transport.write(STATUS_LINES[status] + head + body)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._close_in(LINGER_S if status == 408 else self._limits.head_s)

    def _take_over(self) -> bool:
        """Disconnect the application if it still reads this body, and return True; otherwise return False."""
        cycle = self.cycle
        if cycle is None or self._is_head or self.pipeline or cycle.status:
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return True


def drop_the_absent(listening: socket.socket, limits: GatewaySettings) -> None:
    """Let the kernel close connections accepted here if the client does not read or is unreachable."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted sockets inherit it
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_PROBE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.unread_s * 1000))
