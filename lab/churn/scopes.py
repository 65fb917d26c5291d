"""Scopes of a budget: a stage's tree, all trees of a tenant, or the whole forest; and their outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from agentspec import Forest, ForestConfig, Source, StageKey
from lab.churn.texts import Texts
from lab.churn.workloads import Popular, Router

UNLIMITED_BYTES = 1 << 40
WORKFLOW = "workflow"
EVERY_TREE = (Source.STAGE, Source.WORKFLOW, Source.TENANT)


@dataclass(frozen=True, slots=True)
class Tree:
    """One shared tree.

    Attributes:
        seen_from: a stage for which no more specific tree than this has learned an output.
        source: the source of a draft from this tree there.
    """

    seen_from: StageKey
    source: Source

    def learns_from(self, stage: StageKey) -> bool:
        """Return True if the tree learns the stage's outputs."""
        is_parent = self.source is not Source.STAGE and self.seen_from.tenant == stage.tenant
        return is_parent or self.seen_from == stage


@dataclass(frozen=True, slots=True)
class Scope:
    """A forest with one budget and no other limit.

    Attributes:
        limit: the setting that is the budget.
        tenants: owners of the requests.
        num_stages: stages of each tenant, all of one workflow.
        sources: the trees that are kept.
        outputs: outputs of the requests.
    """

    name: str
    limit: str
    tenants: tuple[str, ...]
    num_stages: int
    sources: tuple[Source, ...]
    outputs: type[Texts] = Texts

    @property
    def is_hard(self) -> bool:
        """True for outputs made to stress eviction."""
        return self.outputs is not Texts

    def forest(self, budget_bytes: int) -> Forest:
        """Return an empty forest."""
        limits = dict.fromkeys(
            ("stage_limit_bytes", "tenant_limit_bytes", "total_limit_bytes"), UNLIMITED_BYTES
        )
        limits[self.limit] = budget_bytes
        return Forest(ForestConfig(sources=self.sources, **limits))

    def memory_of(self, forest: Forest) -> Callable[[], int]:
        """Return a reader of the bytes under the budget; a tenant's or forest's include live requests."""
        only_stage = self.limit == "stage_limit_bytes"
        return partial(forest.memory_bytes, self.stages()[0]) if only_stage else forest.memory_bytes

    def stages(self) -> list[StageKey]:
        """Return all stages of the requests."""
        return [self.stage(tenant, i) for tenant in self.tenants for i in range(self.num_stages)]

    def stage(self, tenant: str, number: int) -> StageKey:
        """Return one stage."""
        return StageKey(tenant, (WORKFLOW, f"stage-{number}"))

    def trees(self) -> list[Tree]:
        """Return every shared tree."""
        trees = [Tree(stage, Source.STAGE) for stage in self.stages()]
        for tenant in self.tenants:
            if Source.WORKFLOW in self.sources:
                trees.append(Tree(StageKey(tenant, (WORKFLOW, "onlooker")), Source.WORKFLOW))
            if Source.TENANT in self.sources:
                trees.append(Tree(StageKey(tenant, ("onlooker",)), Source.TENANT))
        return trees


SCOPES = {
    scope.name: scope
    for scope in (
        Scope("stage", "stage_limit_bytes", ("tenant-0",), 1, (Source.STAGE,)),
        Scope("tenant", "tenant_limit_bytes", ("tenant-0",), 5, EVERY_TREE),
        Scope("forest", "total_limit_bytes", ("tenant-0", "tenant-1", "tenant-2"), 5, EVERY_TREE),
        Scope("router", "tenant_limit_bytes", ("tenant-0",), 5, EVERY_TREE, Router),
        Scope("popular", "tenant_limit_bytes", ("tenant-0",), 5, EVERY_TREE, Popular),
    )
}
