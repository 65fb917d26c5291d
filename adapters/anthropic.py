"""The plain ``anthropic`` client: tag its messages like the calls of an ``openai`` client.

instrument(workflow="agentic_sql")
with stage("extract"):
    client.messages.create(...)
"""

from __future__ import annotations

from anthropic._base_client import BaseClient  # same structure as openai's

from agentspec.adapters.block import stage, untagged
from agentspec.adapters.client_requests import tagging_requests

__all__ = ["instrument", "stage", "untagged"]

instrument = tagging_requests(BaseClient).instrument
