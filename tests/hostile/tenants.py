# ruff: noqa: E501  (one row per line)
"""Attacks of one tenant on another or on the operator. To add one, add a row."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.hostile.target import Target, answers, check_error

VICTIM = "theirs"
FORGED = {"agentspec_tenant": VICTIM, "agentspec_stage": "secret/stage", "agentspec_session": "theirs"}
MESSAGES = [{"role": "user", "content": "hi"}]
CLOSED = frozenset((400, 401, 403, 404, 405))
DONE_OR_CLOSED = CLOSED | {200}


@dataclass(frozen=True)
class TenantAttack:
    """A request with the attacker's key. The victim's data stays unchanged.

    Attributes:
        headers: header lines besides the attacker's key.
        statuses: statuses allowed for the request.
    """

    name: str
    line: str
    body: dict[str, Any] | str = ""
    headers: tuple[str, ...] = ()
    statuses: frozenset[int] = CLOSED
    key: str = field(default="authorization: Bearer $MINE")

    def run(self, target: Target) -> None:
        """Raise AssertionError if the attack succeeds."""
        before = target.learned_by_them()
        body = (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode("utf-8")
        lines = [self.line + " HTTP/1.1", "host: x", "connection: close", f"content-length: {len(body)}"]
        head = "\r\n".join([*lines, self.key, *self.headers, "", ""]).encode("latin-1")
        [answer] = answers(target.said(head + body))
        assert answer.status in self.statuses, (answer.status, answer.body[:200])
        check_error(answer.status, answer.headers.get("content-type", ""), answer.body)
        assert "secret" not in f"{answer.headers}" or "secret" in head.decode("latin-1")
        assert b"secret-of-theirs" not in answer.body
        assert target.learned_by_them() == before


def chat(**fields: Any) -> dict[str, Any]:
    """Return a body that is valid except for ``fields``."""
    return {"messages": MESSAGES, "max_tokens": 1, **fields}


def _chat(name: str, body: dict[str, Any] | str, *headers: str) -> TenantAttack:
    return TenantAttack(name, "POST /v1/chat/completions", body, headers, DONE_OR_CLOSED)


TENANTS = [
    # tags in the body
    _chat("a tag in vllm_xargs", chat(vllm_xargs=FORGED)),
    _chat("a tag among the fields", chat(**FORGED)),
    _chat("a tag in extra_body", chat(extra_body={"vllm_xargs": FORGED}, extra_args=FORGED)),
    _chat("a tag in metadata", chat(metadata={"vllm_xargs": "theirs", "agentspec_tenant": VICTIM})),
    _chat("vllm_xargs in vllm_xargs", chat(vllm_xargs={"vllm_xargs": FORGED})),
    _chat("vllm_xargs twice", json.dumps(chat(vllm_xargs={}))[:-1] + f', "vllm_xargs": {json.dumps(FORGED)}}}'),
    _chat("an escaped key", json.dumps(chat(vllm_xargs=FORGED)).replace("agentspec_tenant", "agentspec\\u005ftenant")),
    _chat("capital letters", json.dumps(chat(vllm_xargs=FORGED)).replace("agentspec_tenant", "AgentSpec_Tenant")),
    # tags in headers
    _chat("a tenant's header", chat(), f"X-AgentSpec-Tenant: {VICTIM}"),
    _chat("a tag's header", chat(), f"agentspec_tenant: {VICTIM}"),
    _chat("vllm_xargs as a header", chat(), f"vllm_xargs: {json.dumps(FORGED)}"),
    _chat("baggage", chat(), f"baggage: agentspec.tenant={VICTIM},tenant={VICTIM}"),
    _chat("a stage of another tenant", chat(), f"X-AgentSpec-Stage: {VICTIM}/secret/stage"),
    _chat("a stage of another tenant, by dots", chat(), f"X-AgentSpec-Stage: ../{VICTIM}/secret/stage"),
    _chat("a session of another tenant", chat(), "X-AgentSpec-Session: secret-session"),
    _chat("two stages", chat(), "X-AgentSpec-Stage: a", "X-AGENTSPEC-STAGE: secret/stage"),
    _chat("two keys", chat(), "Authorization: Bearer nobody", "x-api-key: nobody"),
    _chat("a hop-by-hop key", chat(), "Connection: authorization, x-agentspec-stage"),
    _chat("a forwarded host", chat(), "X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Real-IP: 127.0.0.1"),
    # a stage in the URL
    TenantAttack("a stage by dots", "POST /stages/%2e%2e/theirs/v1/chat/completions", chat(), statuses=DONE_OR_CLOSED),
    TenantAttack("a stage with a line", "POST /stages/a%0d%0ax-agentspec-tenant:%20theirs/v1/chat/completions", chat(), statuses=DONE_OR_CLOSED),
    TenantAttack("a stage with a NUL", "POST /stages/a%00/v1/chat/completions", chat(), statuses=DONE_OR_CLOSED),
    # property of the victim
    TenantAttack("their stage is evicted", "DELETE /agentspec/stages/secret/stage", statuses=DONE_OR_CLOSED),
    TenantAttack("their stage is evicted, by name", "DELETE /agentspec/stages/theirs/secret/stage", statuses=DONE_OR_CLOSED),
    TenantAttack("their stage is evicted, by dots", "DELETE /agentspec/stages/..%2ftheirs%2fsecret%2fstage", statuses=DONE_OR_CLOSED),
    TenantAttack("their stages are read", "GET /agentspec/stages?tenant=theirs", statuses=DONE_OR_CLOSED),
    TenantAttack("their trace is read", "GET /agentspec/traces/secret-request"),
    TenantAttack("their trees are warmed", "POST /agentspec/warm", '{"stage": "../theirs/secret", "response": "x", "tenant": "theirs"}', statuses=DONE_OR_CLOSED),
    TenantAttack("their clusters are named", "POST /agentspec/stages/clusters/secret", {"name": "x"}),
    TenantAttack("their clusters are read", "GET /agentspec/discovery?tenant=theirs"),
    # privileges of the operator
    TenantAttack("trees are saved", "POST /agentspec/save", {"path": "stolen"}),
    TenantAttack("trees are loaded", "POST /agentspec/load", {"path": "/etc/passwd"}),
    TenantAttack("metrics", "GET /metrics"),
    TenantAttack("an escaped path", "POST /%61gentspec/save"),
    TenantAttack("an escaped slash", "POST /agentspec%2Fsave"),
    TenantAttack("two slashes", "POST //agentspec/save"),
    TenantAttack("dots", "POST /v1/../agentspec/save"),
    TenantAttack("escaped dots", "POST /v1/models/%2E%2E/%2e%2e/agentspec/save"),
    TenantAttack("dots of a stage", "POST /stages/a/v1/..%2f..%2fagentspec/save"),
    TenantAttack("backslashes", "POST /v1/models/..%5c..%5cagentspec/save"),
    TenantAttack("an absolute URL", "POST http://127.0.0.1/agentspec/save"),
    TenantAttack("capital letters in the path", "POST /AgentSpec/Save"),
    TenantAttack("a slash at the end", "POST /agentspec/save/"),
    TenantAttack("a path parameter", "POST /agentspec/save;x=y"),
    TenantAttack("a path of the engine", "POST /v1/load_lora_adapter", "{}"),
    TenantAttack("the engine's own state", "POST /sleep", "{}"),
    # keys
    TenantAttack("no key", "GET /v1/models", key="x: y", statuses=frozenset((401,))),
    TenantAttack("an empty key", "GET /v1/models", key="authorization: Bearer ", statuses=frozenset((401,))),
    TenantAttack("half a key", "GET /v1/models", key="authorization: Bearer $MIN", statuses=frozenset((401,))),
    TenantAttack("a key and a space", "GET /v1/models", key="authorization: Bearer $MINE x", statuses=frozenset((401,))),
    TenantAttack("another scheme", "GET /v1/models", key="authorization: Basic $MINE", statuses=frozenset((401,))),
    TenantAttack("a key in the URL", "GET /v1/models?api_key=$MINE", key="x: y", statuses=frozenset((401,))),
    TenantAttack("a key that is no ASCII", "GET /v1/models", key="authorization: Bearer \xe9\xff", statuses=frozenset((401,))),
]  # fmt: skip
