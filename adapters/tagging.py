"""The beginning and the end of an instrumentation, the same for every adapter that tags requests itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from agentspec.adapters.allowed_hosts import HOSTS, Hosts, is_disabled
from agentspec.adapters.headers import agentspec_headers
from agentspec.adapters.redirects import redirects
from agentspec.adapters.replacement import Tagging

Undo = Callable[[], None]


def begin_tagging(tagging: Tagging, workflow: str | None, hosts: Hosts | None) -> Undo:
    """Tag the calls to servers that may have tags, until it is undone; nothing with ``$AGENTSPEC_DISABLE``.

    Returns:
        what undoes it.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is.
        AdapterError: a method of the framework or of HTTPX is not there. Nothing was changed.
    """
    agentspec_headers(None, workflow=workflow)
    undoing = ExitStack()
    if is_disabled():
        return undoing.close
    try:
        undoing.callback(HOSTS.add(hosts))
        for guard in redirects():
            undoing.callback(guard.instrument(None))
        undoing.callback(tagging.instrument(workflow))
    except BaseException:
        undoing.close()
        raise
    return undoing.close
