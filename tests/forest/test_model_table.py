"""Who has an acceptance model of its own, and who shares one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from agentspec._native import MODEL_BYTES, ForestCore
from agentspec.forest.model_table import POOLED, ModelTable, UseCounts

MANY = 1 << 40


class Models:
    """A table over a real core, and the group of each tenant."""

    def __init__(self, most: int, most_of_tenant: int | None = None) -> None:
        self.core = ForestCore(64, MANY, 1)
        self.table = ModelTable(self.core, most, most if most_of_tenant is None else most_of_tenant, None)
        self._groups: dict[str, int] = {}

    def group(self, tenant: str) -> int:
        if tenant not in self._groups:
            self._groups[tenant] = self.core.create_group(MANY)
        return self._groups[tenant]

    def enter(self, path: str, tenant: str = "t") -> int:
        model = self.table.enter(self.group(tenant), (tenant, (path,)))
        assert model is not None
        self.core.model_state(model)  # the core has it
        return model

    def add(self, path: str, tenant: str = "t", state: bytes | None = None) -> int | None:
        return self.table.add(self.group(tenant), (tenant, (path,)), state)

    def held(self) -> dict[tuple[str, tuple[str, ...]], int]:
        return dict(self.table)

    def num_held(self) -> int:
        assert self.core.memory_bytes() % MODEL_BYTES == 0
        return self.core.memory_bytes() // MODEL_BYTES


def turns(num_stages: int, num_rounds: int, burst: int = 1) -> Iterator[str]:
    for _ in range(num_rounds):
        for stage in range(num_stages):
            yield from [f"s{stage}"] * burst


def test_every_stage_has_its_own_model_while_there_is_room() -> None:
    models = Models(4)
    found = {path: models.enter(path) for path in turns(4, 1)}
    assert len(set(found.values())) == models.num_held() == 4
    assert {path: models.enter(path) for path in turns(4, 20)} == found
    assert POOLED not in [path for _, path in models.held()]


@pytest.mark.parametrize("most", [1, 2, 3, 6])
@pytest.mark.parametrize("num_more", [1, 2, 10, 100])
@pytest.mark.parametrize("burst", [1, 16])
def test_stages_that_take_turns_lose_nothing(most: int, num_more: int, burst: int) -> None:
    """After the first round no model is dropped or made, however many stages there are."""
    models, num_stages = Models(most), most + num_more
    for path in turns(num_stages, 1, burst):
        models.enter(path)
    found = {path: models.enter(path) for path in turns(num_stages, 1, burst)}
    assert len(set(found.values())) == models.num_held() == most
    shared = models.held()["t", POOLED]
    assert sum(model == shared for model in found.values()) == num_stages - most + 1
    assert {path: models.enter(path) for path in turns(num_stages, 30, burst)} == found


def test_the_shared_model_begins_with_what_the_stage_used_least_has_learned() -> None:
    models = Models(3)
    for path in ("a", "a", "b", "c", "c"):
        models.enter(path)
    taught = ForestCore.untrained_model_state()
    models.table.drop("t", ("b",))
    models.add("b", state=taught)
    shared = models.enter("d")
    assert models.core.model_state(shared) == taught
    assert models.enter("b") == shared
    assert models.held().keys() == {("t", POOLED), ("t", ("a",)), ("t", ("c",))}


def test_a_stage_used_more_takes_over_the_room_of_another() -> None:
    models = Models(3)
    own = {path: models.enter(path) for path in "abc"}
    for path in "abc" * 10:
        models.enter(path)
    shared = models.enter("d")  # and "a", for all are used alike
    for _ in range(20):
        assert models.enter("d") == shared
    found = [models.enter("d") for _ in range(40)]
    assert found[-1] not in (shared, *own.values())
    assert len(set(found)) == 2  # it changed once
    assert models.num_held() == 3
    assert shared in (models.enter("b"), models.enter("c"))


def test_a_model_of_its_own_begins_as_a_copy_of_the_shared_one() -> None:
    models = Models(2)
    models.add("a")
    taught = ForestCore.untrained_model_state()
    models.table.add(models.group("t"), ("t", POOLED), taught)
    for _ in range(20):
        model = models.enter("b")
    assert models.core.model_state(model) == taught
    models.table.drop("t", ("other",))  # a copy knows of other stages, and is forgotten with them
    assert models.num_held() == 0


def test_stages_that_are_gone_give_way() -> None:
    models = Models(4)
    for path in turns(4, 100):
        models.enter(path)
    before = set(models.held().values())
    for path in [f"new {path}" for path in turns(4, 400)]:
        models.enter(path)
    own = [path[0] for _, path in models.held() if path != POOLED] or ["new"]
    assert all(path.startswith("new") for path in own)
    assert before.isdisjoint(models.held().values())
    assert models.num_held() == 4


def test_nothing_that_is_only_added_makes_room() -> None:
    models = Models(2)
    a, b = models.enter("a"), models.add("b")
    assert models.add("c") is None
    assert models.held() == {("t", ("a",)): a, ("t", ("b",)): b}
    shared = models.enter("c")
    assert models.add("d") == models.add("b") == shared


def test_no_room_for_any_model() -> None:
    models = Models(0)
    assert models.table.enter(models.group("t"), ("t", ("a",))) is None
    assert models.add("a") is None


# ---- tenants ----


def test_tenants_share_no_model_and_get_even_parts() -> None:
    models, tenants = Models(9), ("first", "second", "third")
    for path in turns(9, 3):
        models.enter(path, "first")
    for path in turns(9, 20):
        for tenant in tenants:
            models.enter(path, tenant)
    found = [{models.enter(path, tenant) for path in turns(9, 1)} for tenant in tenants]
    assert [len(one) for one in found] == [3, 3, 3]
    assert len(set.union(*found)) == models.num_held() == 9
    assert [{models.enter(path, tenant) for path in turns(9, 1)} for tenant in tenants] == found


def test_more_tenants_than_models() -> None:
    """All but one keep what they have learned, and the others take turns with the last one."""
    models = Models(4)
    tenants = [f"t{i}" for i in range(8)]
    for _ in range(3):
        for tenant in tenants:
            models.enter("a", tenant)
    found = [models.enter("a", tenant) for tenant in tenants]
    again = [models.enter("a", tenant) for tenant in tenants]
    assert sum(one == other for one, other in zip(found, again, strict=True)) == 3
    assert models.num_held() == 4


def test_a_tenant_that_is_gone_gives_way() -> None:
    models = Models(4)
    for path in turns(4, 2):
        models.enter(path, "gone")
    for path in turns(4, 6000):
        models.enter(path, "here")
    assert {name for name, _ in models.held()} == {"here"}
    assert models.num_held() == 4


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_the_limits_hold(seed: int) -> None:
    rng = random.Random(seed)
    most, most_of_tenant = rng.randint(1, 8), rng.randint(1, 5)
    models = Models(most, most_of_tenant)
    owners: dict[int, str] = {}
    for _ in range(1500):
        tenant, path = f"t{rng.randrange(4)}", f"s{int(rng.expovariate(0.3))}"
        action = rng.random()
        if action < 0.96:
            model = models.enter(path, tenant)
            assert owners.setdefault(model, tenant) == tenant  # ids are never used again
        elif action < 0.98:
            models.add(path, tenant)
        else:
            models.table.drop(tenant, rng.choice([(), (path,)]))
        held = models.held()
        assert models.num_held() <= most
        for name in {name for name, _ in held}:
            assert sum(one == name for one, _ in held) <= most_of_tenant
        assert all(owners.get(model, name) == name for (name, _), model in held.items())
    models.core.check_integrity()


def test_counts_of_uses_are_bounded_and_fade() -> None:
    uses = UseCounts()
    for _ in range(400):
        uses.add("old")
    for i in range(100_000):
        uses.add(f"stranger {i}")
    assert uses["old"] == 0
    assert len(uses._counts) <= 8192
