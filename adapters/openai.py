"""The plain ``openai`` client: headers for one call, a stage for a block of code, or all calls of a process.

    client.chat.completions.create(..., extra_headers=agentspec_headers("sql/extract", session="run-1"))

or, for existing clients and frameworks that use one:

    instrument(workflow="agentic_sql")
    with stage("extract"):
        client.chat.completions.create(...)
"""

from __future__ import annotations

from collections.abc import Callable

from agentspec.adapters.frameworks import framework

with framework():
    from openai._base_client import BaseClient  # sync and async clients of openai 2 and 3 build requests here

from agentspec.adapters.allowed_hosts import Hosts
from agentspec.adapters.block import stage, untagged
from agentspec.adapters.caller import current_caller
from agentspec.adapters.client_requests import tagging_requests
from agentspec.adapters.headers import agentspec_headers
from agentspec.adapters.tagging import begin_tagging

__all__ = ["agentspec_headers", "instrument", "stage", "untagged"]


def instrument(*, workflow: str | None = None, hosts: Hosts | None = None) -> Callable[[], None]:
    """Tag the calls of every ``openai`` client, existing ones included, until undone.

    The stage is that of the block (:func:`stage`), else that noted by a framework's adapter. Without both the
    gateway infers it. Explicit headers stay. The latest active instrumentation sets the workflow.

    Args:
        workflow: prefix of every stage, e.g. ``agentic_sql``.
        hosts: further servers that get tags, besides local and private ones and the gateway of
            ``$AGENTSPEC_URL``: names, addresses, ``*.example.com``, or ``"*"`` for all.

    Returns:
        function that removes the instrumentation.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is malformed.
    """
    return begin_tagging(_TAGGING, workflow, hosts)


def current_headers() -> dict[str, str]:
    """Return the tags of a call made now, for other kinds of clients; empty without instrumentation."""
    if not _TAGGING.is_in_force:
        return {}
    return current_caller().headers(_TAGGING.workflow)


_TAGGING = tagging_requests(BaseClient)
