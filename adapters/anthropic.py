"""The plain ``anthropic`` client: tag its messages like the calls of an ``openai`` client.

instrument(workflow="agentic_sql")
with stage("extract"):
    client.messages.create(...)
"""

from __future__ import annotations

from collections.abc import Callable

from anthropic._base_client import BaseClient  # same structure as openai's

from agentspec.adapters.allowed_hosts import Hosts
from agentspec.adapters.block import stage, untagged
from agentspec.adapters.client_requests import tagging_requests
from agentspec.adapters.tagging import begin_tagging

__all__ = ["instrument", "stage", "untagged"]


def instrument(*, workflow: str | None = None, hosts: Hosts | None = None) -> Callable[[], None]:
    """Tag the calls of every ``anthropic`` client, existing ones included, until undone.

    Stage and session are as in ``agentspec.adapters.openai``.

    Args:
        workflow: prefix of every stage, e.g. ``agentic_sql``.
        hosts: further servers that get tags, besides private ones and the gateway; see ``openai.instrument``.

    Returns:
        function that removes the instrumentation.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is malformed.
    """
    return begin_tagging(_TAGGING, workflow, hosts)


_TAGGING = tagging_requests(BaseClient)
