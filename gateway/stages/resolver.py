"""Stage resolvers: functions that find a request's stage, tried in order until one succeeds.

A resolver maps :class:`StageHints` to a stage or None. An explicit stage (header, URL, metadata) must be
valid, or the request is refused. An incidental hint (baggage, a framework's fields) is dropped if it is no
valid stage. For requests without either, ``discovery`` finds the stage from the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers

from agentspec.errors import RequestError, StageError
from agentspec.gateway.discovery.clusters import WIDER_STAGE
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.http.context import UrlTags
from agentspec.gateway.stages.client_tags import claude_code_role, codex_role, router_role, router_workflow
from agentspec.role_names import role_name, role_stage
from agentspec.stages import DEFAULT_STAGE, StageKey
from agentspec.wire import METADATA_STAGE, STAGE_HEADER, WORKFLOW_HEADER, decode_stage, encode_stage

MANY_STAGES = 4096  # size of the caches of parsed stages


@dataclass(frozen=True, slots=True)
class StageHints:
    """The parts of a request that may identify its stage.

    ``url`` is still percent-encoded. Without ``discovery``, requests that name no stage have none.
    """

    tenant: str
    headers: Headers
    url: UrlTags
    body: Mapping[str, Any]
    discovery: Discovery | None = None


StageResolver = Callable[[StageHints], StageKey | None]


def from_header(hints: StageHints) -> StageKey | None:
    """Return the stage in ``X-AgentSpec-Stage``."""
    value = hints.headers.get(STAGE_HEADER)
    return None if value is None else _stated(f"header {STAGE_HEADER}", value, hints.tenant)


def from_url(hints: StageHints) -> StageKey | None:
    """Return the stage in ``/stages/<path>/v1/...``."""
    return None if hints.url.stage is None else _stated("the URL", hints.url.stage, hints.tenant)


def from_metadata(hints: StageHints) -> StageKey | None:
    """Return the stage in the body's ``metadata.agentspec_stage``, plain text."""
    metadata = hints.body.get("metadata")
    value = metadata.get(METADATA_STAGE) if isinstance(metadata, dict) else None
    if value is None:
        return None
    param = f"metadata.{METADATA_STAGE}"
    if not isinstance(value, str):
        raise RequestError(f"{param} must be a string, not {value!r}", param=param, code="invalid_stage")
    try:
        return _plain(value, hints.tenant)
    except StageError as error:
        raise RequestError(f"{param}: {error}", param=param, code="invalid_stage") from None


def from_baggage(hints: StageHints) -> StageKey | None:
    """Return the path of OpenTelemetry's workflow and agent names in W3C baggage."""
    _, agent = _baggage_names(hints.headers)
    return _in_workflow(hints, agent) if agent else None


def from_framework(hints: StageHints) -> StageKey | None:
    """Return the role that an agent or its framework sends: in headers, ``metadata`` or ``vllm_xargs``.

    Ids of agents and runs are never used.
    """
    given = hints.body.get("metadata")
    metadata = given if isinstance(given, dict) else {}
    roles = (
        _openhands_role(metadata),
        _langchain_role(metadata),
        claude_code_role(hints.headers, hints.body),
        codex_role(hints.headers),
        router_role(hints.body),
    )
    stages = (_in_workflow(hints, role) for role in roles if role)
    return next((stage for stage in stages if stage is not None), None)


def from_fingerprint(hints: StageHints) -> StageKey | None:
    """Return the stage that ``discovery`` finds for the prompt, below the workflow if one is named.

    A stage that a user assigned to a cluster is returned unchanged. A prompt without a cluster gets the
    workflow itself, the parent of all stages discovered in it.
    """
    found = None if hints.discovery is None else hints.discovery.stage_of(hints.tenant, hints.body)
    if found is None or found.path[0] != WIDER_STAGE:
        return found
    workflow = _workflow(hints)
    if workflow is None:
        return found
    return workflow if len(found.path) == 1 else _below(workflow, StageKey(found.tenant, found.path[1:]))


def from_workflow(hints: StageHints) -> StageKey | None:
    """Return the workflow of header or URL if neither a name nor the prompt identifies the agent."""
    return _stated_workflow(hints)


def from_baggage_workflow(hints: StageHints) -> StageKey | None:
    """Return the workflow that the baggage names."""
    named, _ = _baggage_names(hints.headers)
    return role_stage(named, hints.tenant) if named else None


def from_body_workflow(hints: StageHints) -> StageKey | None:
    """Return the workflow that the body names for a router. Tried last."""
    named = router_workflow(hints.body)
    return role_stage(named, hints.tenant) if named else None


RESOLVERS: tuple[tuple[str, StageResolver], ...] = (
    ("header", from_header),
    ("url", from_url),
    ("metadata", from_metadata),
    ("baggage", from_baggage),
    ("framework", from_framework),
    ("fingerprint", from_fingerprint),
    ("workflow", from_workflow),
    ("baggage", from_baggage_workflow),
    ("framework", from_body_workflow),
)


def resolve_stage(hints: StageHints) -> tuple[StageKey, str]:
    """Return the stage and the name of the resolver that found it; ``default`` if none did.

    Raises:
        RequestError: the client named a stage explicitly, but it is malformed.
    """
    for name, resolver in RESOLVERS:
        stage = resolver(hints)
        if stage is not None:
            return stage, name
    return StageKey(hints.tenant, (DEFAULT_STAGE,)), "default"


@lru_cache(maxsize=MANY_STAGES)
def _decoded(value: str, tenant: str) -> StageKey:
    return StageKey.parse(decode_stage(value), tenant)


def _stated(where: str, value: str, tenant: str, param: str = STAGE_HEADER) -> StageKey:
    try:
        return _decoded(value, tenant)
    except StageError as error:
        raise RequestError(f"{where}: {error}", param=param, code="invalid_stage") from None


def _plain(path: str, tenant: str) -> StageKey:
    """Parse a path that was not encoded. It must fit a header once encoded, since it is forwarded as one."""
    return StageKey.parse(decode_stage(encode_stage(path)), tenant)


def _openhands_role(metadata: Mapping[str, Any]) -> str | None:
    """Return the role in ``tags``: ``agent`` for ``["type:agent", ...]``."""
    tags = metadata.get("tags")
    kinds = (tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()
    kind = next((tag.removeprefix("type:") for tag in kinds if tag.startswith("type:")), None)
    return f"openhands/{kind}" if kind and role_name(kind) else None


def _langchain_role(metadata: Mapping[str, Any]) -> str | None:
    """Return the agent's name, else the path of nodes without ids: ``team:<uuid>|writer:<uuid>``."""
    name = metadata.get("lc_agent_name")
    if isinstance(name, str) and name:
        return name
    path = metadata.get("langgraph_checkpoint_ns") or metadata.get("checkpoint_ns")
    if not isinstance(path, str) or not path:
        return None
    return "/".join(node.partition(":")[0] for node in path.split("|"))


def _baggage_names(headers: Headers) -> tuple[str | None, str | None]:
    """Return the names of the workflow and the agent."""
    members = _baggage(",".join(headers.getlist("baggage"))) if "baggage" in headers else {}
    return members.get("gen_ai.workflow.name") or None, members.get("gen_ai.agent.name") or None


def _workflow(hints: StageHints) -> StageKey | None:
    """Return the call's workflow: the stated one, else that of the baggage or the body."""
    return _stated_workflow(hints) or from_baggage_workflow(hints) or from_body_workflow(hints)


def _stated_workflow(hints: StageHints) -> StageKey | None:
    """Return the workflow of ``X-AgentSpec-Workflow``, else of the URL; each must be valid."""
    value = hints.headers.get(WORKFLOW_HEADER)
    if value is not None:
        return _stated(f"header {WORKFLOW_HEADER}", value, hints.tenant, WORKFLOW_HEADER)
    if hints.url.workflow is not None:
        return _stated("the workflow in the URL", hints.url.workflow, hints.tenant, WORKFLOW_HEADER)
    return None


def _in_workflow(hints: StageHints, role: str) -> StageKey | None:
    """Return the stage of a role, below the workflow if one is named; None if the role is no valid stage."""
    stage = role_stage(role, hints.tenant)
    workflow = _workflow(hints) if stage is not None else None
    return stage if stage is None or workflow is None else _below(workflow, stage) or stage


@lru_cache(maxsize=MANY_STAGES)
def _below(workflow: StageKey, stage: StageKey) -> StageKey | None:
    """Return the stage with the workflow prepended; None if the result is not a valid stage."""
    try:
        return _plain(f"{workflow.name}/{stage.name}", stage.tenant)
    except StageError:
        return None


def _baggage(header: str) -> dict[str, str]:
    members = {}
    for member in header.split(","):
        name, equals, value = member.partition(";")[0].partition("=")
        if equals:
            members[name.strip()] = unquote(value.strip())
    return members
