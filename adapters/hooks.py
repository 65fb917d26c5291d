"""Methods of a framework that note who calls, put in place by an adapter and taken out again.

Knows no framework. What is noted is read where an ``openai`` client makes the request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from functools import lru_cache, partial
from threading import Lock
from typing import Any

from agentspec.adapters.allowed_hosts import Hosts, is_disabled
from agentspec.adapters.caller import CALLER, Caller, calling
from agentspec.adapters.headers import MANY_STAGES, is_session
from agentspec.adapters.kinds import noting
from agentspec.adapters.openai import instrument
from agentspec.adapters.replacement import replace_method
from agentspec.role_names import role_name

Undo = Callable[[], None]

_END: Any = object()


def hinted(*names: str, session: str | None = None, by: str | None = None) -> Caller:
    """The caller that a framework tells of, below what is noted already.

    A stage that somebody named stays, and so does the session around; ids in names go.

    Args:
        names: agents, steps, ... from the outside in; none = the role around.
        session: the run or conversation, if it is known and none is around.
        by: what the names are, for the log: ``"CrewAI's role"``.
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
    """The caller that is these names below the role around, else as :func:`hinted`."""
    around = CALLER.get() or Caller()
    return hinted(*around.role, *names, session=session, by=by if any(names) else around.by)


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

    def instrument(self, workflow: str | None, hosts: Hosts | None = None) -> Undo:
        """Tag the calls of every ``openai`` client by what the hooks note, until it is undone.

        Raises:
            StageError: ``workflow`` is malformed.
            ConfigError: ``hosts`` is.
        """
        undo_tagging = instrument(workflow=workflow, hosts=hosts)
        if is_disabled():
            return undo_tagging
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


def parts_by(caller: Caller, parts: Any) -> Iterator[Any]:
    """The parts of a generator, each made by the caller; between them somebody else may call."""
    try:
        while True:
            with calling(caller):
                part = next(parts, _END)
            if part is _END:
                return
            yield part
    finally:
        parts.close()


async def following_parts_by(caller: Caller, parts: Any) -> AsyncGenerator[Any, None]:
    """The same of an asynchronous one."""
    try:
        while True:
            with calling(caller):
                part = await anext(parts, _END)
            if part is _END:
                return
            yield part
    finally:
        await parts.aclose()


def _noting(original: Callable[..., Any], caller_of: Callable[..., Caller]) -> Callable[..., Any]:
    return noting(original, caller_of, lambda *args, **kwargs: _bound(original, args)(**kwargs))


def _bound(original: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """The method of ``args[0]`` with the other arguments: a decorator around it may look at what it is of."""
    return partial(original.__get__(args[0], type(args[0])), *args[1:])
