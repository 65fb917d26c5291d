"""The plain ``openai`` client: headers for one call, a stage for a block of code, or all calls of a process.

    client.chat.completions.create(..., extra_headers=agentspec_headers("sql/extract", session="run-1"))

or, for clients that are there already, and inside frameworks that call one:

    instrument(workflow="agentic_sql")
    with stage("extract"):
        client.chat.completions.create(...)
"""

from __future__ import annotations

from collections.abc import Callable

from agentspec.adapters.frameworks import framework

with framework():
    from openai._base_client import BaseClient  # sync and async, of openai 2 and 3, make their requests here

from agentspec.adapters.allowed_hosts import Hosts
from agentspec.adapters.block import stage, untagged
from agentspec.adapters.caller import current_caller
from agentspec.adapters.client_requests import tagging_requests
from agentspec.adapters.headers import agentspec_headers
from agentspec.adapters.tagging import begin_tagging

__all__ = ["agentspec_headers", "instrument", "stage", "untagged"]


def instrument(*, workflow: str | None = None, hosts: Hosts | None = None) -> Callable[[], None]:
    """Tag the calls of every ``openai`` client, also of those that exist, until it is undone.

    The stage is that of the block (:func:`stage`), else what a framework's adapter noted, else the gateway
    finds it. Headers that are given by hand stay. The workflow is that of the last instrumentation that is
    in force.

    Args:
        workflow: what goes before every stage, e.g. ``agentic_sql``.
        hosts: servers that get tags besides this machine's, private ones and the gateway of
            ``$AGENTSPEC_URL``: names, addresses, ``*.example.com``, or ``"*"`` for all.

    Returns:
        what undoes it.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is.
    """
    return begin_tagging(_TAGGING, workflow, hosts)


def current_headers() -> dict[str, str]:
    """What tags a call that is made now, if any instrumentation is in force: for clients of other kinds."""
    if not _TAGGING.is_in_force:
        return {}
    return current_caller().headers(_TAGGING.workflow)


_TAGGING = tagging_requests(BaseClient)
