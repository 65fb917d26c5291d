"""The control channel in vLLM's own server: ``--middleware agentspec.vllm_plugin.control.Control``.

It answers ``/agentspec/...`` by calling the workers (vLLM's ``collective_rpc``), and forwards all other
requests. It is a middleware, not an endpoint plugin: vLLM loads endpoint plugins only if VLLM_PLUGINS names
them, and that variable disables all plugins that it does not name. A client of this channel can read and
erase the forest, so the channel requires the token in AGENTSPEC_CONTROL_TOKEN. Without a token in the
environment, it answers only this machine. Does not import vLLM before the server has started.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import secrets
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.vllm_plugin.checks import installed_version
from agentspec.wire import OWN_PREFIX

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

TOKEN_VARIABLE = "AGENTSPEC_CONTROL_TOKEN"
METHODS = {
    "status": "GET",
    "stages": "GET",
    "trace": "POST",
    "evict": "POST",
    "save": "POST",
    "load": "POST",
    "warm": "POST",
}
BODY_LIMIT_BYTES = 1 << 28
POLL_S = 0.02  # first interval between two polls of a long command
SLOWEST_POLL_S = 0.5

logger = logging.getLogger(__name__)


class Control:
    """The control channel, a middleware in front of the server ``app``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._token = os.environ.get(TOKEN_VARIABLE, "").encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests under ``/agentspec/`` and forward all others."""
        if scope["type"] == "lifespan":  # before the first request
            _limit_requests(scope["app"])
        if scope["type"] != "http" or not scope["path"].startswith(OWN_PREFIX):
            await self._app(scope, receive, send)
            return
        try:
            response = await self._answer(Request(scope, receive))
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        command = request.url.path.removeprefix(OWN_PREFIX)
        if command not in METHODS:
            return _error(
                404,
                f"there is no {request.url.path!r}, only {', '.join(OWN_PREFIX + one for one in METHODS)}",
            )
        if request.method != METHODS[command]:
            return _error(405, f"{request.url.path} wants {METHODS[command]}, not {request.method}")
        if not self._is_allowed(request):
            return _error(
                403,
                f"the control channel needs the token in {TOKEN_VARIABLE}, as 'Authorization: Bearer ...'",
            )
        try:
            arguments = await _arguments(request)
        except ValueError as error:
            return _error(400, f"the body is no JSON object: {error}")
        if arguments.get("path") is not None and not self._token:
            return _error(
                403,
                f"naming a file needs the control token: start the server with {TOKEN_VARIABLE}",
            )
        answer = await _ask(request.app.state.engine_client, command, arguments)
        if "error" in answer:
            return JSONResponse(answer, 400)
        if command == "status":
            answer["vllm"] = installed_version()
        return JSONResponse(answer)

    def _is_allowed(self, request: Request) -> bool:
        if not self._token:  # refuse web pages, which have a local address, too
            is_page = "origin" in request.headers
            return request.client is not None and _is_loopback(request.client.host) and not is_page
        given = Headers(scope=request.scope).get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)


def _limit_requests(app: Any) -> None:
    """Have vLLM refuse requests that would end its engine."""
    try:
        from agentspec.vllm_plugin.v2 import sampler_limits

        sampler_limits.install(app.state.engine_client)
    except (ImportError, AttributeError) as error:  # of a vLLM that the plugin was not written for
        logger.warning("requests are not limited to what vLLM's sampler has room for: %s", error)


async def _arguments(request: Request) -> dict[str, Any]:
    """Return the body's JSON object, empty without a body. Raises ValueError if invalid or too large."""
    parts, num_bytes = [], 0
    async for part in request.stream():
        num_bytes += len(part)
        if num_bytes > BODY_LIMIT_BYTES:
            raise ValueError(f"it has more than {BODY_LIMIT_BYTES} bytes")
        parts.append(part)
    arguments = json.loads(b"".join(parts) or b"{}")
    if not isinstance(arguments, dict):
        raise ValueError(f"it is {arguments!r}")
    return arguments


async def _ask(engine: AsyncLLM, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the workers that have a forest. Poll until a long command is done on all ranks."""
    job = secrets.token_hex(8)  # the job's name, the same on all ranks
    answers = await _call(engine, command, json.dumps(arguments), job)
    wait_s = POLL_S
    while any("job" in answer for answer in answers):
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, SLOWEST_POLL_S)
        polled = await _call(engine, "job", "{}", job)
        answers = [new if "job" in old else old for old, new in zip(answers, polled, strict=True)]
    return _merged(command, answers)


async def _call(engine: AsyncLLM, *args: str) -> list[dict[str, Any]]:
    """Call all data-parallel ranks, and return their answers."""
    call_all = engine.engine_core.call_utility_all_async
    ranks = await call_all("collective_rpc", "agentspec_control", None, args, None)
    return [_answer_of(workers) for workers in ranks]


def _answer_of(workers: list[str | None]) -> dict[str, Any]:
    """Return the answer of the rank's only worker with a forest."""
    answer: dict[str, Any] = json.loads(next(one for one in workers if one is not None))
    return answer


def _merged(command: str, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one answer for all ranks; the first error if there is one."""
    first = next((one for one in ranks if "error" in one), ranks[0])
    if "error" in first:
        return first
    if "corpus" in first:  # each rank has its own connection to the corpus
        first["corpus"] = _summed([one["corpus"] for one in ranks])
    match command:
        case "stages":
            return first | {"stages": [stage for one in ranks for stage in one["stages"]]}
        case "trace":  # only one rank had the request
            return next((one for one in ranks if one["steps"] is not None), first)
        case "evict" | "save" | "load":  # each rank has its own forest and file
            return first | {
                name: sum(one[name] for one in ranks) for name in first if isinstance(first[name], int)
            }
    return first


def _summed(corpora: list[dict[str, float]]) -> dict[str, float]:
    """Return the sums of the ranks' figures, and the longest lag."""
    return {
        name: max(one[name] for one in corpora) if name == "lag_s" else sum(one[name] for one in corpora)
        for name in corpora[0]
    }


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
