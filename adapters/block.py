"""Blocks of code and functions that set stage and session of their calls explicitly, or remove all tags."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import partial
from inspect import isroutine
from typing import Any, TypeVar

from agentspec.adapters.caller import CALLER, Caller
from agentspec.adapters.headers import agentspec_headers
from agentspec.adapters.hooks import noting
from agentspec.errors import ConfigError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_ENTERED: ContextVar[tuple[tuple[object, Token[Caller | None]], ...]] = ContextVar(
    "agentspec_blocks", default=()
)

logger = logging.getLogger("agentspec.adapters")


class OpenBlocks:
    """The number of ``with stage(...)`` blocks that are open now, in any thread."""

    def __init__(self) -> None:
        self._num_open = 0
        self._has_warned = False
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        """Count ``number`` more blocks, -1 for a block that ends."""
        with self._lock:
            self._num_open += number

    def warn_of_lost_tags(self) -> None:
        """Warn, once, that a call without a caller is made in a thread of its own beside an open block."""
        thread = threading.current_thread()
        if not self._num_open or self._has_warned or thread is threading.main_thread():
            return
        self._has_warned = True
        logger.warning(
            "a call in the thread %r has no stage, while stage(...) is open in another thread. Only a"
            " ThreadPoolExecutor's threads inherit it: open stage(...) in the function that the thread runs",
            thread.name,
        )


OPEN_BLOCKS = OpenBlocks()


class Block:
    """A reusable, reentrant, thread-safe context manager and decorator."""

    def __init__(self, caller_in: Callable[[Caller], Caller]) -> None:
        self._caller_in = caller_in

    def __enter__(self) -> None:
        OPEN_BLOCKS.add(1)
        _ENTERED.set((*_ENTERED.get(), (self, CALLER.set(self._caller()))))

    def __exit__(self, *raised: object) -> None:
        OPEN_BLOCKS.add(-1)
        entered = _ENTERED.get()
        if entered and entered[-1][0] is self:  # else it was entered in another context
            _ENTERED.set(entered[:-1])
            with suppress(ValueError):
                CALLER.reset(entered[-1][1])

    def __call__(self, function: _Function) -> _Function:
        """Return the function, of any kind, wrapped in this block.

        Raises:
            ConfigError: the argument is not a function or method.
        """
        if not isroutine(function) and not isinstance(function, partial):
            raise ConfigError(f"stage(...) decorates functions and methods, not {function!r}")
        if isinstance(function, staticmethod | classmethod):
            raise ConfigError(f"stage(...) must be below @{type(function).__name__}, not above it")
        return noting(function, lambda *args, **kwargs: self._caller())  # type: ignore[return-value]

    def _caller(self) -> Caller:
        return self._caller_in(CALLER.get() or Caller())


def stage(path: str | None = None, session: str | None = None) -> Block:
    """Tag the calls inside the block with this stage, for every instrumented client.

    Use ``with stage("extract"):``, or ``@stage("extract")`` on a function, a coroutine or a generator of
    either kind.

    Args:
        path: 1 to 8 segments; None = stage of the enclosing block or the framework's role, else the gateway
            infers it.
        session: one run of the workflow; None = session of the enclosing block.

    Raises:
        StageError: ``path`` is malformed.
        ConfigError: ``session`` does not fit a header, or both arguments are missing.
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
    """Send the calls inside the block without stage, session and workflow.

    A nested ``stage(...)`` tags its calls again. Explicit headers stay.
    """
    return Block(lambda around: Caller(is_untagged=True))
