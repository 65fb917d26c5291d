"""A stub engine: responds by plan, immediately and cheaply, and records when clients left.

``python -m benchmarks.gateway.stub --port N``. Times are ``time.monotonic_ns()``, which all
processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import signal
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar, cast

import httptools
import uvloop

from benchmarks.gateway import answers
from benchmarks.gateway.plan import Plan

HOST = "127.0.0.1"
BACKLOG = 4096
MOST_MARKS = 100_000
MARKS_PATH = "/stub/marks"
MODEL = re.compile(rb'"model"\s*:\s*"([^"]*)"')
STREAM = re.compile(rb'"stream"\s*:\s*true')
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests"}
LAST_CHUNK = b"0\r\n\r\n"

Given = TypeVar("Given")


@dataclass(slots=True)
class Marks:
    """Times of the marked requests, by mark.

    Attributes:
        arrived: when the request was read.
        gone: when its connection was lost before the response was complete.
    """

    arrived: OrderedDict[str, int] = field(default_factory=OrderedDict)
    gone: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def note(self, times: OrderedDict[str, int], mark: str) -> None:
        """Set a mark's time to now; the oldest marks are evicted."""
        if mark:
            times[mark] = time.monotonic_ns()
            if len(times) > MOST_MARKS:
                times.popitem(last=False)

    def encode(self) -> bytes:
        """Return both as JSON."""
        return json.dumps({"arrived": self.arrived, "gone": self.gone}).encode()


class StubConnection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, marks: Marks, loop: asyncio.AbstractEventLoop) -> None:
        self._marks = marks
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []
        self._plan: Plan | None = None  # of the request being answered
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Stop the timer; note the mark if a response was incomplete."""
        if self._timer:
            self._timer.cancel()
        if self._plan:
            self._marks.note(self._marks.gone, self._plan.mark)

    def on_url(self, url: bytes) -> None:
        """Collect the path."""
        self._path += url

    def on_body(self, part: bytes) -> None:
        """Collect the body."""
        self._body.append(part)

    def on_message_complete(self) -> None:
        """Respond to the request."""
        path, body = self._path.decode().partition("?")[0], b"".join(self._body)
        self._path, self._body = b"", []
        if path in answers.FORMS and (found := MODEL.search(body)):
            self._answer(path, plan_of(found[1].decode()), bool(STREAM.search(body)))
        else:
            self._transport.write(self._told(path))

    def _told(self, path: str) -> bytes:
        if path == MARKS_PATH:
            return whole(200, self._marks.encode())
        if path == "/health":
            return whole(200, b"{}")
        if path == "/v1/models":
            return whole(200, b'{"object":"list","data":[{"id":"stub","object":"model"}]}')
        return whole(404, b'{"error":{"message":"the stub knows no such path"}}')

    def _answer(self, path: str, plan: Plan, is_stream: bool) -> None:
        self._plan = plan
        self._marks.note(self._marks.arrived, plan.mark)
        if plan.status != 200 or not is_stream:
            data = answers.body(path, plan, is_stream=False)
            self._after(plan.delay_ms / 1e3, self._end, whole(plan.status, data))
        else:
            self._parts = framed(path, plan.num_chunks)
            self._begin_s = self._loop.time() + plan.delay_ms / 1e3
            self._after(plan.delay_ms / 1e3, self._next, 0)

    def _after(self, seconds: float, answer: Callable[[Given], None], given: Given) -> None:
        if seconds:
            self._timer = self._loop.call_later(seconds, answer, given)
        else:
            answer(given)

    def _next(self, number: int) -> None:
        """Send one part; the next is due at its fixed time, even if this one was late."""
        assert self._plan is not None
        following = number + 1
        if following == len(self._parts):
            self._end(self._parts[number])
        elif following == self._plan.breaks_after:
            self._end(self._parts[number])
            self._transport.close()
        else:
            self._transport.write(self._parts[number])
            due_s = self._begin_s + following * self._plan.gap_ms / 1e3
            self._timer = self._loop.call_at(due_s, self._next, following)

    def _end(self, data: bytes) -> None:
        self._plan = None
        self._transport.write(data)


@lru_cache(maxsize=4096)
def plan_of(model: str) -> Plan:
    """Return the plan that a model's name encodes, or the default plan."""
    try:
        return Plan.parse(model)
    except ValueError:
        return Plan()


def whole(status: int, data: bytes) -> bytes:
    """Return a response with a JSON body: head and data."""
    reason = REASONS.get(status, "Error")
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


@lru_cache(maxsize=256)
def framed(path: str, num_chunks: int) -> tuple[bytes, ...]:
    """Return the parts of a stream as written: head before the first, one HTTP chunk per event."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    head += b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
    parts = [_chunked(part) for part in answers.chunks(path, num_chunks)]
    parts[0] = head + parts[0]
    parts[-1] += LAST_CHUNK
    return tuple(parts)


def _chunked(part: bytes) -> bytes:
    events = [event + b"\n\n" for event in part.split(b"\n\n") if event]
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)


async def serve(port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    loop, marks, stopped = asyncio.get_running_loop(), Marks(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    server = await loop.create_server(lambda: StubConnection(marks, loop), HOST, port, backlog=BACKLOG)
    gc.freeze()
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))
