"""Erasure in a fleet, as a state machine: in whatever order engines send and read, no erased output stays."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentspec import Forest
from agentspec.corpus.batch import Output
from agentspec.errors import CorpusError
from agentspec.forest.sessions import session_hash
from agentspec.stages import StageKey
from tests.corpus.support.memory_store import MemoryStore
from tests.corpus.support.replica import Clock, Replica, output, stored, tree_outputs

TENANTS = ("acme", "globex")
STAGES = ("a", "a/b", "c")
SUBJECTS = (b"", b"", b"ann", b"bob")
SESSIONS = ("", "run", "other")
NAMES = "xyz"
replicas = st.integers(0, len(NAMES) - 1)
tenants = st.sampled_from(TENANTS)


class Fleet(RuleBasedStateMachine):
    """Three replicas on one store. Every token of a tenant is in that tenant's half of the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.clock = Clock()
        self.replicas: list[Replica] = []
        self.alive = defaultdict[str, set[tuple[str, tuple[int, ...]]]](set)  # by tenant: not erased
        self.erased = defaultdict[str, set[tuple[str, tuple[int, ...]]]](set)
        self.subjects = defaultdict[tuple[str, str, tuple[int, ...]], set[bytes]](set)

    @initialize(small=st.booleans())
    def start(self, small: bool) -> None:
        for name in NAMES:
            self.replicas.append(self.replica(name, small))
        for tenant, token in zip(TENANTS, (49, 99), strict=True):  # each knows both tenants
            for replica in self.replicas:
                replica.finish(output([token], "warm", tenant))
        self.settle()

    def replica(self, name: str, small: bool) -> Replica:
        memory_bytes = 2500 if small else 1 << 20
        return Replica(self.store, name, Forest(), self.clock, joined=(), memory_bytes=memory_bytes)

    @rule(
        which=replicas,
        tenant=tenants,
        stage=st.sampled_from(STAGES),
        tokens=st.lists(st.integers(0, 3), min_size=1, max_size=3),
        subject=st.sampled_from(SUBJECTS),
        session=st.sampled_from(SESSIONS),
    )
    def finish(self, which, tenant, stage, tokens, subject, session=""):
        tokens = tuple(token + 50 * (tenant == "globex") for token in tokens)
        of = session_hash(tenant, session) if session else b""
        finished = output(tokens, stage, tenant, subject, session=of)
        self.replicas[which].finish(finished)
        self.note_alive(tenant, stage, tokens, subject)

    @rule(which=replicas, tenant=tenants, session=st.sampled_from(SESSIONS[1:]))
    def move_session(self, which, tenant, session):
        """Let a session go on in a replica, with a request that says nothing."""
        trees = self.replicas[which].trees
        trees.start("moved", StageKey(tenant, ("c",)), np.empty(0, np.int32), session=session)
        trees.finish("moved")

    @rule(which=replicas)
    def send(self, which):
        self.replicas[which].pump()

    @rule(which=replicas)
    def learn(self, which):
        self.replicas[which].learn()

    @rule(which=replicas, tenant=tenants)
    def write_snapshot(self, which, tenant):
        self.store.now_s += 100.0
        self.replicas[which].keeper._writer.write(tenant)

    @rule()
    def fail(self):
        """Lose the answer to the next call that publishes."""
        self.store.num_failing = 1

    @rule(tenant=tenants, num_entries=st.integers(0, 2))
    def repeat_entries(self, tenant, num_entries):
        """Deliver some entries twice."""
        scope = self.replicas[0].log.scope(tenant)
        for entry in self.store.read(scope, "", 1 << 30)[-num_entries or 1 << 30 :]:
            self.store.append(scope, entry.batch)

    @rule(which=replicas)
    def join_anew(self, which):
        """Replace an engine by a new one. Its thread has just looked at the log."""
        self.replicas[which].learn()
        self.replicas[which].publisher.close()
        self.replicas[which].keeper.close()
        self.replicas[which] = self.replica(f"{NAMES[which]}{self.clock.now_s}", small=False)
        self.replicas[which].learn()

    @rule(which=replicas, tenant=tenants, stage=st.sampled_from(["a", "c"]))
    def forget_stage(self, which, tenant, stage):
        self.attempt(lambda: self.replicas[which].forget_stage(stage, tenant))
        self.note_erased(tenant, lambda name, _: name == stage or name.startswith(f"{stage}/"))

    @rule(which=replicas, tenant=tenants, subject=st.sampled_from([b"ann", b"bob"]))
    def forget_subject(self, which, tenant, subject):
        self.attempt(lambda: self.replicas[which].forget_subject(subject, tenant))
        mine = {
            key[1:] for key, subjects in self.subjects.items() if key[0] == tenant and subject in subjects
        }
        for stage, tokens in mine:
            self.subjects[tenant, stage, tokens].discard(subject)
        self.note_erased(tenant, lambda *one: one in mine and not self.subjects[(tenant, *one)])

    @rule(which=replicas, tenant=tenants)
    def forget_tenant(self, which, tenant):
        self.replicas[which].forget_tenant(tenant)
        self.note_erased(tenant, lambda *_: True)

    def attempt(self, erase) -> None:
        self.store.now_s += 100.0
        try:
            erase()
        except CorpusError:
            erase()

    def note_alive(self, tenant, stage, tokens, subject) -> None:
        self.alive[tenant].add((stage, tokens))
        self.erased[tenant].discard((stage, tokens))
        self.subjects[tenant, stage, tokens].add(subject)

    def note_erased(self, tenant, is_covered) -> None:
        covered = {one for one in self.alive[tenant] if is_covered(*one)}
        self.alive[tenant] -= covered
        self.erased[tenant] |= covered
        for stage, tokens in covered:
            self.subjects.pop((tenant, stage, tokens), None)

    def settle(self) -> None:
        for _ in range(4):
            self.store.now_s += 100.0
            for replica in self.replicas:
                replica.pump(61.0)
            for replica in self.replicas:
                replica.learn()
                replica.keeper.step()

    @rule()
    def nothing_erased_remains(self):
        self.settle()
        for tenant in TENANTS:
            kept_tokens = {tokens for _, tokens in self.alive[tenant]}
            for replica in self.replicas:
                for (owner, path), held in tree_outputs(replica.trees).items():
                    if owner == tenant and path:
                        erased = {tokens for stage, tokens in self.erased[tenant] if stage == "/".join(path)}
                        below = {t for s, t in self.alive[tenant] if s.split("/")[: len(path)] == list(path)}
                        assert not set(held) & (erased - below), (replica.origin, tenant, path)
                    elif owner == tenant:
                        erased = {tokens for _, tokens in self.erased[tenant]}
                        assert not set(held) & (erased - kept_tokens), (replica.origin, tenant, path)
            self.check_store(tenant)

    def check_store(self, tenant) -> None:
        subjects = {subject for key, names in self.subjects.items() if key[0] == tenant for subject in names}
        for batch in stored(self.replicas[0].log, tenant):
            for record in batch.records:
                if isinstance(record, Output):
                    assert (record.stage.name, tuple(record.tokens.tolist())) not in self.erased[tenant]
                    assert record.subject in subjects | {b""}

    @invariant()
    def tenants_never_mix(self):
        for replica in self.replicas:
            for (tenant, _), held in tree_outputs(replica.trees).items():
                for tokens in held:
                    assert {token >= 50 for token in tokens} == {tenant == "globex"}

    def teardown(self):
        if self.replicas:
            self.nothing_erased_remains()
            for replica in self.replicas:
                replica.trees.check_integrity()


def test_an_output_between_two_equal_erasures_is_erased_though_it_is_sent_late() -> None:
    fleet = Fleet()
    fleet.start(small=False)
    fleet.forget_stage(which=0, tenant="globex", stage="a")
    fleet.join_anew(which=0)
    fleet.finish(which=0, tenant="globex", stage="a", tokens=[0], subject=b"")
    fleet.forget_stage(which=1, tenant="globex", stage="a")
    fleet.send(which=0)  # it has not read the second erasure
    fleet.join_anew(which=0)
    fleet.teardown()


@pytest.mark.parametrize("has_moved", [False, True])
def test_an_erased_output_leaves_the_session_that_it_belongs_to(has_moved: bool) -> None:
    fleet = Fleet()
    fleet.start(small=False)
    said = {"stage": "a", "tokens": [1, 2], "subject": b"", "session": "run"}
    fleet.finish(which=0, tenant="acme", **said)
    fleet.settle()
    if has_moved:
        fleet.move_session(which=1, tenant="acme", session="run")
    assert tree_outputs(fleet.replicas[1].trees)["acme", None] == [(1, 2)]
    fleet.forget_stage(which=0, tenant="acme", stage="a")
    fleet.teardown()


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
