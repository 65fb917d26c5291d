"""Who is about to call a model: noted by a framework's hook, read where the request is made.

A context variable carries it: the two are a framework's whole inside apart, and calls run side by side in
threads and tasks.
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
    """What a framework knows of a call.

    Attributes:
        named: the stage, if somebody named it on purpose; it must be a good one.
        role: else the names that the framework tells, from the outside in: an agent, a node, a step.
        session: the run or conversation that the call is part of.
        is_untagged: the call gets no tag at all.
        by: what named the stage, for the log: ``"LangChain's node"``.
    """

    named: str | None = None
    role: tuple[str, ...] = ()
    session: str | None = None
    is_untagged: bool = False
    by: str | None = field(default=None, compare=False)

    def headers(self, workflow: str | None = None, stage: str | None = None) -> dict[str, str]:
        """The headers that tag the call.

        Args:
            workflow: what goes before every stage.
            stage: the stage of what makes the call, if nobody named the call's own.

        Raises:
            StageError: the stage that was named is malformed.
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
        """As much of the role as fits, the innermost names first: a hint never makes a call fail.

        Without a role the gateway finds the stage.
        """
        for num_left_out in range(len(self.role)):
            try:
                return agentspec_headers("/".join(self.role[num_left_out:]), self.session, workflow=workflow)
            except StageError:
                continue
        return agentspec_headers(None, self.session, workflow=workflow)


CALLER: ContextVar[Caller | None] = ContextVar("agentspec_caller", default=None)

SESSION_VARIABLE = "AGENTSPEC_SESSION"  # of the run that this process is a part of


def made_up_session(own: str | None = None) -> str:
    """The session of a run that has no id: that of the run around this process, else ``own`` or a new one."""
    given = os.environ.get(SESSION_VARIABLE, "")
    return given if is_session(given) else own or uuid4().hex


FINDERS: list[Callable[[], Caller]] = []
"""Frameworks that note the caller in a place of their own: the last is asked if nothing nearer is noted."""


def current_caller() -> Caller:
    """Who makes a call now."""
    caller = CALLER.get() or Caller()
    if not FINDERS or caller.role or caller.named is not None or caller.is_untagged:
        return caller
    return FINDERS[-1]()


_T = TypeVar("_T")


def calling(caller: Caller) -> AbstractContextManager[None]:
    """The calls made inside are this caller's."""
    return holding(CALLER, caller)


@contextmanager
def holding(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """The variable has this value inside."""
    token = variable.set(value)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that is closed from another context, where it has none
            variable.reset(token)
