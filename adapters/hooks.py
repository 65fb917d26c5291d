"""Hooks on a framework's methods that note the caller while a function runs.

Independent of any framework. The ``openai`` client's hook reads the note where it makes the request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import lru_cache, partial, wraps
from inspect import (
    isasyncgen,
    isasyncgenfunction,
    iscoroutine,
    iscoroutinefunction,
    isgenerator,
    isgeneratorfunction,
)
from typing import Any

from agentspec.adapters.caller import CALLER, Caller, calling
from agentspec.adapters.headers import MANY_STAGES, is_session
from agentspec.adapters.instrumentation import Undo, replace_method
from agentspec.role_names import role_name

AnyFunction = Callable[..., Any]


def hinted(*names: str, session: str | None = None, by: str | None = None) -> Caller:
    """Return a caller with the names that a framework reports, on top of the caller noted already.

    An explicit stage and an enclosing session stay. Ids are removed from names.

    Args:
        names: agents, steps, ... outermost first; empty = the enclosing role.
        session: the run or conversation, used if there is no enclosing session.
        by: kind of the names, for the log: ``"CrewAI's role"``.
    """
    around = CALLER.get() or Caller()
    role = _role(names)
    fitting = session if session is not None and is_session(session) else None
    return Caller(
        around.named,
        role or around.role,
        around.session or fitting,
        around.is_untagged,
        by if role else around.by,
    )


@lru_cache(maxsize=MANY_STAGES)
def _role(names: tuple[str, ...]) -> tuple[str, ...]:
    parts = (part.strip() for name in names for part in name.split("/"))
    return tuple(role for part in parts if (role := role_name(part)))


def below(*names: str, session: str | None = None, by: str | None = None) -> Caller:
    """Return a caller with these names below the enclosing role; otherwise like :func:`hinted`."""
    around = CALLER.get() or Caller()
    return hinted(*around.role, *names, session=session, by=by if any(names) else around.by)


def note_caller(owner: type, name: str, caller_of: Callable[..., Caller]) -> Undo:
    """Note ``caller_of(*args, **kwargs)`` as caller during every call of the class's method.

    Returns:
        function that removes the hook.
    """
    return replace_method(owner, name, partial(_noting, caller_of=caller_of))


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
        return kept_for(caller, result)

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


def kept_for(caller: Caller, result: Any) -> Any:
    """Return a result that notes the caller while its parts are made, if it is a coroutine or a generator."""
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


def _noting(original: Callable[..., Any], caller_of: Callable[..., Caller]) -> Callable[..., Any]:
    return noting(original, caller_of, lambda *args, **kwargs: _bound(original, args)(**kwargs))


def _bound(original: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """Bind the method to ``args[0]`` and the other arguments: a decorator may need a bound method."""
    return partial(original.__get__(args[0], type(args[0])), *args[1:])
