from __future__ import annotations

import asyncio


async def test_parts_are_the_head_then_the_body_then_its_end():
    from agentspec.ray.answer_parts import AnswerBody, AnswerHead, AnswerParts

    parts = AnswerParts()
    parts.start(200, [(b"content-type", b"text/plain")])
    parts.write(b"a")
    parts.write(b"b")
    parts.end()
    parts.close()
    assert [part async for part in parts] == [
        AnswerHead(200, [(b"content-type", b"text/plain")]),
        AnswerBody(b"ab", is_last=True),
    ]


async def test_parts_arrive_while_they_are_written():
    from agentspec.ray.answer_parts import AnswerBody, AnswerParts

    parts = AnswerParts()
    reading = aiter(parts)
    parts.start(200, [])
    assert (await anext(reading)).status == 200
    waiting = asyncio.ensure_future(anext(reading))
    await asyncio.sleep(0)
    assert not waiting.done()
    parts.write(b"a")
    assert await waiting == AnswerBody(b"a", is_last=False)
    parts.close()


async def test_an_end_without_bytes_is_a_part():
    from agentspec.ray.answer_parts import AnswerBody, AnswerHead, AnswerParts

    parts = AnswerParts()
    reading = aiter(parts)
    parts.start(200, [])
    parts.write(b"a")
    assert await anext(reading) == AnswerHead(200, [])
    assert await anext(reading) == AnswerBody(b"a", is_last=False)
    parts.end()
    assert [part async for part in reading] == [AnswerBody(b"", is_last=True)]


async def test_an_answer_that_broke_off_has_no_end():
    from agentspec.ray.answer_parts import AnswerBody, AnswerHead, AnswerParts

    parts = AnswerParts()
    parts.start(200, [])
    parts.write(b"half of an")
    parts.close()
    assert [part async for part in parts] == [
        AnswerHead(200, []),
        AnswerBody(b"half of an", is_last=False),
    ]
