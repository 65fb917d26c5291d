"""What ``agentspec run`` sets in a program's environment: where its calls go, and whose they are.

The names are those that clients and frameworks read. What the environment tells of a call it tells in headers
that anything better goes before: an adapter's stage and session, a header set by hand.
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
from agentspec.commands.program_watchdog import RUN_VARIABLE
from agentspec.errors import ConfigError
from agentspec.wire import MAX_SESSION_CHARS, SESSION_HEADER, STAGE_HEADER

STARTUP = Path(agentspec.adapters.__file__).with_name("startup")  # what Python programs begin with
PATH_VARIABLE = "PYTHONPATH"
WORKFLOW_VARIABLE = "AGENTSPEC_WORKFLOW"
SESSION_VARIABLE = "AGENTSPEC_SESSION"  # what adapters send for runs that have no id of their own
PARENT_VARIABLE = "AGENTSPEC_RUN_PARENT"  # the process id of this command: other parents are in the program
REPORT_VARIABLE = "AGENTSPEC_RUN_REPORT"  # the file in which Python processes name the servers that they ask
# by what each wants after the gateway's root
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
}  # or one of those
PROXIES = ("http_proxy", "https_proxy", "all_proxy")  # in capitals, too
NO_PROXY = ("no_proxy", "NO_PROXY")
NO_KEY = "none"  # clients don't start without any
HEADER_LINES = ("OPENAI_CUSTOM_HEADERS", "ANTHROPIC_CUSTOM_HEADERS")
HEADER_OBJECT = "LLM_EXTRA_HEADERS"
RUN_SESSION_HEADER = "X-Session-ID"
BAGGAGE_HEADER = "baggage"
# whoever sets one of the latter by hand needs none of ours
INSTEAD = {
    RUN_SESSION_HEADER.lower(): {RUN_SESSION_HEADER.lower(), SESSION_HEADER},
    BAGGAGE_HEADER: {BAGGAGE_HEADER, STAGE_HEADER},
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program.

    Attributes:
        root: the gateway's URL, without ``/v1``.
        key: for the gateway, if it wants one.
        session: of its calls, where nothing better is known.
        workflow: what goes before the stages, if it is named.
        run_id: no other run has it.
        report: the file to which the program's Python processes write.
    """

    root: str
    key: str | None = field(repr=False)
    session: str
    workflow: str | None = None
    run_id: str = ""
    report: Path | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Of every call, whatever client makes it."""
        headers = {RUN_SESSION_HEADER: self.session}
        if self.workflow:
            headers[BAGGAGE_HEADER] = f"gen_ai.workflow.name={quote(self.workflow, safe='/')}"
        return headers


def run_environment(run: Run, given: Mapping[str, str] = os.environ) -> tuple[dict[str, str], list[str]]:
    """The program's environment, and the names of what somebody had set otherwise."""
    urls = {name: run.root + path for name, path in BASE_URLS.items()}
    ours = {**urls, **_keys(run, given)}
    replaced = [name for name, value in ours.items() if given.get(name, value) not in ("", value)]
    headers = {} if is_disabled(given) else _headers(run, given)
    environment = {**given, **ours, **headers, **_no_proxy(run, given)}
    environment[PATH_VARIABLE] = os.pathsep.join(filter(None, (str(STARTUP), given.get(PATH_VARIABLE))))
    environment[WORKFLOW_VARIABLE] = run.workflow or ""
    environment[URL_VARIABLE] = run.root  # its host gets tags
    environment[RUN_TAGS_VARIABLE] = run_tags_lines(run.headers)
    environment[RUN_VARIABLE] = run.run_id
    environment[PARENT_VARIABLE] = str(os.getpid())
    environment[REPORT_VARIABLE] = str(run.report or "")
    return environment, replaced


def session_for(run_id: str, given: Mapping[str, str] = os.environ) -> str:
    """The session that the environment names, else the run's id. Raises ConfigError if it fits no header."""
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
    """The gateway's key under every name that has one: of two that a client sends, the other might count."""
    keys = {}
    for name, others in KEYS.items():
        set_instead = [other for other in others if given.get(other)]
        if run.key:
            keys.update(dict.fromkeys((name, *set_instead), run.key))
        elif not given.get(name) and not set_instead:
            keys[name] = NO_KEY
    return keys


def _no_proxy(run: Run, given: Mapping[str, str]) -> dict[str, str]:
    """Where there are proxies: none before the gateway, which this command reaches without any."""
    if not any(value and name.lower() in PROXIES for name, value in given.items()):
        return {}
    known = next(filter(None, map(given.get, NO_PROXY)), None)
    return dict.fromkeys(NO_PROXY, ",".join(filter(None, (known, urlsplit(run.root).hostname))))


def _headers(run: Run, given: Mapping[str, str]) -> dict[str, str]:
    """Those that somebody set by hand, and ours behind them."""
    told = {}
    for name in HEADER_LINES:
        lines = given.get(name, "").splitlines()
        ours = _lacking(run.headers, {line.partition(":")[0].strip().lower() for line in lines})
        told[name] = "\n".join([*lines, *(f"{header}: {value}" for header, value in ours.items())])
    try:
        by_hand = json.loads(given.get(HEADER_OBJECT) or "{}")
        told[HEADER_OBJECT] = json.dumps(
            {**by_hand, **_lacking(run.headers, {key.lower() for key in by_hand})}
        )
    except (
        ValueError,
        TypeError,
        AttributeError,
    ):  # it is theirs, and whoever reads it will say what is wrong
        pass
    return told


def _lacking(headers: Mapping[str, str], by_hand: set[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if by_hand.isdisjoint(INSTEAD[name.lower()])}
