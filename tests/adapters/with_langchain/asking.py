"""Every method of calling a runnable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

Ask = Callable[..., Awaitable[None]]  # runnable, question and perhaps config
Stages = Callable[[], list[str]]


async def invoke(runnable: Any, question: Any, config: Any = None) -> None:
    runnable.invoke(question, config)


async def ainvoke(runnable: Any, question: Any, config: Any = None) -> None:
    await runnable.ainvoke(question, config)


async def stream(runnable: Any, question: Any, config: Any = None) -> None:
    assert list(runnable.stream(question, config))


async def astream(runnable: Any, question: Any, config: Any = None) -> None:
    assert [chunk async for chunk in runnable.astream(question, config)]


async def batch(runnable: Any, question: Any, config: Any = None) -> None:
    runnable.batch([question, question], config)


async def abatch(runnable: Any, question: Any, config: Any = None) -> None:
    await runnable.abatch([question, question], config)


async def events(runnable: Any, question: Any, config: Any = None) -> None:
    assert [event async for event in runnable.astream_events(question, config, version="v2")]


async def in_a_thread(runnable: Any, question: Any, config: Any = None) -> None:
    await asyncio.to_thread(runnable.invoke, question, config)


WAYS: tuple[Ask, ...] = (invoke, ainvoke, stream, astream, batch, abatch, events, in_a_thread)
