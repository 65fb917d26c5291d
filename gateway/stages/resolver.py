"""Which stage a request comes from: a ladder of rungs, the first that answers wins.

A rung is one function from :class:`StageHints` to a stage or None. What a client says on purpose (header,
URL, metadata) must be right or the request is refused; what it happens to carry (baggage, a framework's
fields) is a hint that is dropped when it is no good stage. What says nothing may still look like others: the
prompt is asked for it by ``discovery``.
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
from agentspec.gateway.stages.coding_agents import claude_code_role, codex_role
from agentspec.role_names import role_name, role_stage
from agentspec.stages import DEFAULT_STAGE, StageKey
from agentspec.wire import METADATA_STAGE, STAGE_HEADER, WORKFLOW_HEADER, decode_stage, encode_stage

MANY_STAGES = 4096  # are read once


@dataclass(frozen=True, slots=True)
class StageHints:
    """What a request shows of the stage it comes from.

    ``url_stage`` is still percent-encoded. Without ``discovery`` requests that name no stage have none.
    """

    tenant: str
    headers: Headers
    url_stage: str | None
    body: Mapping[str, Any]
    discovery: Discovery | None = None


Rung = Callable[[StageHints], StageKey | None]


def from_header(signs: StageHints) -> StageKey | None:
    """``X-AgentSpec-Stage``."""
    value = signs.headers.get(STAGE_HEADER)
    return None if value is None else _stated(f"header {STAGE_HEADER}", value, signs.tenant)


def from_url(signs: StageHints) -> StageKey | None:
    """``/stages/<path>/v1/...``."""
    return None if signs.url_stage is None else _stated("the URL", signs.url_stage, signs.tenant)


def from_metadata(signs: StageHints) -> StageKey | None:
    """The body's ``metadata.agentspec_stage``, plain text."""
    metadata = signs.body.get("metadata")
    value = metadata.get(METADATA_STAGE) if isinstance(metadata, dict) else None
    if value is None:
        return None
    param = f"metadata.{METADATA_STAGE}"
    if not isinstance(value, str):
        raise RequestError(f"{param} must be a string, not {value!r}", param=param, code="invalid_stage")
    try:
        return _plain(value, signs.tenant)
    except StageError as error:
        raise RequestError(f"{param}: {error}", param=param, code="invalid_stage") from None


def from_baggage(signs: StageHints) -> StageKey | None:
    """W3C baggage: OpenTelemetry's names of the workflow and of the agent, as a path."""
    _, agent = _baggage_names(signs.headers)
    return _in_workflow(signs, agent) if agent else None


def from_framework(signs: StageHints) -> StageKey | None:
    """What agents and their frameworks send of a role, never the id of an agent or of a run.

    In headers, or in ``metadata``.
    """
    given = signs.body.get("metadata")
    metadata = given if isinstance(given, dict) else {}
    roles = (
        _openhands_role(metadata),
        _langchain_role(metadata),
        claude_code_role(signs.headers, signs.body),
        codex_role(signs.headers),
    )
    stages = (_in_workflow(signs, role) for role in roles if role)
    return next((stage for stage in stages if stage is not None), None)


def from_fingerprint(signs: StageHints) -> StageKey | None:
    """What stage the prompt is of, to judge by others like it; below the workflow, if one is named.

    A stage that a person gave a cluster is that one. What has no cluster yet has the workflow itself, the
    parent of all that are found in it.
    """
    found = None if signs.discovery is None else signs.discovery.stage_of(signs.tenant, signs.body)
    if found is None or found.path[0] != WIDER_STAGE:
        return found
    workflow = _workflow(signs)
    if workflow is None:
        return found
    return workflow if len(found.path) == 1 else _below(workflow, StageKey(found.tenant, found.path[1:]))


def from_workflow(signs: StageHints) -> StageKey | None:
    """``X-AgentSpec-Workflow`` alone: neither a name nor the prompt tells who in it calls."""
    return _workflow(signs) if WORKFLOW_HEADER in signs.headers else None


def from_baggage_workflow(signs: StageHints) -> StageKey | None:
    """The same of the baggage's workflow."""
    return _workflow(signs)


LADDER: tuple[tuple[str, Rung], ...] = (
    ("header", from_header),
    ("url", from_url),
    ("metadata", from_metadata),
    ("baggage", from_baggage),
    ("framework", from_framework),
    ("fingerprint", from_fingerprint),
    ("workflow", from_workflow),
    ("baggage", from_baggage_workflow),
)


def resolve_stage(signs: StageHints) -> tuple[StageKey, str]:
    """The stage and the name of the rung it was found on; ``default`` if no rung answers.

    Raises:
        RequestError: the client named a stage, and named it badly.
    """
    for name, rung in LADDER:
        stage = rung(signs)
        if stage is not None:
            return stage, name
    return StageKey(signs.tenant, (DEFAULT_STAGE,)), "default"


@lru_cache(maxsize=MANY_STAGES)
def _decoded(value: str, tenant: str) -> StageKey:
    return StageKey.parse(decode_stage(value), tenant)


def _stated(where: str, value: str, tenant: str, param: str = STAGE_HEADER) -> StageKey:
    try:
        return _decoded(value, tenant)
    except StageError as error:
        raise RequestError(f"{where}: {error}", param=param, code="invalid_stage") from None


def _plain(path: str, tenant: str) -> StageKey:
    """A path that was not encoded; it must fit a header when it is, since it travels on as one."""
    return StageKey.parse(decode_stage(encode_stage(path)), tenant)


def _openhands_role(metadata: Mapping[str, Any]) -> str | None:
    """``agent`` of ``tags: ["type:agent", ...]``."""
    tags = metadata.get("tags")
    kinds = (tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()
    kind = next((tag.removeprefix("type:") for tag in kinds if tag.startswith("type:")), None)
    return f"openhands/{kind}" if kind and role_name(kind) else None


def _langchain_role(metadata: Mapping[str, Any]) -> str | None:
    """The agent's name, else the path of nodes, whose ids follow a colon: ``team:<uuid>|writer:<uuid>``."""
    name = metadata.get("lc_agent_name")
    if isinstance(name, str) and name:
        return name
    path = metadata.get("langgraph_checkpoint_ns") or metadata.get("checkpoint_ns")
    if not isinstance(path, str) or not path:
        return None
    return "/".join(node.partition(":")[0] for node in path.split("|"))


def _baggage_names(headers: Headers) -> tuple[str | None, str | None]:
    """The workflow's and the agent's."""
    members = _baggage(",".join(headers.getlist("baggage"))) if "baggage" in headers else {}
    return members.get("gen_ai.workflow.name") or None, members.get("gen_ai.agent.name") or None


def _workflow(signs: StageHints) -> StageKey | None:
    """The workflow that the call is of: ``X-AgentSpec-Workflow``, which must be right, else the baggage's."""
    value = signs.headers.get(WORKFLOW_HEADER)
    if value is not None:
        return _stated(f"header {WORKFLOW_HEADER}", value, signs.tenant, WORKFLOW_HEADER)
    named, _ = _baggage_names(signs.headers)
    return role_stage(named, signs.tenant) if named else None


def _in_workflow(signs: StageHints, role: str) -> StageKey | None:
    """The stage of a role, below the workflow if one is named; None if the role tells nothing good."""
    stage = role_stage(role, signs.tenant)
    workflow = _workflow(signs) if stage is not None else None
    return stage if stage is None or workflow is None else _below(workflow, stage) or stage


@lru_cache(maxsize=MANY_STAGES)
def _below(workflow: StageKey, stage: StageKey) -> StageKey | None:
    """The stage with the workflow before it; None if that is no stage any more."""
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
