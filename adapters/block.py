"""A block of code, or a function, whose calls have a stage and a session by hand, or no tag at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import partial
from inspect import isroutine
from typing import Any, TypeVar

from agentspec.adapters.caller import CALLER, Caller
from agentspec.adapters.headers import agentspec_headers
from agentspec.adapters.kinds import noting
from agentspec.errors import ConfigError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_ENTERED: ContextVar[tuple[tuple[object, Token[Caller | None]], ...]] = ContextVar(
    "agentspec_blocks", default=()
)


class Block:
    """A context manager and a decorator, to be used as often and in as many threads as one likes."""

    def __init__(self, caller_in: Callable[[Caller], Caller]) -> None:
        self._caller_in = caller_in

    def __enter__(self) -> None:
        _ENTERED.set((*_ENTERED.get(), (self, CALLER.set(self._caller()))))

    def __exit__(self, *raised: object) -> None:
        entered = _ENTERED.get()
        if entered and entered[-1][0] is self:  # else it is left in another context than it was entered in
            _ENTERED.set(entered[:-1])
            with suppress(ValueError):
                CALLER.reset(entered[-1][1])

    def __call__(self, function: _Function) -> _Function:
        """The function, whatever kind it is of, as such a block.

        Raises:
            ConfigError: it is no function.
        """
        if not isroutine(function) and not isinstance(function, partial):
            raise ConfigError(f"stage(...) decorates functions and methods, not {function!r}")
        if isinstance(function, staticmethod | classmethod):
            raise ConfigError(f"stage(...) goes below @{type(function).__name__}, not above it")
        return noting(function, lambda *args, **kwargs: self._caller())  # type: ignore[return-value]

    def _caller(self) -> Caller:
        return self._caller_in(CALLER.get() or Caller())


def stage(path: str | None = None, session: str | None = None) -> Block:
    """The calls made inside are of this stage, of whatever client that is instrumented.

    ``with stage("extract"):``, or ``@stage("extract")`` on a function, a coroutine or a generator of either
    kind.

    Args:
        path: 1 to 8 segments; None = that of the block around, of the framework's role, or the gateway
            finds it. session: one run of the workflow; None = that of the block around.

    Raises:
        StageError: ``path`` is malformed.
        ConfigError: ``session`` does not fit a header, or neither is given.
    """
    if callable(path) or isinstance(path, staticmethod | classmethod):
        raise ConfigError('stage is called before it decorates: @stage("extract")')
    if path is None and session is None:
        raise ConfigError("stage(...) needs a path, a session, or both; untagged() is a block without tags")
    agentspec_headers(path, session)

    def caller_in(around: Caller) -> Caller:
        caller = replace(around, session=session or around.session, is_untagged=False)
        return caller if path is None else replace(caller, named=path, role=(), by="stage(...)")

    return Block(caller_in)


def untagged() -> Block:
    """The calls made inside carry no tag: no stage, no session, no workflow; a ``stage(...)`` inside does.

    Headers that are given by hand stay.
    """
    return Block(lambda around: Caller(is_untagged=True))
