"""All frameworks of a process instrumented: those that are imported already, and those that will be."""

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
    """As what ``agentspec run`` starts a program with, for one program that asks for it, and to be undone."""

    def __init__(self, workflow: str | None, hosts: Hosts | None) -> None:
        super().__init__()
        self._workflow = workflow
        self._hosts = hosts
        self._undoing: list[Callable[[], None]] = []
        self._is_over = False
        self._lock = Lock()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec that the other finders have, of a framework or an adapter."""
        return super().find_spec(name, path, target) if name in FRAMEWORKS or name in ADAPTERS else None

    def begin(self, adapter: ModuleType) -> None:
        """Instrument this framework, unless it is over."""
        undo = adapter.instrument(workflow=self._workflow, hosts=self._hosts)
        with self._lock:
            if not self._is_over:
                self._undoing.append(undo)
                return
        undo()

    def fail(self, framework: str, error: Exception) -> None:
        """Say why its calls stay untagged; the program goes on."""
        logger.warning("no adapter for %s: %s: %s", framework, type(error).__name__, error)

    def end(self) -> None:
        """Undo all of it, and wait for nothing more."""
        with self._lock:
            self._is_over = True
            undoing, self._undoing = self._undoing, []
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for undo in reversed(undoing):
            undo()


def auto(workflow: str | None = None, *, hosts: Hosts | None = None) -> Callable[[], None]:
    """Tag the calls of every framework that has an adapter, imported already or later, until it is undone.

    A framework whose adapter fails stays untagged, and the logger ``agentspec.adapters`` warns of it.

    Args:
        workflow: what goes before every stage, e.g. ``agentic_sql``.
        hosts: servers that get tags besides private ones and the gateway, as in ``openai.instrument``.

    Returns:
        what undoes it.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is.
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
