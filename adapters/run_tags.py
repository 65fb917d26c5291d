"""The headers that ``agentspec run`` puts into a program's environment, for clients that no adapter tags.

Clients send them wherever they send anything. Where an adapter makes the request, it takes them off what a
stranger
gets: it knows them by their values.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from agentspec.adapters.caller import SESSION_VARIABLE

WORKFLOW_VARIABLE = "AGENTSPEC_WORKFLOW"
RUN_SESSION_HEADER = "X-Session-ID"
BAGGAGE_HEADER = "baggage"


@lru_cache(maxsize=16)
def run_tags(session: str, workflow: str | None) -> dict[str, str]:
    """The headers of every call of a run, whatever client makes it."""
    headers = {RUN_SESSION_HEADER: session}
    if workflow:
        headers[BAGGAGE_HEADER] = f"gen_ai.workflow.name={quote(workflow, safe='/')}"
    return headers


def drop_run_tags(headers: MutableMapping[str, Any]) -> None:
    """Take off what the environment added; headers of the same name with another value stay."""
    session = os.environ.get(SESSION_VARIABLE)
    if not session:
        return
    ours = {
        name.lower(): value for name, value in run_tags(session, os.environ.get(WORKFLOW_VARIABLE)).items()
    }
    for name in [name for name, value in headers.items() if ours.get(name.lower()) == value]:
        del headers[name]
