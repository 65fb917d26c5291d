"""Start and end of an instrumentation, shared by all adapters that tag requests themselves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from agentspec.adapters.allowed_hosts import HOSTS, Hosts, is_disabled
from agentspec.adapters.headers import agentspec_headers
from agentspec.adapters.redirects import redirects
from agentspec.adapters.replacement import Tagging
from agentspec.adapters.threads import POOLS

Undo = Callable[[], None]


def begin_tagging(tagging: Tagging, workflow: str | None, hosts: Hosts | None) -> Undo:
    """Tag the calls to allowed servers, until undone. Do nothing if ``$AGENTSPEC_DISABLE`` is set.

    Returns:
        function that removes the instrumentation.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is malformed.
        AdapterError: a method of the framework or of HTTPX does not exist; nothing was changed.
    """
    agentspec_headers(None, workflow=workflow)
    undoing = ExitStack()
    if is_disabled():
        return undoing.close
    try:
        undoing.callback(HOSTS.add(hosts))
        for around in (*redirects(), POOLS):
            undoing.callback(around.instrument(None))
        undoing.callback(tagging.instrument(workflow))
    except BaseException:
        undoing.close()
        raise
    return undoing.close
