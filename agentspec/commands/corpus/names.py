"""Tenants and stages as operators name them. vLLM's forest has names of its own for some."""

from __future__ import annotations

from collections.abc import Iterable

from agentspec.corpus.inventory import Path
from agentspec.corpus.store import Scope
from agentspec.errors import ConfigError
from agentspec.stages import DEFAULT_STAGE, StageKey
from agentspec.vllm_plugin.lora import NO_WORKFLOW, adapted


def scopes_of(tenant: str | None, scopes: Iterable[Scope]) -> list[Scope]:
    """Return the scopes of a tenant: one per vocabulary and adapter. None = all tenants'."""
    if tenant is None:
        return sorted(scopes)
    begin = adapted(StageKey(tenant, (DEFAULT_STAGE,)), "").tenant  # of the tenant's adapters
    begins = (begin, ascii(begin).removesuffix("'"))
    return sorted(scope for scope in scopes if scope.tenant == tenant or scope.tenant.startswith(begins))


def known(tenant: str | None, scopes: list[Scope], place: str) -> list[Scope]:
    """Return the scopes of a tenant. Raises ConfigError, which names the tenants, if it has none."""
    found = scopes_of(tenant, scopes)
    if tenant is not None and not found:
        tenants = ", ".join(sorted({scope.tenant for scope in scopes})) or "none"
        raise ConfigError(f"tenant {tenant!r} has no outputs in {place!r}; tenants that have: {tenants}")
    return found


def stage_paths(stage: str) -> list[Path]:
    """Return the paths of a stage: that of the embedded engine, and that of vLLM. Raises StageError."""
    key = StageKey.parse(stage)
    return list(dict.fromkeys([key.path, adapted(key, None).path]))


def stage_name(path: Path) -> str:
    """Return the stage's name as clients send it."""
    return "/".join(path[1:] if path[0] == NO_WORKFLOW and len(path) > 1 else path)
