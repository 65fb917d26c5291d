"""A call of a running gateway's own routes, and figures as a table: what the commands that ask it share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import httpx

from agentspec.errors import EngineError, RequestError

TIMEOUT_S = 600.0
KEY_VARIABLE = "AGENTSPEC_API_KEY"
URL_VARIABLE = "AGENTSPEC_URL"
DEFAULT_URL = "http://127.0.0.1:8000"


def add_options(action: argparse.ArgumentParser) -> None:
    """Where the gateway is, and the key for it."""
    url = os.environ.get(URL_VARIABLE) or DEFAULT_URL
    action.add_argument("--url", default=url, help=f"the gateway's; also ${URL_VARIABLE} (%(default)s)")
    action.add_argument("--key", default=os.environ.get(KEY_VARIABLE), help=f"API key; also ${KEY_VARIABLE}")


def call(args: argparse.Namespace, method: str, path: str, **body: Any) -> dict[str, Any]:
    """The gateway's answer. Raises RequestError or EngineError with its words."""
    url = f"{args.url.rstrip('/').removesuffix('/v1')}/agentspec/{path}"
    headers = {"authorization": f"Bearer {args.key}"} if args.key else {}
    try:
        answer = httpx.request(method, url, headers=headers, timeout=TIMEOUT_S, trust_env=False, **body)
        told = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EngineError(f"no answer from {url}: {str(error) or type(error).__name__}") from None
    except ValueError:
        raise EngineError(f"{url} is no AgentSpec gateway: status {answer.status_code}, no JSON") from None
    if not isinstance(told, dict) or not isinstance(reasons := told.get("error", {}), dict):
        raise EngineError(f"{url} is no AgentSpec gateway: status {answer.status_code}, JSON of another")
    if answer.is_success:
        return told
    reason = reasons.get("message", f"status {answer.status_code}")
    if answer.is_client_error:
        raise RequestError(f"the server refused: {reason}")
    raise EngineError(f"the server failed: {reason}")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their columns' names, all but the first to the right."""
    lines = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures = row
    return name.ljust(widths[0]) + "".join(
        figure.rjust(width + 2) for figure, width in zip(figures, widths[1:], strict=True)
    )
