"""Methods of a framework that note who calls, put in place by an adapter and taken out again.

Knows no framework. What is noted is read where an ``openai`` client makes the request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from threading import Lock
from typing import Any
from urllib.parse import quote

from agentspec.adapters.caller import CALLER, Caller, calling
from agentspec.adapters.openai import instrument
from agentspec.adapters.replacement import replace_method
from agentspec.role_names import role_name
from agentspec.wire import MAX_SESSION_CHARS

Undo = Callable[[], None]


def hinted(*names: str, session: str | None = None) -> Caller:
    """The caller that a framework tells of, below what is noted already.

    A stage that somebody named stays, and so does the session around; ids in names go.

    Args:
        names: agents, steps, ... from the outside in; none = the role around.
        session: the run or conversation, if it is known and none is around.
    """
    around = CALLER.get() or Caller()
    if session is not None and len(quote(session, safe="")) > MAX_SESSION_CHARS:
        session = None
    parts = (part.strip() for name in names for part in name.split("/"))
    role = tuple(role for part in parts if (role := role_name(part)))
    return Caller(around.named, role or around.role, around.session or session or None)


def note_caller(owner: type, name: str, caller_of: Callable[..., Caller]) -> Undo:
    """Every call of the class's method, and all that is called in it, is by ``caller_of(*args, **kwargs)``.

    Returns:
        what undoes it.
    """
    return replace_method(owner, name, partial(_noting, caller_of=caller_of))


class Hooks:
    """The hooks of one framework, there once however many instrumentations are in force.

    Args:
        put: puts one after the other in place; yields what undoes it.
    """

    def __init__(self, put: Callable[[], Iterator[Undo]]) -> None:
        self._put = put
        self._undoing: list[Undo] = []
        self._in_force: list[object] = []
        self._lock = Lock()

    def instrument(self, workflow: str | None) -> Undo:
        """Tag the calls of every ``openai`` client by what the hooks note, until it is undone.

        Raises:
            StageError: ``workflow`` is malformed.
        """
        undo_tagging = instrument(workflow=workflow)
        mine = object()

        def undo() -> None:
            undo_tagging()
            self._leave(mine)

        try:
            self._join(mine)
        except BaseException:  # a version of the framework that has no such method
            undo()
            raise
        return undo

    def _join(self, one: object) -> None:
        with self._lock:
            self._in_force.append(one)
            if len(self._in_force) == 1:
                for undo in self._put():
                    self._undoing.append(undo)

    def _leave(self, one: object) -> None:
        with self._lock:
            if one in self._in_force:
                self._in_force.remove(one)
            while self._undoing and not self._in_force:
                self._undoing.pop()()


def _noting(original: Callable[..., Any], caller_of: Callable[..., Caller]) -> Callable[..., Any]:
    """``original`` in the same kind of function: plain, coroutine, generator, asynchronous generator."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with calling(caller_of(*args, **kwargs)):
            return original(*args, **kwargs)

    @wraps(original)
    async def wait(*args: Any, **kwargs: Any) -> Any:
        with calling(caller_of(*args, **kwargs)):
            return await original(*args, **kwargs)

    @wraps(original)
    def iterate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        return _stepping(original(*args, **kwargs), caller_of(*args, **kwargs))

    @wraps(original)
    async def follow(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        caller = caller_of(*args, **kwargs)
        parts = original(*args, **kwargs)
        try:
            while True:
                with calling(caller):
                    part = await anext(parts, _END)
                if part is _END:
                    return
                yield part
        finally:
            await parts.aclose()

    if isasyncgenfunction(original):
        return follow
    if isgeneratorfunction(original):
        return iterate
    return wait if iscoroutinefunction(original) else call


_END: Any = object()


def _stepping(parts: Any, caller: Caller) -> Iterator[Any]:
    """Between its parts a generator's caller is another one."""
    try:
        while True:
            with calling(caller):
                part = next(parts, _END)
            if part is _END:
                return
            yield part
    finally:
        parts.close()
