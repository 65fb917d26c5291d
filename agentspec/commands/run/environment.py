"""The environment that ``agentspec run`` sets for a program: address and key of the gateway, and call tags.

Clients and frameworks read these names. Tags from the environment are sent in headers of low precedence: an
adapter's stage and session, or a header set by hand, override them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import agentspec.adapters
from agentspec.adapters.allowed_hosts import URL_VARIABLE, is_disabled
from agentspec.adapters.run_tags import RUN_TAGS_VARIABLE, run_tags_lines
from agentspec.commands.run.watchdog import RUN_VARIABLE
from agentspec.errors import ConfigError
from agentspec.wire import MAX_SESSION_CHARS, SESSION_HEADER, STAGE_HEADER

STARTUP = Path(agentspec.adapters.__file__).with_name("startup")  # start-up code of Python programs
PATH_VARIABLE = "PYTHONPATH"
WORKFLOW_VARIABLE = "AGENTSPEC_WORKFLOW"
SESSION_VARIABLE = "AGENTSPEC_SESSION"  # sent by adapters for runs without an id
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
HEADER_LINES = ("OPENAI_CUSTOM_HEADERS", "ANTHROPIC_CUSTOM_HEADERS")
HEADER_OBJECT = "LLM_EXTRA_HEADERS"
RUN_SESSION_HEADER = "X-Session-ID"
BAGGAGE_HEADER = "baggage"
# if one of these is set by hand, ours is left out
INSTEAD = {
    RUN_SESSION_HEADER.lower(): {RUN_SESSION_HEADER.lower(), SESSION_HEADER},
    BAGGAGE_HEADER: {BAGGAGE_HEADER, STAGE_HEADER},
}


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
    def headers(self) -> dict[str, str]:
        """The headers of every call, from any client."""
        headers = {RUN_SESSION_HEADER: self.session}
        if self.workflow:
            headers[BAGGAGE_HEADER] = f"gen_ai.workflow.name={quote(self.workflow, safe='/')}"
        return headers


def run_environment(run: Run, given: Mapping[str, str] = os.environ) -> tuple[dict[str, str], list[str]]:
    """Return the program's environment, and the names of variables that had other values."""
    urls = {name: run.root + path for name, path in BASE_URLS.items()}
    ours = {**urls, **_keys(run, given)}
    replaced = [name for name, value in ours.items() if given.get(name, value) not in ("", value)]
    headers = {} if is_disabled(given) else _headers(run, given)
    environment = {**given, **ours, **headers, **_no_proxy(run, given)}
    environment[PATH_VARIABLE] = os.pathsep.join(filter(None, (str(STARTUP), given.get(PATH_VARIABLE))))
    environment[WORKFLOW_VARIABLE] = run.workflow or ""
    environment[URL_VARIABLE] = run.root  # requests to its host get tags
    environment[RUN_TAGS_VARIABLE] = run_tags_lines(run.headers)
    environment[RUN_VARIABLE] = run.run_id
    environment[PARENT_VARIABLE] = str(os.getpid())
    environment[REPORT_VARIABLE] = str(run.report or "")
    return environment, replaced


def session_for(run_id: str, given: Mapping[str, str] = os.environ) -> str:
    """Return the environment's session, or else the run's id. Raises ConfigError if it fits no header."""
    named = given.get(SESSION_VARIABLE) or run_id
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


def _headers(run: Run, given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers set by hand, followed by ours."""
    variables = {}
    for name in HEADER_LINES:
        lines = given.get(name, "").splitlines()
        ours = _lacking(run.headers, {line.partition(":")[0].strip().lower() for line in lines})
        variables[name] = "\n".join([*lines, *(f"{header}: {value}" for header, value in ours.items())])
    try:
        by_hand = json.loads(given.get(HEADER_OBJECT) or "{}")
        variables[HEADER_OBJECT] = json.dumps(
            {**by_hand, **_lacking(run.headers, {key.lower() for key in by_hand})}
        )
    except (
        ValueError,
        TypeError,
        AttributeError,
    ):  # the program that reads it reports the error
        pass
    return variables


def _lacking(headers: Mapping[str, str], by_hand: set[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if by_hand.isdisjoint(INSTEAD[name.lower()])}
