"""The plain ``openai`` client: headers for one call, a stage for a block of code, or all calls of a process.

    client.chat.completions.create(..., extra_headers=agentspec_headers("sql/extract", session="run-1"))

or, for clients that are there already, and inside frameworks that call one:

    instrument(workflow="agentic_sql")
    with stage("extract"):
        client.chat.completions.create(...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from openai._base_client import BaseClient  # sync and async, of openai 2 and 3, make their requests here

from agentspec.adapters.caller import CALLER, Caller, calling
from agentspec.adapters.headers import agentspec_headers
from agentspec.adapters.replacement import Tagging

__all__ = ["agentspec_headers", "instrument", "stage"]


@contextmanager
def stage(path: str, session: str | None = None) -> Iterator[None]:
    """The calls made inside are of this stage, of whatever client that is instrumented.

    Args:
        path: 1 to 8 segments.
        session: one run of the workflow; None = that of the block around.

    Raises:
        StageError: ``path`` is malformed.
        ConfigError: ``session`` does not fit a header.
    """
    agentspec_headers(path, session)
    around = CALLER.get()
    with calling(Caller(named=path, session=session or (around.session if around else None))):
        yield


def instrument(*, workflow: str | None = None) -> Callable[[], None]:
    """Tag the calls of every ``openai`` client, also of those that exist, until it is undone.

    The stage is that of the block (:func:`stage`), else what a framework's adapter noted. Headers that are
    given by hand stay. The workflow is that of the last instrumentation that is in force.

    Args:
        workflow: what goes before every stage, e.g. ``agentic_sql``.

    Returns:
        what undoes it.

    Raises:
        StageError: ``workflow`` is malformed.
    """
    agentspec_headers(workflow)
    return _TAGGING.instrument(workflow)


def current_headers() -> dict[str, str]:
    """What tags a call that is made now, if any instrumentation is in force: for clients of other kinds."""
    if not _TAGGING.is_in_force:
        return {}
    return (CALLER.get() or Caller()).headers(_TAGGING.workflow)


def _tagging(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def build_request(client: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(client, *args, **kwargs)
        for name, value in current_headers().items():
            request.headers.setdefault(name, value)
        return request

    return build_request


_TAGGING = Tagging((BaseClient, "_build_request", _tagging))
