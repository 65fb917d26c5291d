"""The acceptance models of a forest by stage: who has one of its own, and who shares.

Owns names, limits and the counts of uses. The native core owns what the models have learned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agentspec._native import ForestCore
from agentspec.forest.file import TreeName

Path = tuple[str, ...]

POOLED: Path = ()  # the name of the model of all stages of a tenant that have none of their own
_MOST_USES = 8192  # in all counts together
_MARGIN = 4  # uses: stages that take turns are never so far apart


class UseCounts:
    """How often names were used. All counts are halved now and then: older uses count less, and few names."""

    def __init__(self) -> None:
        self._counts: dict[object, int] = {}
        self._total = 0

    def __getitem__(self, name: object) -> int:
        return self._counts.get(name, 0)

    def add(self, name: object) -> None:
        """Count a use."""
        self._counts[name] = self._counts.get(name, 0) + 1
        self._total += 1
        if self._total >= _MOST_USES:
            self._counts = {one: count // 2 for one, count in self._counts.items() if count > 1}
            self._total = sum(self._counts.values())


@dataclass(slots=True)
class _Tenant:
    """The models of one tenant.

    Attributes:
        group: of the tenant in the core.
        models: by path, the last used last.
        uses: of its stages.
        mixed: paths of stages' own models that began as a copy of the shared one.
    """

    name: str
    group: int
    models: dict[Path, int] = field(default_factory=dict)
    uses: UseCounts = field(default_factory=UseCounts)
    mixed: set[Path] = field(default_factory=set)

    def least_used(self) -> Path:
        """Return the stage with a model of its own that is used least. There must be one."""
        return min((path for path in self.models if path != POOLED), key=self.uses.__getitem__)


class ModelTable:
    """Maps stages to the core's models, and creates them on first use. Not thread-safe.

    A stage has a model of its own as long as there is room. Beyond that, stages of the same tenant share a
    model: the least used model becomes that of its stage and of all further ones, which continue to train it
    together. A stage that is used twice as often as another one takes over its room; the other one shares
    from then on. So stages that take turns keep what they have learned, and no stage has less than a shared
    model. A model of its own begins with what the shared one knows.

    Tenants never share. If all models together have no room, a tenant that was not used for long gives one
    up, or else the tenant with the most to one with at least two fewer. If each has only one, a further
    tenant takes that of the tenant used least.

    Args:
        most: models of all tenants.
        most_of_tenant: models of one tenant.
        prior: state of the model that each one starts from; None = the shipped prior.
    """

    def __init__(self, core: ForestCore, most: int, most_of_tenant: int, prior: bytes | None) -> None:
        self._core = core
        self._most = most
        self._most_of_tenant = min(most, most_of_tenant)
        self._prior = prior
        self._num_models = 0
        self._tenants: dict[str, _Tenant] = {}  # the last one that got its first model is last
        self._uses = UseCounts()  # of tenants

    def __iter__(self) -> Iterator[tuple[TreeName, int]]:
        """Yield those that stages share, then stages' own ones, the last used first by tenant.

        Those that began as a copy of a shared one are left out: they may begin so again.
        """
        for name, tenant in self._tenants.items():
            if POOLED in tenant.models:
                yield (name, POOLED), tenant.models[POOLED]
        for name, tenant in self._tenants.items():
            yield from (
                ((name, path), one)
                for path, one in reversed(tenant.models.items())
                if path != POOLED and path not in tenant.mixed
            )

    def enter(self, group: int, name: TreeName) -> int | None:
        """Return the model for a request of a stage, or None if the limits allow no model.

        Args:
            group: of the tenant.
            name: tenant and path of the stage.
        """
        if self._most_of_tenant == 0:
            return None
        tenant, path = self._tenant(group, name[0]), name[1]
        self._uses.add(tenant.name)
        tenant.uses.add(path)
        if path not in tenant.models and not self._make_room(tenant, path):
            path = POOLED
            self._begin_sharing(tenant)
        model = tenant.models.pop(path) if path in tenant.models else self._begin(tenant, path)
        tenant.models[path] = model
        return model

    def add(self, group: int, name: TreeName, state: bytes | None = None) -> int | None:
        """Return the model of this name, or a new one as the least recently used. Nothing makes room for it.

        Args:
            group: of the tenant.
            name: tenant and path of the stage, or ``POOLED``.
            state: of a new one; None = the prior.

        Returns:
            Without room the model that stages of the tenant share, or None if there is no such model.
        """
        tenant, path = self._tenant(group, name[0]), name[1]
        has_room = self._num_models < self._most and len(tenant.models) < self._most_of_tenant
        if path not in tenant.models and has_room:
            tenant.models = {path: self._new(tenant, state), **tenant.models}
        return tenant.models.get(path, tenant.models.get(POOLED))

    def drop(self, name: str, path: Path) -> None:
        """Drop the models of a stage and of all stages below it, and what they have learned with others."""
        tenant = self._tenants.get(name)
        if tenant is not None:
            mixed = {POOLED, *tenant.mixed}
            for one in [one for one in tenant.models if one in mixed or one[: len(path)] == path]:
                self._drop(tenant, one)

    def _tenant(self, group: int, name: str) -> _Tenant:
        if name not in self._tenants:
            self._tenants[name] = _Tenant(name, group)
        return self._tenants[name]

    def _begin(self, tenant: _Tenant, path: Path) -> int:
        """Return a new model of a stage's own."""
        if POOLED not in tenant.models:
            return self._new(tenant)
        tenant.mixed.add(path)
        return self._new(tenant, self._core.model_state(tenant.models[POOLED]))

    def _new(self, tenant: _Tenant, state: bytes | None = None) -> int:
        state = self._prior if state is None else state
        create, restore = self._core.create_model, self._core.restore_model
        model = create(tenant.group) if state is None else restore(tenant.group, state)
        if not tenant.models:
            self._tenants[tenant.name] = self._tenants.pop(tenant.name)
        self._num_models += 1
        return model

    def _drop(self, tenant: _Tenant, path: Path) -> None:
        self._core.drop_model(tenant.models.pop(path))
        tenant.mixed.discard(path)
        self._num_models -= 1

    def _begin_sharing(self, tenant: _Tenant) -> None:
        """Make the model of the stage used least the shared one, unless there is one. There must be one."""
        if POOLED in tenant.models:
            return
        least = tenant.least_used()
        state = self._core.model_state(tenant.models[least])
        self._drop(tenant, least)
        tenant.models[POOLED] = self._new(tenant, state)

    def _make_room(self, tenant: _Tenant, path: Path) -> bool:
        """Make room for a model of a stage's own. Return False if the stage has to share."""
        if len(tenant.models) < self._most_of_tenant and (
            self._num_models < self._most or self._take_from_others(tenant)
        ):
            return True
        if POOLED not in tenant.models or len(tenant.models) == 1:
            return False
        least = tenant.least_used()
        if tenant.uses[path] <= 2 * tenant.uses[least] + _MARGIN:
            return False
        self._drop(tenant, least)
        return True

    def _take_from_others(self, asking: _Tenant) -> bool:
        """Drop a model of another tenant. Return False if no tenant has to give one up."""
        others = [one for one in self._tenants.values() if one.models and one is not asking]
        idle = [one for one in others if not self._uses[one.name]]
        largest = max(others, key=lambda one: len(one.models), default=None)
        if idle:
            self._drop(idle[0], next(iter(idle[0].models)))
        elif largest is not None and len(largest.models) >= len(asking.models) + 2:
            self._begin_sharing(largest)
            self._drop(largest, largest.least_used())
        elif not asking.models:
            least = min(reversed(others), key=lambda one: self._uses[one.name])  # tenants may take turns
            self._drop(least, next(iter(least.models)))
        else:
            return False
        return True
