"""Instrument all frameworks of a process: those imported already, and those imported later."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from threading import Lock
from types import ModuleType
from typing import Any

from agentspec.adapters.allowed_hosts import Hosts, hosts_in, is_disabled
from agentspec.adapters.headers import agentspec_headers
from agentspec.adapters.startup.sitecustomize import ADAPTERS, FRAMEWORKS, Waiting

logger = logging.getLogger("agentspec.adapters")


class Instrumenting(Waiting):
    """The import hook of ``agentspec run`` as an explicit, removable instrumentation of one program."""

    def __init__(self, workflow: str | None, hosts: Hosts | None) -> None:
        super().__init__()
        self._workflow = workflow
        self._hosts = hosts
        self._undoing: list[Callable[[], None]] = []
        self._is_over = False
        self._lock = Lock()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the other finders' spec of a framework or an adapter."""
        return super().find_spec(name, path, target) if name in FRAMEWORKS or name in ADAPTERS else None

    def begin(self, adapter: ModuleType) -> None:
        """Instrument this framework, unless ``end`` was called."""
        undo = adapter.instrument(workflow=self._workflow, hosts=self._hosts)
        with self._lock:
            if not self._is_over:
                self._undoing.append(undo)
                return
        undo()

    def fail(self, framework: str, error: Exception) -> None:
        """Log why the framework's calls stay untagged; the program continues."""
        logger.warning("no adapter for %s: %s: %s", framework, type(error).__name__, error)

    def end(self) -> None:
        """Remove all instrumentations and ignore further imports."""
        with self._lock:
            self._is_over = True
            undoing, self._undoing = self._undoing, []
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for undo in reversed(undoing):
            undo()


def auto(workflow: str | None = None, *, hosts: Hosts | None = None) -> Callable[[], None]:
    """Tag the calls of every framework that has an adapter, imported already or later, until undone.

    If an adapter fails, its framework stays untagged and the logger ``agentspec.adapters`` logs a warning.

    Args:
        workflow: prefix of every stage, e.g. ``agentic_sql``.
        hosts: further servers that get tags, besides private ones and the gateway; see an
            adapter's ``instrument``.

    Returns:
        function that removes the instrumentation.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is malformed.
    """
    agentspec_headers(None, workflow=workflow)
    hosts = hosts_in(hosts or ())
    instrumenting = Instrumenting(workflow, hosts)
    if not is_disabled():
        sys.meta_path.insert(0, instrumenting)
        for name in FRAMEWORKS:
            if name in sys.modules:
                instrumenting.instrument(name)
    return instrumenting.end
