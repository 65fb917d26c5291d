"""Checks of a running gateway, and of a running server that a gateway is to use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx

from agentspec import __version__
from agentspec.commands.gateway_call import Gateway, key_header
from agentspec.distribution import DOCUMENTS
from agentspec.doctor.finding import Finding, ok, problem, warning
from agentspec.errors import AgentSpecError, RequestError
from agentspec.gateway import UpstreamSettings
from agentspec.gateway.upstreams.control_client import probe_engine
from agentspec.stages import StageKey
from agentspec.tags import Tags
from agentspec.wire import (
    LEARN_HEADER,
    MAX_DRAFT_HEADER,
    SESSION_URL_PREFIX,
    STAGE_HEADER,
    STAGE_URL_PREFIX,
    XARGS_FIELD,
)

ENGINE_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 120.0
STAGE = "agentspec/doctor"
SAY = "Write the numbers from 1 to 30, separated by commas."
MAX_TOKENS = 48
NO_DRAFTS = f"if vLLM serves, it needs the plugin: {DOCUMENTS}/vllm.md"


def check_engine(settings: UpstreamSettings) -> Iterator[Finding]:
    """Check that the server answers, has our plugin and takes our tags. ConfigError if ``url`` is invalid."""
    headers = {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    with httpx.Client(
        base_url=settings.root, headers=headers, timeout=ENGINE_TIMEOUT_S, trust_env=False
    ) as client:
        try:
            models = _engine_models(client)
        except httpx.HTTPError as error:
            yield problem("engine", f"{settings.root} can't be reached: {str(error) or type(error).__name__}")
            return
        if isinstance(models, Finding):
            yield models
            return
        yield ok("engine", f"{settings.root} serves {', '.join(models)}")
        yield _plugin(settings)
        yield _xargs(client, models[0])


def _engine_models(client: httpx.Client) -> list[str] | Finding:
    answer = client.get("/v1/models")
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return problem("engine", "it wants a key: set $AGENTSPEC_ENGINE_API_KEY")
    try:
        names = [str(model["id"]) for model in answer.raise_for_status().json()["data"]]
    except (httpx.HTTPStatusError, ValueError, LookupError, TypeError):
        names = []
    return names or problem(
        "engine", f"{client.base_url}v1/models lists no model (status {answer.status_code}): is it vLLM?"
    )


def _plugin(settings: UpstreamSettings) -> Finding:
    found = probe_engine(settings.root, settings.control_token)
    if found.problem:
        return problem("plugin", str(found))
    if not found.plugin:
        return problem("plugin", f"{found}; {DOCUMENTS}/vllm.md has the flags to start vLLM with")
    if found.plugin != __version__:
        return warning("plugin", f"AgentSpec {found.plugin} there and {__version__} here: install the same")
    return ok("plugin", str(found))


def _xargs(client: httpx.Client, model: str) -> Finding:
    """Generate one token with the tags of a request."""
    tags = Tags(StageKey.parse(STAGE), learn=False).to_xargs()
    body = {"model": model, "prompt": "a", "max_tokens": 1, XARGS_FIELD: tags}
    try:
        answer = client.post("/v1/completions", json=body)
    except httpx.HTTPError as error:
        return problem("tags", f"a completion failed: {str(error) or type(error).__name__}")
    if answer.is_success:
        return ok("tags", f"it takes {XARGS_FIELD}")
    return problem(
        "tags", f"a completion with {XARGS_FIELD} got status {answer.status_code}: {answer.text[:200]!r}"
    )


def check_gateway(gateway: Gateway) -> Iterator[Finding]:
    """Check a running gateway end to end: its key, its model, the tags of a call, and drafts.

    The calls teach the trees nothing (``X-AgentSpec-Learn: 0``). The checks end at the first problem that the
    others depend on.
    """
    try:
        gateway.call("GET", "stages")
    except RequestError as error:  # it answers, and refuses
        yield problem("key", str(error).replace("\n", "; "))
        return
    except AgentSpecError as error:
        yield problem("gateway", str(error).replace("\n", "; "))
        return
    yield ok("gateway", f"{gateway.root} answers{' to this key' if gateway.key else ' without a key'}")
    with httpx.Client(headers=key_header(gateway.key), timeout=CALL_TIMEOUT_S, trust_env=False) as client:
        yield from _checks(client, gateway)


def _checks(client: httpx.Client, gateway: Gateway) -> Iterator[Finding]:
    try:
        models = _models(client, gateway.root)
        if isinstance(models, Finding):
            yield models
            return
        yield ok("model", f"the engine serves {', '.join(models)}")
        plain = _ask(client, gateway.root, models[0], {MAX_DRAFT_HEADER: "0"})
        if not plain.is_success:
            yield problem("call", _refusal(plain))
            return
        yield _tags(plain)
        yield from _drafts(client, gateway, models[0], _text(plain))
    except httpx.HTTPError as error:
        yield problem("call", f"{gateway.root} gave no answer: {str(error) or type(error).__name__}")
    except (ValueError, LookupError, TypeError) as error:
        yield problem("call", f"the answer of {gateway.root} is not in OpenAI's form: {error!r}")


def _models(client: httpx.Client, root: str) -> list[str] | Finding:
    answer = client.get(f"{root}/v1/models")
    if answer.is_error:
        return problem("engine", f"it does not answer: {_refusal(answer)}")
    names = [str(model["id"]) for model in answer.json()["data"]]
    return names or problem("engine", "it lists no model")


def _ask(client: httpx.Client, root: str, model: str, headers: dict[str, str], **more: Any) -> httpx.Response:
    """Return the answer to a greedy chat with its tags in the base URL."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": SAY}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        **more,
    }
    base = f"{root}{SESSION_URL_PREFIX}doctor{STAGE_URL_PREFIX}{STAGE}/v1"
    return client.post(f"{base}/chat/completions", json=body, headers={LEARN_HEADER: "0", **headers})


def _tags(answer: httpx.Response) -> Finding:
    found = answer.headers.get(STAGE_HEADER)
    if found == STAGE:
        return ok("tags", "a stage in the base URL arrives")
    return problem(
        "tags", f"a call for the stage {STAGE!r} had {found!r}: a proxy before the gateway changes its paths"
    )


def _drafts(client: httpx.Client, gateway: Gateway, model: str, expected: str) -> Iterator[Finding]:
    """Ask again with the first answer as its prediction, which the engine drafts."""
    before = _num_drafted(gateway)
    answer = _ask(client, gateway.root, model, {}, prediction={"type": "content", "content": expected})
    if not answer.is_success:
        yield problem("drafts", _refusal(answer))
        return
    figures = (answer.json().get("metrics") or {}).get("speculative_decoding") or {}
    num_drafted = figures.get("num_draft_tokens") or _num_drafted(gateway) - before
    if num_drafted:
        yield ok("drafts", f"the engine drafted {num_drafted} tokens of {MAX_TOKENS} at most")
    else:
        yield problem(
            "drafts",
            f"the engine drafted nothing of a text that it had as prediction; {NO_DRAFTS}",
        )
    if _text(answer) == expected:
        yield ok("outputs", "identical with and without drafts")
    else:
        yield warning("outputs", f"another text with drafts: {DOCUMENTS}/vllm.md on batch invariance")


def _num_drafted(gateway: Gateway) -> int:
    stages = gateway.stages().get("stages") or []
    return sum(int(one.get("num_draft_tokens") or 0) for one in stages if one.get("stage") == STAGE)


def _text(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def _refusal(answer: httpx.Response) -> str:
    return f"status {answer.status_code}, {answer.text[:300]!r}"
