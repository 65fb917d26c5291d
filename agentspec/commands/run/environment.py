"""The environment that ``agentspec run`` sets for a program: address and key of the gateway, and call tags.

Clients and frameworks read these names. The base URL carries the run's session and workflow, so that every
client sends them, and sends them to the gateway only. A tag in a header overrides the base URL's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import agentspec.adapters
from agentspec.adapters.allowed_hosts import URL_VARIABLE, is_disabled
from agentspec.adapters.caller import RUN_SESSION_VARIABLE, SESSION_VARIABLE
from agentspec.commands.run.watchdog import RUN_VARIABLE
from agentspec.errors import ConfigError
from agentspec.wire import MAX_SESSION_CHARS, SESSION_URL_PREFIX, WORKFLOW_URL_PREFIX, encode_stage

STARTUP = Path(agentspec.adapters.__file__).with_name("startup")  # start-up code of Python programs
PATH_VARIABLE = "PYTHONPATH"
WORKFLOW_VARIABLE = "AGENTSPEC_WORKFLOW"
PARENT_VARIABLE = "AGENTSPEC_RUN_PARENT"  # this command's process id; other parents belong to the program
REPORT_VARIABLE = "AGENTSPEC_RUN_REPORT"  # file to which Python processes write the servers that they call
# the path that each expects after the gateway's root
BASE_URLS = {
    "OPENAI_BASE_URL": "/v1",
    "OPENAI_API_BASE": "/v1",
    "LLM_BASE_URL": "/v1",
    "ANTHROPIC_BASE_URL": "",
    "ANTHROPIC_API_BASE": "",
}
KEYS = {
    "OPENAI_API_KEY": (),
    "LLM_API_KEY": (),
    "ANTHROPIC_API_KEY": ("ANTHROPIC_AUTH_TOKEN",),
}  # with their alternatives
PROXIES = ("http_proxy", "https_proxy", "all_proxy")  # in capitals, too
NO_PROXY = ("no_proxy", "NO_PROXY")
NO_KEY = "none"  # clients don't start without any
KEY_VARIABLE = "AGENTSPEC_RUN_KEY"  # the key that was put into the environment: for the gateway only
# OpenAI's Agents SDK sends its traces, prompts included, to OpenAI once there is an OPENAI_API_KEY
UNTRACED = "OPENAI_AGENTS_DISABLE_TRACING"
UNTRACED_VARIABLE = "AGENTSPEC_RUN_UNTRACED"  # set if this command switched that tracing off


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program.

    Attributes:
        root: gateway's URL, without ``/v1``.
        key: key for the gateway, if it requires one.
        session: session of its calls, unless a call has a better one.
        workflow: prefix of the stages, if given.
        run_id: unique id of the run.
        report: file to which the program's Python processes write.
    """

    root: str
    key: str | None = field(repr=False)
    session: str
    workflow: str | None = None
    run_id: str = ""
    report: Path | None = None

    @property
    def tagged_root(self) -> str:
        """The root with the tags of every call, from any client."""
        workflow = f"{WORKFLOW_URL_PREFIX}{encode_stage(self.workflow)}" if self.workflow else ""
        return f"{self.root}{SESSION_URL_PREFIX}{self.session}{workflow}"


def run_environment(run: Run, given: Mapping[str, str] = os.environ) -> tuple[dict[str, str], list[str]]:
    """Return the program's environment, and the names of variables that had other values."""
    plain = {name: run.root + path for name, path in BASE_URLS.items()}
    tagged = {name: run.tagged_root + path for name, path in BASE_URLS.items()}
    ours = {**(plain if is_disabled(given) else tagged), **_keys(run, given)}
    replaced = [
        name for name, value in ours.items() if given.get(name, value) not in ("", value, plain.get(name))
    ]
    environment = {**given, **ours, **_no_proxy(run, given)}
    if "OPENAI_API_KEY" in ours and given.get(UNTRACED, "").lower() not in ("1", "true"):
        environment.update({UNTRACED: "1", UNTRACED_VARIABLE: "1"})
    environment[PATH_VARIABLE] = os.pathsep.join(filter(None, (str(STARTUP), given.get(PATH_VARIABLE))))
    environment[WORKFLOW_VARIABLE] = run.workflow or ""
    environment[URL_VARIABLE] = run.root  # requests to its host get tags
    environment[RUN_SESSION_VARIABLE] = run.session
    environment[KEY_VARIABLE] = run.key or NO_KEY
    environment[RUN_VARIABLE] = run.run_id
    environment[PARENT_VARIABLE] = str(os.getpid())
    environment[REPORT_VARIABLE] = str(run.report or "")
    return environment, replaced


def session_for(run_id: str, given: Mapping[str, str] = os.environ) -> str:
    """Return the environment's session, or else the run's id. Raises ConfigError if no URL can have it."""
    named = given.get(SESSION_VARIABLE) or run_id
    if named in (".", ".."):
        raise ConfigError(
            f"${SESSION_VARIABLE} is {named!r}, which clients remove from a URL: set another name"
        )
    try:
        session = quote(named, safe="")
    except UnicodeEncodeError:
        session = ""
    if not 1 <= len(session) <= MAX_SESSION_CHARS:
        raise ConfigError(
            f"${SESSION_VARIABLE} must have 1 to {MAX_SESSION_CHARS} characters once percent-encoded,"
            f" not {named!r}"
        )
    return session


def _keys(run: Run, given: Mapping[str, str]) -> dict[str, str]:
    """Return the gateway's key under every key variable: a client may send any of several."""
    keys = {}
    for name, others in KEYS.items():
        set_instead = [other for other in others if given.get(other)]
        if run.key:
            keys.update(dict.fromkeys((name, *set_instead), run.key))
        elif not given.get(name) and not set_instead:
            keys[name] = NO_KEY
    return keys


def _no_proxy(run: Run, given: Mapping[str, str]) -> dict[str, str]:
    """Return ``no_proxy`` with the gateway's host if proxies are set: this command uses none to reach it."""
    if not any(value and name.lower() in PROXIES for name, value in given.items()):
        return {}
    known = next(filter(None, map(given.get, NO_PROXY)), None)
    return dict.fromkeys(NO_PROXY, ",".join(filter(None, (known, urlsplit(run.root).hostname))))
