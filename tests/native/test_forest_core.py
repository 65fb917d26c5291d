"""The batch layer compared with Algorithm 1, run by brute force over every source of every request."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from agentspec._native import DraftOptions, ForestCore
from agentspec.errors import ConfigError, DuplicateRequestError, TokenError, UnknownRequestError
from tests.native.support.naive_index import NaiveIndex

RULES = (
    {"max_tokens": 8, "alpha": 2.0, "min_match": 1, "min_prob": 0.1},
    {"max_tokens": 12, "alpha": 4.0, "min_match": 2, "min_prob": 0.0, "doubt": 1.5},
    {"max_tokens": 0, "alpha": 1.0, "min_match": 1, "min_prob": 0.1},
)
NO_TOKENS = np.empty(0, np.int32)


def ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def flat(updates: dict[int, list[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lengths = [len(tokens) for tokens in updates.values()]
    tokens = [token for update in updates.values() for token in update]
    return np.array(list(updates), np.uint64), ids(tokens), np.cumsum([0, *lengths])


@dataclass
class NaiveRequest:
    own: NaiveIndex
    context: list[int]
    rule: dict[str, float]
    is_tree: bool
    learns: bool
    sources: list[tuple[int, int]]  # (source, index), the most specific first


@dataclass
class Grove:
    """A ForestCore and its naive counterpart, driven by the same random calls."""

    depth: int
    alphabet: int
    rng: random.Random
    indices: dict[int, NaiveIndex] = field(default_factory=dict)
    requests: dict[int, NaiveRequest] = field(default_factory=dict)
    num_started: int = 0

    def __post_init__(self) -> None:
        self.core = ForestCore(self.depth, 1 << 30)
        self.group = self.core.create_group(1 << 30)
        for _ in range(3):
            self.create_index()

    def create_index(self) -> None:
        self.indices[self.core.create_index(self.group, 1 << 30)] = NaiveIndex(self.depth)

    def text(self, most: int) -> list[int]:
        return [int(self.alphabet * self.rng.random() ** 2) for _ in range(self.rng.randrange(most))]

    def start(self) -> None:
        request_id, self.num_started = self.num_started, self.num_started + 1
        prompt, prediction, rule = self.text(15), self.text(8), self.rng.choice(RULES)
        is_tree, learns = self.rng.random() < 0.3, self.rng.random() < 0.6
        chosen = self.rng.sample(sorted(self.indices), self.rng.randint(0, len(self.indices)))
        sources = sorted((self.rng.randint(2, 5), index) for index in chosen)
        own = NaiveIndex(self.depth)
        own.append(0, prediction)
        own.append(1, prompt)
        self.requests[request_id] = NaiveRequest(own, prompt[:], rule, is_tree, learns, sources)
        self.core.start(
            request_id,
            self.group,
            ids(prompt),
            ids(prediction),
            [(index, source) for source, index in sources],
            learns,
            DraftOptions(is_tree, **rule),
        )

    def finish(self) -> None:
        request_id = self.rng.choice(list(self.requests))
        keep = self.rng.random() < 0.5
        request = self.requests.pop(request_id)
        self.core.finish(request_id, keep)
        if request.learns and not keep:
            for _, index in request.sources:
                if index in self.indices:
                    self.indices[index].remove(request_id)

    def replace_index(self) -> None:
        dropped = self.rng.choice(list(self.indices))
        self.core.drop_index(dropped)
        del self.indices[dropped]
        self.create_index()

    def learn(self) -> None:
        index = self.rng.choice(list(self.indices))
        tokens = self.text(12)
        self.core.learn(np.array([index], np.uint64), ids(tokens))
        self.indices[index].append(-1 - self.rng.randrange(1 << 40), tokens)

    def updates(self) -> dict[int, list[int]]:
        named = self.rng.sample(list(self.requests), self.rng.randint(1, len(self.requests)))
        updates = {}
        for request_id in named:
            updates[request_id] = self.text(5)
            request = self.requests[request_id]
            request.own.append(1, updates[request_id])
            request.context += updates[request_id]
            for _, index in request.sources:
                if request.learns and index in self.indices:
                    self.indices[index].append(request_id, updates[request_id])
        return updates

    def step(self) -> int:
        updates = self.updates()
        token_ids, _, _, offsets, scores, matches, sources = self.core.step(*flat(updates), 10)
        for i, request_id in enumerate(updates):
            score, match, source, tokens = self.best_draft(self.requests[request_id])
            assert (scores[i], matches[i], sources[i]) == (score, match, source)
            if not self.requests[request_id].is_tree:
                assert token_ids[offsets[i] : offsets[i + 1]].tolist() == tokens
        return len(updates)

    def best_draft(self, request: NaiveRequest) -> tuple[float, int, int, list[int]]:
        rule = {**request.rule, "max_tokens": min(request.rule["max_tokens"], 10)}
        candidates = [(1, request.own)]
        candidates += [
            (source, self.indices[index]) for source, index in request.sources if index in self.indices
        ]
        best = (0.0, 0, 0, [])
        for source, naive in candidates:
            score, match, tokens = naive.draft(tuple(request.context), is_tree=request.is_tree, **rule)
            if score > best[0]:
                best = (score, match, source, tokens)
        return best


@pytest.mark.parametrize(("depth", "alphabet"), [(2, 2), (4, 3), (6, 2), (9, 30), (12, 4)])
def test_every_draft_is_the_best_of_all_sources(depth, alphabet):
    grove = Grove(depth, alphabet, random.Random(depth))
    num_drafts = 0
    for turn in range(1200):
        roll = grove.rng.random()
        if len(grove.requests) < 2 or (roll < 0.08 and len(grove.requests) < 10):
            grove.start()
        elif roll < 0.16:
            grove.finish()
        elif roll < 0.165:
            grove.replace_index()
        elif roll < 0.25:
            grove.learn()
        elif roll < 0.35:
            grove.core.observe(*flat(grove.updates()))
        else:
            num_drafts += grove.step()
        if turn % 20 == 0:
            grove.core.check_integrity()
    assert num_drafts > 1500


@pytest.fixture
def core() -> ForestCore:
    core = ForestCore(8, 1 << 20)
    core.create_group(1 << 20)
    return core


def start(core: ForestCore, request: int) -> None:
    options = DraftOptions(False, 8, 4.0, 1, 0.1)
    core.start(request, 0, ids([1, 2, 1]), NO_TOKENS, [], True, options)


@pytest.mark.parametrize(
    ("requests", "tokens", "offsets", "error"),
    [
        ([0, 9], [1], [0, 0, 1], UnknownRequestError),
        ([0, 0], [1], [0, 0, 1], DuplicateRequestError),
        ([0], [-1], [0, 1], TokenError),
        ([0], [1], [0, 2], ConfigError),
        ([0], [1], [0], ConfigError),
        ([0, 1], [1], [0, 2, 1], ConfigError),
    ],
)
def test_a_wrong_batch_changes_nothing(core, requests, tokens, offsets, error):
    start(core, 0)
    start(core, 1)
    before = core.memory_bytes()
    call = np.array(requests, np.uint64), ids(tokens), np.array(offsets)
    for method in (core.observe, lambda *batch: core.step(*batch, 8)):
        with pytest.raises(error):
            method(*call)
    assert core.memory_bytes() == before
    assert core.step(*flat({0: []}), 8)[0].tolist() == [2, 1]


def test_wrong_offsets_are_named(core):
    start(core, 0)
    for offsets, named in (([0, 3], r"offsets\[1\] is 3"), ([1, 1], r"offsets\[0\] is 1"), ([0], "2, not 1")):
        with pytest.raises(ConfigError, match=named):
            core.step(np.array([0], np.uint64), ids([5]), np.array(offsets), 8)


def test_a_step_without_tokens_to_draft_drafts_nothing(core):
    start(core, 0)
    assert core.step(*flat({0: []}), 8)[0].tolist() == [2, 1]
    assert core.step(*flat({0: []}), 0)[0].tolist() == []
    assert core.step(*flat({0: [2]}), 8)[0].tolist()[:2] == [1, 2]


def test_wrong_ids_are_named(core):
    start(core, 3)
    with pytest.raises(DuplicateRequestError, match="request 3"):
        start(core, 3)
    with pytest.raises(UnknownRequestError, match="request 4"):
        core.finish(4, True)
    with pytest.raises(UnknownRequestError, match="index 7"):
        core.drop_index(7)
    with pytest.raises(UnknownRequestError, match="group 7"):
        core.create_index(7, 4096)


def test_arrays_of_other_types_are_refused_not_converted(core):
    start(core, 0)
    with pytest.raises(TypeError):
        core.step(np.array([0], np.uint64), np.array([1], np.int64), np.array([0, 1]), 8)


def test_outputs_are_read_with_their_uses_and_learned_with_them():
    core = ForestCore(5, 1 << 30)
    group = core.create_group(1 << 30)
    indices = np.array([core.create_index(group, 1 << 30), core.create_index(group, 1 << 30)], np.uint64)
    core.learn(indices[:1], ids([1, 2, 3]), 4)
    core.learn(indices[:1], ids([7]))
    tokens, sizes, uses = core.read_outputs(indices[0], True)
    assert (tokens.tolist(), sizes.tolist(), uses.tolist()) == ([1, 2, 3, 7], [3, 1], [4, 1])
    assert (tokens.dtype, sizes.dtype, uses.dtype) == (np.int32, np.uint32, np.uint32)
    assert len(core.read_outputs(indices[0], False)[0]) == 0
    assert core.index_size(indices[0]) == (5, 13)
    for wrong in (0, 65_536):
        with pytest.raises(ConfigError, match=f"not {wrong}"):
            core.learn(indices, ids([1]), wrong)
    with pytest.raises(UnknownRequestError):
        core.read_outputs(99, True)


def test_a_request_without_its_model_drafts_by_the_papers_rule():
    core = ForestCore(8, 1 << 30)
    group = core.create_group(1 << 30)
    index = core.create_index(group, 1 << 30)
    core.learn(np.array([index], np.uint64), ids([7, 1, 2, 3, 4, 5, 6]))
    gone = core.create_model(group)
    core.drop_model(gone)
    options = DraftOptions(False, 4, 4.0, 1, 0.1)
    for request, model in ((0, None), (1, gone)):
        core.start(request, group, ids([9, 1, 2, 3]), NO_TOKENS, [(index, 3)], True, options, False, model)
        assert core.step(*flat({request: []}), 4)[0].tolist() == [4, 5, 6]
