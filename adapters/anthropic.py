"""The plain ``anthropic`` client: its messages tagged as the calls of an ``openai`` client are.

instrument(workflow="agentic_sql")
with stage("extract"):
    client.messages.create(...)
"""

from __future__ import annotations

from collections.abc import Callable

from anthropic._base_client import BaseClient  # of the same shape as openai's

from agentspec.adapters.allowed_hosts import Hosts
from agentspec.adapters.block import stage, untagged
from agentspec.adapters.client_requests import tagging_requests
from agentspec.adapters.tagging import begin_tagging

__all__ = ["instrument", "stage", "untagged"]


def instrument(*, workflow: str | None = None, hosts: Hosts | None = None) -> Callable[[], None]:
    """Tag the calls of every ``anthropic`` client, also of those that exist, until it is undone.

    Stage and session are as in ``agentspec.adapters.openai``.

    Args:
        workflow: what goes before every stage, e.g. ``agentic_sql``.
        hosts: servers that get tags besides private ones and the gateway, as in ``openai.instrument``.

    Returns:
        what undoes it.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is.
    """
    return begin_tagging(_TAGGING, workflow, hosts)


_TAGGING = tagging_requests(BaseClient)
