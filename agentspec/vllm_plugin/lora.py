"""The forest's keys for the stages of LoRA adapters: an adapter's outputs are those of another model."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from agentspec.stages import MAX_PATH_CHARS, StageKey
from agentspec.stats import MAX_STAGES

NO_WORKFLOW = "-"
_WALL = "\N{SYMBOL FOR UNIT SEPARATOR}"


@lru_cache(MAX_STAGES)
def adapted(stage: StageKey, adapter: str | None) -> StageKey:
    """Return the forest's key for a stage: in a tenant of the adapter, and in a workflow.

    Different pairs of tenant and adapter give different tenants. All stages without a workflow share one. The
    tenant's own tree is therefore not needed: it would hold the same outputs as the workflows' trees.
    """
    names = (stage.tenant,) if adapter is None else (stage.tenant, adapter)
    tenant = _WALL.join(name.replace("\\", "\\\\").replace(_WALL, f"\\{_WALL}") for name in names)
    path = stage.path if len(stage.path) > 1 else (NO_WORKFLOW, *stage.path)
    if len("/".join(path)) > MAX_PATH_CHARS:
        path = (NO_WORKFLOW, sha256(stage.name.encode()).hexdigest())
    return StageKey(tenant if tenant.isprintable() else ascii(tenant), path)
