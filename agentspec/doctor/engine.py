"""Checks of a running server that the gateway is to use."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from agentspec import __version__
from agentspec.distribution import DOCUMENTS
from agentspec.doctor.finding import Finding, ok, problem, warning
from agentspec.gateway import UpstreamSettings
from agentspec.gateway.upstreams.control_client import probe_engine
from agentspec.stages import StageKey
from agentspec.tags import Tags
from agentspec.wire import XARGS_FIELD

TIMEOUT_S = 30.0


def check_engine(settings: UpstreamSettings) -> Iterator[Finding]:
    """Check that the server answers, has our plugin and takes our tags. ConfigError if ``url`` is invalid."""
    headers = {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    with httpx.Client(base_url=settings.root, headers=headers, timeout=TIMEOUT_S, trust_env=False) as client:
        try:
            models = _models(client)
        except httpx.HTTPError as error:
            yield problem("engine", f"{settings.root} can't be reached: {str(error) or type(error).__name__}")
            return
        if isinstance(models, Finding):
            yield models
            return
        yield ok("engine", f"{settings.root} serves {', '.join(models)}")
        yield _plugin(settings)
        yield _tags(client, models[0])


def _models(client: httpx.Client) -> list[str] | Finding:
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


def _tags(client: httpx.Client, model: str) -> Finding:
    """Generate one token with the tags of a request."""
    tags = Tags(StageKey.parse("agentspec/doctor"), learn=False).to_xargs()
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
