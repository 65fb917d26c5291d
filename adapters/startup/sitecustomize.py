"""Tag the model calls of an unchanged Python program; loaded by ``agentspec run``.

Python imports the first ``sitecustomize`` on its path at every start. ``agentspec run`` puts the folder of
this one into ``$PYTHONPATH``. It calls an adapter's ``instrument()`` as soon as the adapter's framework is
imported, and then imports the ``sitecustomize`` that it shadows. Its errors never make the program fail. It
runs in the program's own Python, with or without AgentSpec installed.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# imported module, a name in it that distinguishes it from unrelated modules of that name, and the adapter
FRAMEWORKS = {
    "ag2": ("Agent", "ag2"),
    "agents": ("Runner", "openai_agents"),
    "anthropic": ("Anthropic", "anthropic"),
    "autogen_agentchat": ("__version__", "autogen"),
    "crewai": ("Crew", "crewai"),
    "dspy": ("Module", "dspy"),
    "langchain_openai": ("ChatOpenAI", "langchain"),
    "litellm": ("completion", "litellm"),
    "llama_index.core": ("Settings", "llama_index"),
    "openai": ("OpenAI", "openai"),
    "openhands.sdk": ("LLM", "openhands"),
    "pydantic_ai": ("Agent", "pydantic_ai"),
    "smolagents": ("MultiStepAgent", "smolagents"),
}
ADAPTERS = {f"agentspec.adapters.{adapter}": name for name, (_, adapter) in FRAMEWORKS.items()}
CLIENTS = ("httpx", "httpx2")  # most SDKs make their requests with one of these
WORKFLOW_VARIABLE = "AGENTSPEC_WORKFLOW"
DISABLE_VARIABLE = "AGENTSPEC_DISABLE"
SESSION_VARIABLE = "AGENTSPEC_SESSION"
RUN_VARIABLE, PARENT_VARIABLE = "AGENTSPEC_RUN", "AGENTSPEC_RUN_PARENT"
REPORT_VARIABLE = "AGENTSPEC_RUN_REPORT"
KEY_VARIABLE = "AGENTSPEC_RUN_KEY"  # for the gateway only
NO_KEY = "none"  # put into the environment where the gateway wants no key
KEY_HEADERS = ("authorization", "x-api-key", "api-key")
SAID_VARIABLE = "AGENTSPEC_RUN_SAID"  # names already reported, which child processes need not repeat


class Waiting:
    """A meta path finder that delegates to the others and instruments a framework after its import.

    It also handles the import of adapters: if the program imports one, the framework is loaded first.
    """

    def __init__(self) -> None:
        self._frameworks = set(FRAMEWORKS)

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the finders behind this one."""
        if name not in FRAMEWORKS and name not in ADAPTERS and name not in CLIENTS:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        for finder in behind:  # finders before this one ran already, or are of this kind too
            if not hasattr(finder, "find_spec"):
                continue
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def instrument(self, framework: str) -> None:
        """Tag the framework's calls, once, as soon as it and its adapter are imported."""
        mark, adapter = FRAMEWORKS[framework]
        if framework not in self._frameworks or not hasattr(sys.modules.get(framework), mark):
            return
        try:
            module = importlib.import_module(f"agentspec.adapters.{adapter}")
            if hasattr(module, "instrument") and framework in self._frameworks:
                # else its import is still in progress, or ended with this
                self._frameworks.discard(framework)
                self.begin(module)
        except Exception as error:
            self._frameworks.discard(framework)
            self.fail(framework, error)

    def begin(self, adapter: ModuleType) -> None:
        """Tag the calls of this framework, with the workflow of the environment."""
        adapter.instrument(workflow=os.environ.get(WORKFLOW_VARIABLE) or None)

    def fail(self, framework: str, error: Exception) -> None:
        """Report why the framework's calls stay untagged; the program continues."""
        _say(framework, error)

    def _follow(self, loader: Any) -> None:
        """Hook into the loader to act after a module's execution; a loader may serve several modules."""
        original = getattr(loader, "exec_module", None)
        followers = getattr(original, "followers", ())
        if original is None or self in followers:
            return

        def exec_module(module: ModuleType) -> None:
            original(module)
            name = ADAPTERS.get(module.__name__, module.__name__)
            if name in FRAMEWORKS:
                self.instrument(name)
            elif name in CLIENTS:
                with suppress(Exception):
                    _watch_requests(module)

        exec_module.followers = (*followers, self)  # type: ignore[attr-defined]
        with suppress(AttributeError):  # a loader without assignable attributes
            loader.exec_module = exec_module


def _watch_requests(module: ModuleType) -> None:
    """Write each server that gets a POST to the run's report, once, and keep the run's key from strangers."""
    reported: set[str] = set()

    def report(request: Any) -> None:
        if request.method != "POST":
            return
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        if origin not in reported:
            reported.add(origin)
            descriptor = os.open(os.environ[REPORT_VARIABLE], os.O_WRONLY | os.O_APPEND)
            try:
                os.write(descriptor, f"{origin}\n".encode())
            finally:
                os.close(descriptor)

    def replacing(send: Any) -> Any:
        @wraps(send)
        def call(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            with suppress(Exception):
                _withhold_key(request)
                report(request)
            return send(client, request, *args, **kwargs)

        return call

    def replacing_async(send: Any) -> Any:
        @wraps(send)
        async def call(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            with suppress(Exception):
                _withhold_key(request)
                report(request)
            return await send(client, request, *args, **kwargs)

        return call

    module.Client.send = replacing(module.Client.send)
    module.AsyncClient.send = replacing_async(module.AsyncClient.send)


def _withhold_key(request: Any) -> None:
    """Remove the run's key from a request to a public server: the key is for the gateway only."""
    key = os.environ.get(KEY_VARIABLE) or NO_KEY
    named = [] if key == NO_KEY else [name for name in KEY_HEADERS if key in request.headers.get(name, "")]
    if named:
        hosts = importlib.import_module("agentspec.adapters.allowed_hosts").HOSTS
        for name in named if not hosts.allow(request.url.host) else ():
            del request.headers[name]


def _join_session() -> None:
    """Join a child process of the program to the run's session; the program itself separates its runs."""
    run = os.environ.get(RUN_VARIABLE)
    is_program = os.environ.get(PARENT_VARIABLE) == str(os.getppid())
    if run and not is_program and not os.environ.get(SESSION_VARIABLE):
        os.environ[SESSION_VARIABLE] = run


def _say(name: str, error: Exception) -> None:
    """Report the error on standard error, once per framework."""
    said = os.environ.get(SAID_VARIABLE, "").split(",")
    if isinstance(error, ModuleNotFoundError) and error.name == "agentspec":
        name, reason = "agentspec", f"AgentSpec is not installed for {sys.executable}"
    else:
        first = str(error).partition("\n")[0]
        reason = f"no adapter for {name}: {type(error).__name__}: {first}"
    if name not in said:
        os.environ[SAID_VARIABLE] = ",".join(filter(None, [*said, name]))
        with suppress(Exception):  # the program may have closed it
            sys.stderr.write(f"agentspec run: {reason}; the gateway has to find the stages of its calls\n")


def _hand_on() -> None:
    """Import the next ``sitecustomize`` on the path, if there is one; its errors propagate."""
    here = os.path.realpath(os.path.dirname(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder or ".") != here]
    ours = sys.modules.pop(__name__, None)
    if PathFinder.find_spec("sitecustomize") is not None:
        importlib.import_module("sitecustomize")
    elif ours is not None:
        sys.modules[__name__] = ours


if __name__ == "sitecustomize":
    if os.environ.get(DISABLE_VARIABLE, "").lower() in ("", "0", "false", "no"):
        _waiting = Waiting()
        sys.meta_path.insert(0, _waiting)
        _join_session()
        for _name in FRAMEWORKS.keys() & sys.modules.keys():
            _waiting.instrument(_name)
    _hand_on()
