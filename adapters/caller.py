"""The caller of a model: noted by a framework's hook, read where the request is made.

A context variable carries it from one to the other, through the framework. Concurrent calls in threads and
tasks each see their own caller.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import uuid4

from agentspec.adapters.headers import Tag, agentspec_headers, is_session
from agentspec.errors import StageError


@dataclass(frozen=True, slots=True)
class Caller:
    """The known origin of a call.

    Attributes:
        named: the stage, if named explicitly; it must be well-formed.
        role: else the names known to the framework, outermost first: an agent, a node, a step.
        session: the run or conversation that the call is part of.
        is_untagged: True if the call gets no tags.
        by: source of the stage name, for the log: ``"LangChain's node"``.
    """

    named: str | None = None
    role: tuple[str, ...] = ()
    session: str | None = None
    is_untagged: bool = False
    by: str | None = field(default=None, compare=False)

    def headers(self, workflow: str | None = None, stage: str | None = None) -> dict[str, str]:
        """Return the headers that tag the call.

        Args:
            workflow: prefix of every stage.
            stage: the model's stage, used if the call itself has no explicit one.

        Raises:
            StageError: the explicit stage is malformed.
        """
        if self.is_untagged:
            return {}
        named = stage if self.named is None else self.named
        if named is None:
            headers = self._hinted_headers(workflow)
        else:
            headers = agentspec_headers(named, self.session, workflow=workflow)
        return {name: Tag(value) for name, value in headers.items()}

    def _hinted_headers(self, workflow: str | None) -> dict[str, str]:
        """Return headers with as much of the role as fits, dropping outer names first.

        A hint never makes a call fail. Without a role the gateway infers the stage.
        """
        for num_left_out in range(len(self.role)):
            try:
                return agentspec_headers("/".join(self.role[num_left_out:]), self.session, workflow=workflow)
            except StageError:
                continue
        return agentspec_headers(None, self.session, workflow=workflow)


CALLER: ContextVar[Caller | None] = ContextVar("agentspec_caller", default=None)

SESSION_VARIABLE = "AGENTSPEC_SESSION"  # session of the run that this process is part of
RUN_SESSION_VARIABLE = "AGENTSPEC_RUN_SESSION"  # percent-encoded


def made_up_session(own: str | None = None) -> str:
    """Return a session for a run without an id: that of ``agentspec run``, else ``own``, else a new one."""
    given = os.environ.get(SESSION_VARIABLE, "")
    return given if is_session(given) else own or uuid4().hex


def run_session() -> str | None:
    """Return the percent-encoded session of ``agentspec run``, for calls without one; None outside a run."""
    return os.environ.get(RUN_SESSION_VARIABLE) or None


FINDERS: list[Callable[[], Caller]] = []
"""Frameworks that note the caller in a place of their own: the last is asked if nothing nearer is noted."""


def current_caller() -> Caller:
    """Return the caller of a call that is made now."""
    caller = CALLER.get() or Caller()
    if not FINDERS or caller.role or caller.named is not None or caller.is_untagged:
        return caller
    return FINDERS[-1]()


_T = TypeVar("_T")


def calling(caller: Caller) -> AbstractContextManager[None]:
    """Attribute the calls inside the block to this caller."""
    return holding(CALLER, caller)


@contextmanager
def holding(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """Set the variable to this value inside the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine closed in another context than the token's
            variable.reset(token)
