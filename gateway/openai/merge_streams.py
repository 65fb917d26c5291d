"""Merging of the deltas of several generations into one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import cast

from agentspec.generation import GenerationDelta

Indexed = tuple[int, GenerationDelta]


async def fan_in(generations: Sequence[AsyncIterator[GenerationDelta]]) -> AsyncGenerator[Indexed, None]:
    """Yield each delta with the index of its generation, in order of arrival.

    Closing this iterator closes every generation. The first error of a generation ends all of them.
    """
    if len(generations) == 1:
        async with aclosing(_closable(generations[0])) as deltas:
            async for delta in deltas:
                yield 0, delta
        return
    queue: asyncio.Queue[Indexed | Exception | None] = asyncio.Queue(maxsize=2 * len(generations))
    tasks = [asyncio.create_task(_pump(index, one, queue)) for index, one in enumerate(generations)]
    try:
        num_open = len(tasks)
        while num_open:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    index: int,
    generation: AsyncIterator[GenerationDelta],
    queue: asyncio.Queue[Indexed | Exception | None],
) -> None:
    try:
        async with aclosing(_closable(generation)) as deltas:
            async for delta in deltas:
                await queue.put((index, delta))
        await queue.put(None)
    except Exception as error:
        await queue.put(error)


def _closable(generation: AsyncIterator[GenerationDelta]) -> AsyncGenerator[GenerationDelta, None]:
    # the Engine protocol promises that the iterator can be closed, but AsyncIterator has no aclose
    return cast(AsyncGenerator[GenerationDelta, None], generation)
