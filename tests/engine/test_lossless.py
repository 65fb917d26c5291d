"""Drafting changes no token: outputs are the same with drafting off, as a chain and as a tree."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from agentspec.config import DraftConfig
from agentspec.draft import Draft
from agentspec.engine import scheduler
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.request import Choice
from agentspec.engine.scheduler import Scheduler
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.forest import Forest
from agentspec.generation import GenerationDelta, GenerationRequest, SamplingParams
from agentspec.proposer import NoDrafts, Proposer
from agentspec.tags import Tags
from tests.support.fakes import STAGE, OracleProposer, RandomProposer, SteppedEngine

NUM_PROMPTS = 200
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)

Answer = tuple[list[int], str, str | None, list[Any]]
Run = Callable[..., list[Answer]]


def make_prompts(number: int) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(4, 380) for _ in range(rng.randint(1, 40))] for _ in range(number)]


@pytest.fixture(scope="module")
def run(exact_model: Transformer, tokenizer: Tokenizer) -> Run:
    """Return a function that submits prompts together to ``num_slots`` slots and returns the answers."""

    def run(
        prompts: Sequence[list[int]],
        sampling: Sequence[SamplingParams],
        proposer: Proposer,
        num_slots: int = 8,
        draft: DraftConfig | None = None,
        clock: Callable[[], float] = time.perf_counter,
        price: float | None = 0.0,
        kv_cache_bytes: int | None = None,
    ) -> list[Answer]:
        draft = draft or DraftConfig(max_tokens=12)
        engine = SteppedEngine(
            exact_model,
            tokenizer,
            proposer,
            num_slots=num_slots,
            draft=draft,
            clock=clock,
            price=price,
            kv_cache_bytes=kv_cache_bytes,
        )
        for i, (prompt, params) in enumerate(zip(prompts, sampling, strict=True)):
            engine.submit(GenerationRequest(f"r{i}", prompt, params, Tags(STAGE)))
        engine.run()
        engine.cache.check_integrity()
        assert engine.scheduler.num_free == num_slots
        assert engine.memory.num_reserved_bytes == 0
        return [answer(engine.deltas(f"r{i}")) for i in range(len(prompts))]

    return run


def answer(deltas: list[GenerationDelta]) -> Answer:
    return (
        [token for delta in deltas for token in delta.token_ids],
        "".join(delta.text for delta in deltas),
        deltas[-1].finish_reason,
        [entry for delta in deltas for entry in delta.logprobs],
    )


def proposers(prompts: Sequence[list[int]], answers: Sequence[Answer]) -> dict[str, Any]:
    outputs = {tuple(prompt): reply[0] for prompt, reply in zip(prompts, answers, strict=True)}
    return {
        "right chains": OracleProposer(outputs, is_tree=False, wrong=0.0),
        "half right chains": OracleProposer(outputs, is_tree=False, wrong=0.2),
        "bushes": OracleProposer(outputs, is_tree=True, wrong=0.05),
        "random chains": RandomProposer(is_tree=False),
        "random trees": RandomProposer(is_tree=True),
    }


def assert_drafting_changes_nothing(
    run: Run, prompts: Sequence[list[int]], sampling: Sequence[SamplingParams]
) -> list[Answer]:
    plain = run(prompts, sampling, NoDrafts())
    for name, proposer in proposers(prompts, plain).items():
        for got, expected in zip(run(prompts, sampling, proposer), plain, strict=True):
            assert got[:3] == expected[:3], name
            for entry, reference in zip(got[3], expected[3], strict=True):
                assert entry.token_id == reference.token_id, name
                assert entry.logprob == pytest.approx(reference.logprob, abs=1e-5), name
                assert [t[0] for t in entry.top] == [t[0] for t in reference.top], name
        assert_told_in_order(proposer, plain)
    return plain


def assert_told_in_order(proposer: Any, answers: Sequence[Answer]) -> None:
    """Check that the proposer received every accepted token once, and that every output was finished.

    It needs no more tokens of an output that it gets as a whole at its end.
    """
    assert not proposer.live
    for i, reply in enumerate(answers):
        told = proposer.told[f"r{i}"]
        assert told == reply[0][: len(told)]
        assert len(told) == len(reply[0]) or f"r{i}" in proposer.outputs
        assert proposer.learned[f"r{i}"]


def test_greedy_outputs_are_identical_in_a_batch(run: Run) -> None:
    prompts = make_prompts(NUM_PROMPTS)
    answers = assert_drafting_changes_nothing(run, prompts, [GREEDY] * NUM_PROMPTS)
    assert len({tuple(reply[0]) for reply in answers}) > NUM_PROMPTS / 2  # the answers differ


@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
def test_greedy_outputs_are_identical_alone(run: Run, is_tree: bool) -> None:
    prompts = make_prompts(NUM_PROMPTS)
    sampling = [GREEDY] * NUM_PROMPTS
    batched = run(prompts, sampling, NoDrafts())
    outputs = {tuple(prompt): reply[0] for prompt, reply in zip(prompts, batched, strict=True)}
    alone = run(prompts, sampling, OracleProposer(outputs, is_tree=is_tree), num_slots=1)
    assert alone == batched


def test_drafts_are_really_accepted(exact_model: Transformer, tokenizer: Tokenizer) -> None:
    prompts = make_prompts(20)
    steps = {}
    outputs: dict[tuple[int, ...], list[int]] = {}
    for kind in ("off", "chain", "tree"):
        proposer = NoDrafts() if kind == "off" else OracleProposer(outputs, is_tree=kind == "tree", wrong=0)
        engine = SteppedEngine(exact_model, tokenizer, proposer, draft=DraftConfig(max_tokens=12))
        for i, prompt in enumerate(prompts):
            engine.submit(GenerationRequest(f"r{i}", prompt, GREEDY, Tags(STAGE)))
        engine.run()
        outputs = {tuple(prompt): engine.output(f"r{i}") for i, prompt in enumerate(prompts)}
        stats = engine.decoder.counters.snapshot()[STAGE]
        assert stats.num_output_tokens == 20 + stats.num_steps + stats.num_accepted_tokens
        steps[kind] = stats.num_steps
    assert steps["chain"] < steps["off"] / 5
    assert steps["tree"] < steps["off"] / 2


class Wild(Forest):
    """A forest with random thresholds from one extreme to the other. It counts its draft tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.num_drafted = 0
        self._rng = random.Random(7)

    def step(self, updates: Any, max_tokens: int = 32, min_prob: float = 0.0) -> list[Draft]:
        price = self._rng.choice([0.0, min_prob, self._rng.random(), 1.0])
        drafts = super().step(updates, max_tokens, price)
        self.num_drafted += sum(map(len, drafts))
        return drafts


def wild_clock() -> Callable[[], float]:
    """Return a clock that stands still, leaps or runs backwards, so that the cost of a row varies."""
    rng = random.Random(6)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += rng.choice([0.0, -1.0, 1e-9, 1e-3, 1.0, 1e6]) * rng.lognormvariate(0, 3)
        return now

    return clock


def test_whatever_a_draft_token_costs(run: Run) -> None:
    prompts = make_prompts(20) * 3  # earlier outputs help to draft repeated ones
    sampling = [GREEDY] * 40 + mixed_sampling(20)
    plain = run(prompts, sampling, NoDrafts())
    for rule in ("paper", "learned"):
        draft = DraftConfig(mode="tree", max_tokens=12, min_prob=0, rule=rule)
        assert run(prompts, sampling, Forest(), draft=draft) == plain
        assert run(prompts, sampling, Forest(), draft=draft, clock=wild_clock(), price=None) == plain
        assert run(prompts, sampling, Forest(), draft=draft, price=None) == plain
        forest = Wild()
        assert run(prompts, sampling, forest, draft=draft) == plain
        assert forest.num_drafted > 100


def mixed_sampling(number: int, **fixed: Any) -> list[SamplingParams]:
    rng = random.Random(8)
    return [
        SamplingParams(
            **{
                "temperature": rng.choice([0.5, 1.0, 1.5]),
                "top_p": rng.choice([1.0, 0.9]),
                "top_k": rng.choice([0, 20]),
                "min_p": rng.choice([0.0, 0.05]),
                "seed": rng.randrange(1 << 32),
                "max_tokens": rng.randint(1, 24),
                **fixed,
            }
        )
        for _ in range(number)
    ]


def test_a_seed_gives_identical_samples(run: Run) -> None:
    assert_drafting_changes_nothing(run, make_prompts(60), mixed_sampling(60))


def test_penalties_with_drafts(run: Run) -> None:
    sampling = mixed_sampling(40, presence_penalty=0.6, frequency_penalty=0.3)
    sampling = [replace(params, temperature=i % 2) for i, params in enumerate(sampling)]
    assert_drafting_changes_nothing(run, make_prompts(40), sampling)


EDITS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7, "frequency_penalty": 0.5},
    {"logit_bias": dict.fromkeys(range(40, 80), 1.5)},
    {"allowed_token_ids": tuple(range(20, 300))},
    {"bad_words": ("ve", "ow", "They", "ß", "SELECT", "as")},
    {"min_tokens": 16, "logit_bias": {2: 4.0, 1: 4.0}, "max_tokens": 24},
    {"stop_token_ids": tuple(range(100, 130))},
    {"stop_token_ids": tuple(range(100, 200)), "min_tokens": 6, "stop": ("e",), "max_tokens": 24},
    {"json_schema": {}, "min_tokens": 9, "repetition_penalty": 1.5, "max_tokens": 24},
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_edited_logits_with_drafts(run: Run, temperature: float) -> None:
    prompts = make_prompts(4 * len(EDITS))
    fixed: dict[str, Any] = {"temperature": temperature, "max_tokens": 24}
    sampling = [SamplingParams(seed=i, **{**fixed, **edits}) for i, edits in enumerate(EDITS * 4)]
    edited = assert_drafting_changes_nothing(run, prompts, sampling)
    unedited = [SamplingParams(seed=i, **fixed) for i in range(len(prompts))]
    free = run(prompts, unedited, NoDrafts())
    for first, edits in enumerate(EDITS):
        assert edited[first :: len(EDITS)] != free[first :: len(EDITS)], edits
    for params, (token_ids, _, reason, _) in zip(sampling, edited, strict=True):
        if params.json_schema is None:
            assert len(token_ids) >= min(params.min_tokens, params.max_tokens or 0)
        assert not set(token_ids[:-1]) & set(params.stop_token_ids)
        assert (token_ids[-1] not in params.stop_token_ids) or reason == "stop"


def test_logprobs_with_drafts(run: Run) -> None:
    answers = assert_drafting_changes_nothing(run, make_prompts(20), mixed_sampling(20, logprobs=3))
    for token_ids, _, _, entries in answers:
        assert [entry.token_id for entry in entries] == token_ids
        assert all(len(entry.top) == 3 for entry in entries)


def test_stop_strings_with_drafts(run: Run) -> None:
    prompts = make_prompts(60)
    free = run(prompts, [GREEDY] * 60, NoDrafts())
    # text from the middle of each free answer, so that it really stops there
    sampling = [replace(GREEDY, stop=(text[8:11] or "no such text",)) for _, text, _, _ in free]
    stopped = assert_drafting_changes_nothing(run, prompts, sampling)
    for (_, text, reason, _), (_, free_text, _, _), params in zip(stopped, free, sampling, strict=True):
        assert params.stop[0] not in text
        assert free_text.startswith(text)
        assert reason == "stop" or params.stop[0] not in free_text
    assert sum(reason == "stop" for _, _, reason, _ in stopped) > 40


SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["select", "insert"]},
        "limit": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    },
    "required": ["kind", "limit", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammars_with_drafts(run: Run, temperature: float) -> None:
    fixed = {"json_schema": SCHEMA, "max_tokens": 60, "temperature": temperature}
    prompts = make_prompts(24)
    sampling = mixed_sampling(24, **fixed)
    # every third request has no grammar, in the same batch
    sampling = [replace(p, json_schema=None) if i % 3 == 2 else p for i, p in enumerate(sampling)]
    assert_drafting_changes_nothing(run, prompts, sampling)


@pytest.mark.parametrize("num_pages", [4, 9])  # a sequence has up to four, one for 32 tokens
def test_sequences_that_wait_for_memory_and_lose_it(
    run: Run, exact_model: Transformer, monkeypatch: pytest.MonkeyPatch, num_pages: int
) -> None:
    """The memory holds one to four sequences at a time, and they outgrow it together."""
    suspended = count_suspended(monkeypatch)
    monkeypatch.setattr(scheduler, "GROWTH", 4)
    prompts = make_prompts(16)
    sampling = mixed_sampling(16, max_tokens=60, ignore_eos=True, frequency_penalty=0.3)
    sampling = [GREEDY if i % 4 == 1 else params for i, params in enumerate(sampling)]
    sampling = [replace(p, json_schema=SCHEMA) if i % 4 == 2 else p for i, p in enumerate(sampling)]
    plain = run(prompts, sampling, NoDrafts())
    assert not suspended
    page = KVCache(exact_model.config, 1, 128, torch.float64, "cpu").bytes_of(1)
    tight = {"kv_cache_bytes": num_pages * page}
    assert run(prompts, sampling, NoDrafts(), **tight) == plain
    assert suspended
    assert "r0" not in suspended  # the one that came first goes on
    drafting = proposers(prompts, plain)
    for proposer in (drafting["half right chains"], drafting["bushes"]):
        assert run(prompts, sampling, proposer, **tight) == plain
        assert_told_in_order(proposer, plain)


def count_suspended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the sequences that lose their slots, by their keys, which grows."""
    keys: list[str] = []
    suspend = Scheduler._suspend

    def counted(self: Scheduler, choice: Choice) -> None:
        keys.append(choice.key)
        suspend(self, choice)

    monkeypatch.setattr(Scheduler, "_suspend", counted)
    return keys
