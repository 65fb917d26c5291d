"""Hooks on a framework's methods that note the caller, installed and removed by an adapter.

Independent of any framework. The ``openai`` client's hook reads the note where it makes the request.
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


class Hooks:
    """The hooks of one framework, installed once for any number of active instrumentations.

    Args:
        put: installs the hooks one by one and yields an undo function for each.
    """

    def __init__(self, put: Callable[[], Iterator[Undo]]) -> None:
        self._put = put
        self._undoing: list[Undo] = []
        self._in_force: list[object] = []
        self._lock = Lock()

    def instrument(self, workflow: str | None, hosts: Hosts | None = None) -> Undo:
        """Tag the calls of every ``openai`` client with the noted caller, until undone.

        Raises:
            StageError: ``workflow`` is malformed.
            ConfigError: ``hosts`` is malformed.
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
        except BaseException:  # e.g. a version of the framework without such a method
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
    """Yield the parts of a generator, with the caller noted only while each part is made."""
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
    """Yield the parts of an asynchronous generator, with the caller noted only while each part is made."""
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
    """Bind the method to ``args[0]`` and the other arguments: a decorator may need a bound method."""
    return partial(original.__get__(args[0], type(args[0])), *args[1:])
