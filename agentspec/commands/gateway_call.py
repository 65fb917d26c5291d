"""Shared parts of the commands that call a gateway's own routes: the call, its errors, and tables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from agentspec.errors import EngineError, RequestError
from agentspec.wire import OWN_PREFIX

TIMEOUT_S = 600.0
STAGES_PER_PAGE = 1_000
KEY_VARIABLE = "AGENTSPEC_API_KEY"
URL_VARIABLE = "AGENTSPEC_URL"
DEFAULT_URL = "http://127.0.0.1:8000"


def add_options(action: argparse.ArgumentParser) -> None:
    """Add the options for the gateway's URL and key."""
    url = os.environ.get(URL_VARIABLE) or DEFAULT_URL
    action.add_argument("--url", default=url, help=f"the gateway's; also ${URL_VARIABLE} (%(default)s)")
    action.add_argument("--key", default=os.environ.get(KEY_VARIABLE), help=f"API key; also ${KEY_VARIABLE}")


def add_actions(
    parser: argparse.ArgumentParser, actions: Mapping[str, tuple[str, Callable[[argparse.Namespace], None]]]
) -> dict[str, argparse.ArgumentParser]:
    """Add subcommands that call a gateway, each with its help and function. Return their parsers."""
    parsers = {}
    subparsers = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, (text, act) in actions.items():
        parsers[name] = subparsers.add_parser(name, help=text)
        parsers[name].set_defaults(run=_run_action, act=act, action=name)
        add_options(parsers[name])
    return parsers


def _run_action(args: argparse.Namespace) -> int:
    args.act(args)
    return 0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway: its URL, with or without ``/v1``, and the key to call it with, if any."""

    url: str
    key: str | None

    @property
    def root(self) -> str:
        """The URL without ``/v1``."""
        return root_of(self.url)

    @classmethod
    def of(cls, args: argparse.Namespace) -> Gateway:
        """Return the gateway that the options name."""
        return cls(args.url, args.key)

    def call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """Return the gateway's answer. Raises RequestError or EngineError, which name the next step."""
        url = own_url(self.url, path)
        try:
            answer = httpx.request(
                method, url, headers=key_header(self.key), timeout=TIMEOUT_S, trust_env=False, **body
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise no_answer(url, error) from None
        try:
            payload = answer.json()
        except ValueError:
            raise no_gateway(url, answer.status_code, "no JSON") from None
        if not isinstance(payload, dict) or not isinstance(reasons := payload.get("error", {}), dict):
            raise no_gateway(url, answer.status_code, "JSON of another")
        if answer.is_success:
            return payload
        if "message" not in reasons:
            raise no_gateway(url, answer.status_code, "JSON of another")
        raise refusal(answer.status_code, str(reasons["message"]), self.key)

    def stages(self) -> dict[str, Any]:
        """Return the figures of all stages, of which each answer has a page. Raises as :meth:`call`."""
        told = self.call("GET", f"stages?limit={STAGES_PER_PAGE}")
        page = told
        while isinstance(offset := page.get("next_offset"), int) and page.get("stages"):
            page = self.call("GET", f"stages?limit={STAGES_PER_PAGE}&offset={offset}")
            told["stages"] += page.get("stages") or []
        told.pop("next_offset", None)
        return told


def own_url(url: str, path: str) -> str:
    """Return the URL of one of the gateway's own routes. ``url`` is with or without ``/v1``."""
    return f"{root_of(url)}{OWN_PREFIX}{path}"


def root_of(url: str) -> str:
    """Return a gateway's URL without ``/v1``."""
    return url.rstrip("/").removesuffix("/v1")


def key_header(key: str | None) -> dict[bytes, bytes]:
    """Return the header that carries the key, if there is one."""
    return {b"authorization": f"Bearer {key}".encode("utf-8", "surrogateescape")} if key else {}


def no_answer(url: str, error: Exception) -> EngineError:
    """Return the error for a server that does not answer."""
    return EngineError(
        f"no answer from {url}: {str(error) or type(error).__name__}\n"
        f"Start a gateway with `agentspec serve`, or name the address of one: --url, ${URL_VARIABLE}"
    )


def no_gateway(url: str, status: int, found: str) -> EngineError:
    """Return the error for a server that is not a gateway."""
    return EngineError(
        f"{url} is no AgentSpec gateway: status {status}, {found}\n"
        f"Name the address of a gateway: --url, ${URL_VARIABLE}"
    )


def refusal(status: int, reason: str, key: str | None) -> RequestError | EngineError:
    """Return the error for a gateway's answer with an HTTP status of 400 or higher."""
    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
        return EngineError(f"the server failed: {reason}")
    if status == httpx.codes.UNAUTHORIZED:
        reason += f"\nName a key of this gateway: --key, ${KEY_VARIABLE}"
    elif status == httpx.codes.FORBIDDEN and key:
        reason += f"\nThe key that was sent is the one of --key or ${KEY_VARIABLE}: name another"
    return RequestError(f"the server refused: {reason}")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under their columns' names. All columns but the first are right-aligned."""
    lines = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures = row
    return name.ljust(widths[0]) + "".join(
        figure.rjust(width + 2) for figure, width in zip(figures, widths[1:], strict=True)
    )
