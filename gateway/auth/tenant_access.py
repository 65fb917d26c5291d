"""Untagged requests that tenants may send to an engine.

Engines have more ways to generate than the tagged calls: audio, raw tokens, other clouds' APIs. Some of them
let a client write its own tags. Engines also have switches that no tenant should reach. Where tenants have
keys, every path that is not known to be harmless is the operator's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentspec.errors import RequestError
from agentspec.wire import XARGS_PREFIX

READING = frozenset(("GET", "HEAD", "OPTIONS"))
# none of these generates
HARMLESS_PATHS = frozenset(
    (
        "/v1/embeddings",
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/v1/score",
        "/classify",
        "/detokenize",
        "/pooling",
        "/rerank",
        "/score",
        "/tokenize",
        "/v2/rerank",
    )
)


def is_for_tenants(method: str, path: str) -> bool:
    """Return True if any tenant may send this request, which is forwarded unchanged."""
    return path in HARMLESS_PATHS or (method in READING and path.startswith("/v1/"))


def refuse_forged(raw: bytes, body: Mapping[str, Any] | None) -> None:
    """Raise RequestError if a body that gets no tags contains some, in ``vllm_xargs`` or elsewhere."""
    is_suspect = XARGS_PREFIX.encode() in raw or b"\\u" in raw or b"\0" in raw  # escaped, or in UTF-16
    if not is_suspect:
        return
    is_forged = XARGS_PREFIX.encode() in raw if body is None else _has_tag(list(body.values()))
    if is_forged:
        raise RequestError(f"only the gateway writes what begins with {XARGS_PREFIX!r}", code="forged_tag")


def _has_tag(values: list[Any]) -> bool:
    """Return True if a key at any depth has the prefix of our tags."""
    while values:
        value = values.pop()
        if isinstance(value, dict):
            if any(key.startswith(XARGS_PREFIX) for key in value):
                return True
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)
    return False
