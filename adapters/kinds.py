"""Wrap functions to note a caller while they run: plain functions, coroutines, sync and async generators."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import wraps
from inspect import (
    isasyncgen,
    isasyncgenfunction,
    iscoroutine,
    iscoroutinefunction,
    isgenerator,
    isgeneratorfunction,
)
from typing import Any

from agentspec.adapters.caller import Caller, calling

AnyFunction = Callable[..., Any]


def noting(
    function: AnyFunction, caller_of: Callable[..., Caller], call: AnyFunction | None = None
) -> AnyFunction:
    """Return a function of the same kind that notes ``caller_of(*args, **kwargs)`` as caller while it runs.

    A generator's caller is noted while it runs, not between its parts. If a plain function returns a
    coroutine or a generator, the result is wrapped too, since decorators hide the kind of function.

    Args:
        call: callable to use instead of ``function`` itself.
    """
    called = call or function

    def plain(*args: Any, **kwargs: Any) -> Any:
        caller = caller_of(*args, **kwargs)
        with calling(caller):
            result = called(*args, **kwargs)
        return _followed(caller, result)

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        with calling(caller_of(*args, **kwargs)):
            return await called(*args, **kwargs)

    def generator(*args: Any, **kwargs: Any) -> Any:
        return (yield from _generated(caller_of(*args, **kwargs), called(*args, **kwargs)))

    if isasyncgenfunction(function):
        follow = _following(lambda *args, **kwargs: (caller_of(*args, **kwargs), called(*args, **kwargs)))
        return wraps(function)(follow)
    if isgeneratorfunction(function):
        return wraps(function)(generator)
    return wraps(function)(coroutine if iscoroutinefunction(function) else plain)


def _followed(caller: Caller, result: Any) -> Any:
    if iscoroutine(result):
        return _awaited(caller, result)
    if isgenerator(result):
        return _generated(caller, result)
    return _following(lambda: (caller, result))() if isasyncgen(result) else result


async def _awaited(caller: Caller, coroutine: Any) -> Any:
    with calling(caller):
        return await coroutine


def _generated(caller: Caller, parts: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    sent, step = None, parts.send
    try:
        while True:
            with calling(caller):
                try:
                    part = step(sent)
                except StopIteration as end:
                    return end.value
            try:
                sent, step = (yield part), parts.send
            except Exception as error:
                sent, step = error, parts.throw
    finally:
        with calling(caller):
            parts.close()


def _following(
    begin: Callable[..., tuple[Caller, AsyncGenerator[Any, Any]]],
) -> Callable[..., AsyncGenerator[Any, Any]]:
    async def follow(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        caller, parts = begin(*args, **kwargs)
        sent, step = None, parts.asend
        try:
            while True:
                with calling(caller):
                    try:
                        part = await step(sent)
                    except StopAsyncIteration:
                        return
                try:
                    sent, step = (yield part), parts.asend
                except Exception as error:
                    sent, step = error, parts.athrow
        finally:
            with calling(caller):
                await parts.aclose()

    return follow
