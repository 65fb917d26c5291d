"""``/agentspec/clusters``: routes to list, name, pin, merge and split discovered clusters.

``auth`` restricts each tenant to its own clusters. An operator may read those of all tenants.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentspec.errors import AgentSpecError, RequestError
from agentspec.gateway.discovery.cluster import Cluster
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.errors import describe
from agentspec.gateway.http.context import context_of
from agentspec.gateway.http.request_body import parse_body, read_body
from agentspec.gateway.settings import GatewaySettings
from agentspec.stages import MAX_PATH_CHARS
from agentspec.wire import OWN_PREFIX

CLUSTERS_PATH = f"{OWN_PREFIX}clusters"
LIMITS = GatewaySettings(body_limit_bytes=1 << 16)

Result = TypeVar("Result")


def discovery_routes(discovery: Discovery) -> list[Route]:
    """Return the routes."""

    async def clusters(request: Request) -> Response:
        tenant = context_of(request.scope).tenant
        found = await run_in_threadpool(discovery.clusters, tenant)
        described = [describe_cluster(cluster) for cluster in found]
        if tenant is None:  # an operator's request for all tenants
            described = [
                {"tenant": cluster.stage.tenant, **one} for cluster, one in zip(found, described, strict=True)
            ]
        return JSONResponse({"clusters": described})

    async def change(request: Request) -> Response:
        asked = await _asked(request)
        unknown = sorted(set(asked) - {"name", "pinned"})
        if unknown or not asked:
            raise RequestError(f"give 'name' or 'pinned', not {', '.join(map(repr, unknown)) or 'nothing'}")
        name, is_pinned = asked.get("name"), asked.get("pinned")
        _check(name is None or isinstance(name, str), "name", "a stage's path or null", name)
        _check("pinned" not in asked or isinstance(is_pinned, bool), "pinned", "true or false", is_pinned)
        if "name" in asked:
            cluster = await _done(discovery.name, request, name)
        if "pinned" in asked:
            cluster = await _done(discovery.pin, request, is_pinned)
        return JSONResponse(describe_cluster(cluster))

    async def merge(request: Request) -> Response:
        into = (await _asked(request)).get("into")
        _check(isinstance(into, str), "into", "a cluster's id", into)
        return JSONResponse(describe_cluster(await _done(discovery.merge, request, into)))

    async def split(request: Request) -> Response:
        chosen = (await _asked(request)).get("fingerprints")
        is_list = isinstance(chosen, list) and all(isinstance(one, str) for one in chosen)
        _check(chosen is None or is_list, "fingerprints", "a list of their ids, or left out for all", chosen)
        parts = await _done(discovery.split, request, chosen)
        return JSONResponse({"clusters": [describe_cluster(cluster) for cluster in parts]})

    return [
        Route(CLUSTERS_PATH, clusters),
        Route(f"{CLUSTERS_PATH}/{{cluster}}", change, methods=["PATCH"]),
        Route(f"{CLUSTERS_PATH}/{{cluster}}/merge", merge, methods=["POST"]),
        Route(f"{CLUSTERS_PATH}/{{cluster}}/split", split, methods=["POST"]),
    ]


def discovery_app(discovery: Discovery) -> ASGIApp:
    """Return an application with these routes only, for a server other than the gateway."""
    return Starlette(routes=discovery_routes(discovery), exception_handlers={AgentSpecError: _fail})


def describe_cluster(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as JSON for clients."""
    last_seen = datetime.fromtimestamp(cluster.last_seen_s, UTC)
    members = list(cluster.members.values())  # a copy: requests continue meanwhile
    members.sort(key=lambda member: -member.num_requests)
    return {
        "id": cluster.id,
        "stage": cluster.stage.name,
        "own_stage": cluster.own_stage.name,
        "is_named": cluster.is_named,
        "is_pinned": cluster.is_pinned,
        "num_requests": cluster.num_requests,
        "last_seen": last_seen.isoformat(timespec="seconds"),
        "num_templates": len(cluster.templates),
        "text": cluster.text,
        "fingerprints": [{"id": one.digest.hex(), "num_requests": one.num_requests} for one in members],
    }


async def _done(act: Callable[..., Result], request: Request, *arguments: object) -> Result:
    """Apply ``act`` to the cluster in the URL and return its result.

    Runs in a thread, since ``act`` writes a file.
    """
    tenant, cluster_id = context_of(request.scope).principal.tenant, request.path_params["cluster"]
    return await run_in_threadpool(act, tenant, cluster_id, *arguments)


async def _asked(request: Request) -> dict[str, Any]:
    raw = await read_body(request.receive, request.headers, LIMITS)
    return parse_body(raw) if raw.strip() else {}


def _check(is_right: bool, param: str, wanted: str, given: object) -> None:
    if not is_right:
        text = repr(given)[:MAX_PATH_CHARS]
        raise RequestError(f"{param} must be {wanted}, not {text}", param=param, code="invalid_value")


def _fail(request: Request, error: Exception) -> Response:
    status, body = describe(error)
    return JSONResponse(body, status)
