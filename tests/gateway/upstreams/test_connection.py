from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.gateway.errors import UpstreamTimeoutError
from agentspec.gateway.upstreams.connection import MOST_UNREAD_BYTES, UpstreamConnection

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
LARGE = b"x" * MOST_UNREAD_BYTES


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Wire(asyncio.Transport):
    """A transport that accepts all writes and records if it is being read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reading = True
        self.is_aborted = False

    def write(self, data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def abort(self) -> None:
        self.is_aborted = True


class Basin:
    """A sink that is full on demand."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_full = False
        self._emptied = asyncio.Event()

    def write_nowait(self, part: bytes) -> None:
        self.parts.append(part)

    async def drain(self) -> None:
        await self._emptied.wait()

    def fill(self, is_full: bool) -> None:
        self.is_full = is_full
        (self._emptied.clear if is_full else self._emptied.set)()


class Clock:
    """An event loop's clock that a test advances."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        self.create_future = asyncio.get_running_loop().create_future

    def time(self) -> float:
        return self._now_s

    def call_later(self, delay_s: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self._now_s + delay_s, work, (), asyncio.get_running_loop())
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Advance the clock and run due timers, including those that a timer sets."""
        end_s = self._now_s + seconds
        while due := [timer for timer in self._timers if timer.when() <= end_s and not timer.cancelled()]:
            first = min(due)
            self._timers.remove(first)
            self._now_s = max(self._now_s, first.when())
            first._run()
        self._now_s = end_s


async def asked(clock: Clock | None = None, *, first_byte_s: float = 60) -> tuple[UpstreamConnection, Wire]:
    """Return a connection that has sent a request and received the response's head."""
    connection, wire = UpstreamConnection("http://engine"), Wire()
    if clock is not None:
        connection._loop = cast(asyncio.AbstractEventLoop, clock)
    connection.connection_made(wire)
    sending = asyncio.create_task(
        connection.send(b"GET / HTTP/1.1\r\n\r\n", b"", is_head=False, first_byte_s=first_byte_s, idle_s=60)
    )
    await asyncio.sleep(0)
    connection.data_received(EVENTS)
    await sending
    return connection, wire


async def settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_part_goes_on_in_the_call_that_brings_it() -> None:
    connection, _ = await asked()
    basin = Basin()
    pouring = asyncio.create_task(connection.stream_to(basin))
    await settled()
    connection.data_received(chunk(b"first"))
    await settled()
    connection.data_received(chunk(b"second") + chunk(b"third"))
    assert basin.parts == [b"first", b"secondthird"]
    connection.data_received(chunk(b"last") + END)
    await pouring
    assert basin.parts[2:] == [b"last"]
    assert connection.is_reusable


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=9), st.booleans(), st.none()), max_size=30))
def test_nothing_is_lost_or_turned_round(happenings: list[bytes | bool | None]) -> None:
    """Data arrives, a sink fills or empties, or the loop runs, in any order."""

    async def run() -> None:
        connection, _ = await asked()
        basin = Basin()
        pouring = asyncio.create_task(connection.stream_to(basin))
        for one in happenings:
            if isinstance(one, bytes):
                connection.data_received(chunk(one))
            elif one is None:
                await asyncio.sleep(0)
            else:
                basin.fill(one)
        connection.data_received(END)
        basin.fill(False)
        await pouring
        assert b"".join(basin.parts) == b"".join(one for one in happenings if isinstance(one, bytes))

    asyncio.run(run())


async def test_what_a_slow_client_does_not_take_stays_with_the_engine() -> None:
    connection, wire = await asked()
    basin = Basin()
    basin.fill(True)
    pouring = asyncio.create_task(connection.stream_to(basin))
    connection.data_received(chunk(LARGE))
    await settled()
    assert wire.is_reading  # received data was read and waits in the sink
    connection.data_received(chunk(LARGE) + chunk(b"x"))
    await settled()
    assert not wire.is_reading
    basin.fill(False)
    await settled()
    assert wire.is_reading
    assert len(b"".join(basin.parts)) == 2 * len(LARGE) + 1
    connection.data_received(END)
    await pouring


async def test_a_slow_reader_is_no_silent_engine() -> None:
    """The engine's time-out does not run while the gateway does not read."""
    clock = Clock()
    connection, wire = await asked(clock)
    basin = Basin()
    basin.fill(True)
    pouring = asyncio.create_task(connection.stream_to(basin))
    connection.data_received(chunk(b"x"))
    await settled()
    connection.data_received(chunk(LARGE) + chunk(b"x"))
    clock.advance(600)  # longer than idle_s, with more data pending than is buffered
    basin.fill(False)
    await settled()
    assert wire.is_reading
    clock.advance(59)
    connection.data_received(chunk(b"y"))
    clock.advance(59)
    assert not pouring.done()
    clock.advance(2)  # now the engine is slow
    with pytest.raises(UpstreamTimeoutError, match="60 s"):
        await pouring
    assert b"".join(basin.parts) == b"x" + LARGE + b"xy"


async def test_a_connection_that_is_not_read_is_not_used_again() -> None:
    """The client disconnected after the whole response had arrived."""
    connection, wire = await asked()
    basin = Basin()
    basin.fill(True)
    pouring = asyncio.create_task(connection.stream_to(basin))
    connection.data_received(chunk(b"x"))
    await settled()
    connection.data_received(chunk(LARGE) + chunk(b"x"))
    assert not wire.is_reading
    connection.data_received(END)
    pouring.cancel()
    await asyncio.wait({pouring})
    assert not connection.is_reusable


async def test_a_sink_that_fails_ends_its_own_answer() -> None:
    connection, wire = await asked()

    class Leaky(Basin):
        def write_nowait(self, part: bytes) -> None:
            if self.parts:
                raise RuntimeError("no more")
            super().write_nowait(part)

    pouring = asyncio.create_task(connection.stream_to(Leaky()))
    connection.data_received(chunk(b"first"))
    await settled()
    connection.data_received(chunk(b"second"))
    with pytest.raises(RuntimeError, match="no more"):
        await pouring
    assert wire.is_aborted
    assert not connection.is_reusable
