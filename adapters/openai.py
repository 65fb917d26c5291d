"""The plain ``openai`` client: headers for one call, a stage for a block of code, or all calls of a process.

    client.chat.completions.create(..., extra_headers=agentspec_headers("sql/extract", session="run-1"))

or, for existing clients and frameworks that use one:

    instrument(workflow="agentic_sql")
    with stage("extract"):
        client.chat.completions.create(...)

The stage is that of the block, else that noted by a framework's adapter.
"""

from __future__ import annotations

from agentspec.adapters.instrumentation import framework

with framework():
    from openai._base_client import BaseClient  # sync and async clients of openai 2 and 3 build requests here

from agentspec.adapters.block import stage, untagged
from agentspec.adapters.caller import current_caller
from agentspec.adapters.client_requests import tagging_requests
from agentspec.adapters.headers import agentspec_headers

__all__ = ["agentspec_headers", "instrument", "stage", "untagged"]

CLIENT = tagging_requests(BaseClient)
instrument = CLIENT.instrument


def current_headers() -> dict[str, str]:
    """Return the tags of a call made now, for other kinds of clients; empty without instrumentation."""
    if not CLIENT.is_in_force:
        return {}
    return current_caller().headers(CLIENT.workflow)
