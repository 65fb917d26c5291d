"""Changes to other packages that tag their calls: made once for any number of users, and undone.

An adapter imports its framework inside :func:`framework`, describes its changes as an
:class:`Instrumentation`, and exports the bound method ``instrument``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from importlib import import_module
from threading import Lock
from types import ModuleType
from typing import Any

from agentspec.adapters.allowed_hosts import HOSTS, Hosts, is_disabled
from agentspec.adapters.caller import CALLER, calling
from agentspec.adapters.headers import agentspec_headers
from agentspec.distribution import DISTRIBUTION, DOCUMENTS
from agentspec.errors import AdapterError
from agentspec.wire import HEADER_PREFIX

# imported module -> pip requirement
REQUIREMENTS = {
    "ag2": "ag2",
    "agents": "openai-agents",
    "autogen_agentchat": "autogen-agentchat",
    "autogen_core": "autogen-agentchat",
    "crewai": "crewai",
    "dspy": "dspy",
    "langchain_core": f"'{DISTRIBUTION}[langchain]'",
    "langchain_openai": f"'{DISTRIBUTION}[langchain]'",
    "litellm": "litellm",
    "llama_index": "llama-index-core",
    "openai": "openai",
    "openhands": f"'{DISTRIBUTION}[openhands]'",
    "pydantic_ai": "pydantic-ai-slim",
    "smolagents": "smolagents",
}
_REDIRECT_METHOD = "_redirect_headers"

Undo = Callable[[], None]
Changes = Callable[[], Iterator[Undo]]


@contextmanager
def framework() -> Iterator[None]:
    """Raise a ModuleNotFoundError with installation advice if the body can't import its framework."""
    try:
        yield
    except ModuleNotFoundError as error:
        package, _, inner = (error.name or "").partition(".")
        if package not in REQUIREMENTS:
            raise
        advice = f"pip install {REQUIREMENTS[package]}"
        if inner:  # the package is installed, in a version without this module
            advice = f"install a version that {DOCUMENTS}/adapters.md names"
        raise ModuleNotFoundError(f"this adapter needs {error.name}: {advice}", name=error.name) from None


def replace_method(owner: type | ModuleType, name: str, replacing: Callable[[Any], Any]) -> Undo:
    """Replace the class's own method, or the function of a module, with ``replacing(original)``.

    Returns:
        function that restores the original; it does nothing if the method was replaced again since.

    Raises:
        AdapterError: the name does not exist, e.g. in an untested version of the framework.
    """
    if name not in owner.__dict__:
        whole = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
        raise AdapterError(f"{whole} has no {name!r}: install a version that {DOCUMENTS}/adapters.md names")
    original = owner.__dict__[name]
    replacement = replacing(original)
    setattr(owner, name, replacement)

    def undo() -> None:
        if owner.__dict__[name] is replacement:
            setattr(owner, name, original)

    return undo


def replacements(*replaced: tuple[type | ModuleType, str, Callable[[Any], Any]]) -> Changes:
    """Return changes that call :func:`replace_method` with each of these arguments."""
    return lambda: (replace_method(*one) for one in replaced)


class Instrumentation:
    """Changes to a framework, in force while at least one user of them has not undone theirs.

    Args:
        changes: makes the changes one by one and yields a function that undoes each.
        beneath: instrumentation that these changes need, e.g. that of the ``openai`` client.
    """

    def __init__(self, changes: Changes, beneath: Instrumentation | None = None) -> None:
        self._changes = changes
        self._beneath = beneath
        self._undoing = ExitStack()
        self._users: list[tuple[object, str | None]] = []
        self._lock = Lock()

    @property
    def is_in_force(self) -> bool:
        """True if it has a user. If not, replacements held by other code must do nothing."""
        return bool(self._users)

    @property
    def workflow(self) -> str | None:
        """The workflow of the latest user, the prefix of every stage."""
        users = self._users
        return users[-1][1] if users else None

    def instrument(self, *, workflow: str | None = None, hosts: Hosts | None = None) -> Undo:
        """Tag the calls of all clients and agents of this framework, existing ones included, until undone.

        An explicit stage (``stage(...)``, metadata) precedes the framework's names, and explicit headers
        stay. The latest active instrumentation sets the workflow. The gateway infers the stage of a call
        without one. If ``$AGENTSPEC_DISABLE`` is set, nothing is changed.

        Args:
            workflow: prefix of every stage, e.g. ``agentic_sql``.
            hosts: further servers that get tags, besides local and private ones and the gateway of
                ``$AGENTSPEC_URL``: names, addresses, ``*.example.com``, or ``"*"`` for all.

        Returns:
            function that removes the instrumentation.

        Raises:
            StageError: ``workflow`` is malformed.
            ConfigError: ``hosts`` is malformed.
            AdapterError: a method of the framework does not exist; nothing was changed.
        """
        agentspec_headers(None, workflow=workflow)
        with ExitStack() as undoing:
            if not is_disabled():
                undoing.callback(HOSTS.add(hosts))
                for guard in guards():
                    undoing.callback(guard.begin(None))
                undoing.callback(self.begin(workflow))
            return undoing.pop_all().close

    def begin(self, workflow: str | None) -> Undo:
        """Make the changes, those beneath first, unless they are in force already.

        Returns:
            function that ends this use; the last one to end undoes the changes.

        Raises:
            AdapterError: see :meth:`instrument`.
        """
        undo_beneath = self._beneath.begin(workflow) if self._beneath else None
        mine = (object(), workflow)

        def undo() -> None:
            with self._lock:
                if mine in self._users:
                    self._users.remove(mine)
                    if not self._users:
                        self._undoing.close()
            if undo_beneath is not None:
                undo_beneath()

        with self._lock:
            self._users.append(mine)
            if len(self._users) > 1:
                return undo
            try:
                for undo_change in self._changes():
                    self._undoing.callback(undo_change)
            except BaseException:
                self._users.remove(mine)
                self._undoing.close()
                if undo_beneath is not None:
                    undo_beneath()
                raise
        return undo


def guards() -> list[Instrumentation]:
    """Return the instrumentations that all others need: thread pools and the redirects of HTTP libraries.

    Version 3 of ``openai`` uses ``httpx2`` and also accepts ``httpx`` clients.
    """
    libraries = [name for name in ("httpx", "httpx2") if name == "httpx" or name in sys.modules]
    return [*map(_redirects_of, libraries), THREAD_POOLS]


@cache
def _redirects_of(library: str) -> Instrumentation:
    client: type = import_module(library).Client
    owner = next((owner for owner in client.__mro__ if _REDIRECT_METHOD in vars(owner)), client)
    return Instrumentation(replacements((owner, _REDIRECT_METHOD, _without_tags_for_strangers)))


def _without_tags_for_strangers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Remove the tags of a call that is redirected to a server without tags.

    HTTPX itself removes only ``Authorization``.
    """

    @wraps(original)
    def redirect_headers(client: Any, request: Any, url: Any, method: str) -> Any:
        headers = original(client, request, url, method)
        if url.host != request.url.host and not HOSTS.allow(url.host):
            for name in [name for name in headers if name.startswith(HEADER_PREFIX)]:
                del headers[name]
        return headers

    return redirect_headers


def _with_caller(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the caller for a function that is submitted to a thread pool.

    Python copies no context into the threads of a ``ThreadPoolExecutor``, so the stage of a block around the
    pool would be lost there.
    """

    @wraps(original)
    def submit(executor: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        caller = CALLER.get()
        if caller is None:
            return original(executor, function, *args, **kwargs)

        def by_caller(*args: Any, **kwargs: Any) -> Any:
            with calling(caller):
                return function(*args, **kwargs)

        return original(executor, by_caller, *args, **kwargs)

    return submit


THREAD_POOLS = Instrumentation(replacements((ThreadPoolExecutor, "submit", _with_caller)))
