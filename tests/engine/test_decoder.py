from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentspec.config import DraftConfig
from agentspec.draft import Draft, Origin, Source
from agentspec.engine.batch import Segment
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.pricing import Pricing
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import EngineBusyError, EngineError
from agentspec.generation import GenerationRequest, SamplingParams
from agentspec.proposer import Proposer, Tokens
from agentspec.steps import FIRST_PRICE
from agentspec.tags import Tags
from tests.support.fakes import (
    STAGE,
    OracleProposer,
    RandomProposer,
    RecordingProposer,
    SteppedEngine,
    make_draft,
)
from tests.support.sharing import Sharing

GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)


def request(name: str, prompt: Any, sampling: SamplingParams = GREEDY, **fields: Any) -> GenerationRequest:
    return GenerationRequest(name, prompt, sampling, Tags(STAGE, **fields))


@pytest.fixture
def make(exact_model: Transformer, tokenizer: Tokenizer) -> Any:
    def make(proposer: Proposer | None = None, **settings: Any) -> SteppedEngine:
        return SteppedEngine(exact_model, tokenizer, proposer, **settings)

    return make


def prompt_of(engine: SteppedEngine, number: int) -> list[int]:
    return np.random.default_rng(number).integers(4, 380, 5).tolist()


def output_of(make: Any, prompt: list[int], max_tokens: int = 10) -> list[int]:
    engine = make()
    engine.submit(request("r", prompt, replace(GREEDY, max_tokens=max_tokens)))
    engine.run()
    return engine.output("r")


def test_concurrent_requests_share_forward_passes(make: Any) -> None:
    engine = make(num_slots=4)
    for i in range(4):
        engine.submit(request(f"r{i}", prompt_of(engine, i)))
    assert engine.run() == 10  # one prefill token and nine steps, for all four
    assert [len(segments) for segments in engine.model.passes] == [4] * 10


def test_a_long_prompt_does_not_stall_the_others(make: Any) -> None:
    engine = make(num_slots=2, max_batch_tokens=8)
    engine.submit(request("short", [5, 6, 7]))
    engine.decoder.step()
    engine.submit(request("long", [9] * 30, replace(GREEDY, max_tokens=3)))
    for number in range(2, 6):
        engine.decoder.step()
        assert len(engine.output("short")) == number
    assert [len(s.token_ids) for p in engine.model.passes[1:] for s in p if len(s.token_ids) > 1] == [
        8,
        8,
        8,
        6,
    ]
    assert len(engine.output("long")) == 1  # the pass that ended the prompt gave the first token
    engine.run()
    assert engine.output("long") == output_of(make, [9] * 30, 3)


def test_more_requests_than_slots_wait_their_turn(make: Any) -> None:
    engine = make(num_slots=2)
    for i in range(7):
        engine.submit(request(f"r{i}", prompt_of(engine, i)))
    engine.run()
    assert max(len(segments) for segments in engine.model.passes) == 2
    for i in range(7):
        assert engine.output(f"r{i}") == output_of(make, prompt_of(engine, i))


def test_a_cancelled_request_frees_its_slot_at_the_next_step(make: Any) -> None:
    proposer = RecordingProposer()
    engine = make(proposer, num_slots=1)
    first = engine.submit(request("first", [5, 6]))
    engine.submit(request("second", [7, 8]))
    for _ in range(3):
        engine.decoder.step()
    assert len(engine.output("first")) == 3
    first.is_cancelled = True
    engine.decoder.step()
    assert len(engine.output("first")) == 3
    assert len(engine.output("second")) == 1
    assert proposer.learned == {"first": False}
    engine.run()
    assert engine.output("second") == output_of(make, [7, 8])


def test_a_request_cancelled_while_waiting_never_runs(make: Any) -> None:
    proposer = RecordingProposer()
    engine = make(proposer, num_slots=1)
    engine.submit(request("first", [5, 6]))
    engine.submit(request("second", [7, 8])).is_cancelled = True
    engine.run()
    assert engine.received["second"] == []
    assert proposer.learned == {"first": True, "second": False}
    assert not proposer.live


def test_a_choice_per_n(make: Any) -> None:
    engine = make(num_slots=2)
    engine.submit(request("r", [5, 6], replace(GREEDY, n=3, temperature=1.0, seed=1)))
    engine.run()
    for index in range(3):
        assert len(engine.output("r", index)) == 10
        assert engine.deltas("r", index)[-1].finish_reason == "length"
    stats = engine.decoder.counters.snapshot()[STAGE]
    assert (stats.num_requests, stats.num_prompt_tokens, stats.num_output_tokens) == (1, 2, 30)


@pytest.mark.parametrize("max_tokens", range(1, 9))
@pytest.mark.parametrize("is_tree", [False, True])
def test_max_tokens_is_exact_under_drafts(make: Any, max_tokens: int, is_tree: bool) -> None:
    full = output_of(make, [5, 6, 7])
    proposer = OracleProposer({(5, 6, 7): full}, is_tree=is_tree, wrong=0)
    engine = make(proposer)
    engine.submit(request("r", [5, 6, 7], replace(GREEDY, max_tokens=max_tokens)))
    engine.run()
    assert engine.output("r") == full[:max_tokens]
    assert proposer.told["r"] == full[:max_tokens]


class TextOracle(OracleProposer):
    """An oracle that needs only the prompt, and can therefore draft before the first token."""

    def draft_after(self, assumed: Any, max_tokens: int = 32, min_prob: float = 0.0) -> list[Draft]:
        raise NotImplementedError


@pytest.mark.parametrize("is_tree", [False, True])
def test_first_drafts_that_are_wrong_change_nothing(make: Any, is_tree: bool) -> None:
    prompts = [np.random.default_rng(number).integers(4, 380, 20).tolist() for number in range(6)]
    outputs = {tuple(prompt): output_of(make, prompt) for prompt in prompts}
    engine = make(TextOracle(outputs, is_tree=is_tree, wrong=0.4), max_batch_tokens=13)
    for number, prompt in enumerate(prompts):
        engine.submit(request(f"r{number}", prompt))
    engine.run()
    for number, prompt in enumerate(prompts):
        assert engine.output(f"r{number}") == outputs[tuple(prompt)]
    stats = engine.decoder.counters.snapshot()[STAGE]
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


@pytest.mark.parametrize("is_tree", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2, 9])
def test_the_pass_that_ends_a_prompt_verifies_the_first_draft(
    make: Any, max_tokens: int, is_tree: bool
) -> None:
    prompt = [5, 6, 7, 8, 9]
    sampling = replace(GREEDY, max_tokens=max_tokens)
    expected = output_of(make, prompt, max_tokens)
    outputs = {tuple(prompt): expected}
    for oracle, is_first in ((OracleProposer, False), (TextOracle, max_tokens > 1)):
        engine = make(oracle(outputs, is_tree=is_tree, wrong=0), max_batch_tokens=3)
        engine.submit(request("r", prompt, sampling))
        engine.run()
        assert engine.output("r") == expected
        stats = engine.decoder.counters.snapshot()[STAGE]
        assert stats.num_output_tokens == 1 + stats.num_steps + stats.num_accepted_tokens == max_tokens
        speculation = engine.received["r"][-1].speculation
        assert (speculation.num_steps, speculation.num_accepted_tokens) == (
            stats.num_steps,
            stats.num_accepted_tokens,
        )
        assert (len(engine.received["r"][0].token_ids) > 1) is is_first
        assert len(engine.model.passes[0][0]) == 3  # a part of the prompt has no draft


@pytest.mark.parametrize("is_tree", [False, True])
def test_drafts_stay_within_the_context(make: Any, is_tree: bool) -> None:
    engine = make(RandomProposer(is_tree=is_tree), max_model_len=20, draft=DraftConfig(max_tokens=16))
    engine.submit(request("r", [5] * 6, replace(GREEDY, max_tokens=None)))
    engine.run()
    assert len(engine.output("r")) == 14
    assert max(segment.end for segments in engine.model.passes for segment in segments) <= 20


def test_what_follows_a_stop_is_dropped(make: Any, tokenizer: Tokenizer) -> None:
    full = output_of(make, [5, 6, 7])
    text = tokenizer.decode(full)
    stop = text[len(tokenizer.decode(full[:4])) :][:2]
    cut = text.find(stop)
    proposer = OracleProposer({(5, 6, 7): full}, is_tree=False, wrong=0)
    engine = make(proposer)
    engine.submit(request("r", [5, 6, 7], replace(GREEDY, stop=(stop,))))
    engine.run()
    assert engine.text("r") == text[:cut]
    num_kept = len(engine.output("r"))
    assert num_kept < len(full)
    assert tokenizer.decode(full[:num_kept]).find(stop) >= 0
    assert tokenizer.decode(full[: num_kept - 1]).find(stop) < 0
    assert proposer.told["r"] == full[: len(proposer.told["r"])]
    stats = engine.decoder.counters.snapshot()[STAGE]
    assert stats.num_output_tokens == num_kept == 1 + stats.num_steps + stats.num_accepted_tokens


def test_eos_ends_an_output_and_shows_no_text(make: Any, tokenizer: Tokenizer) -> None:
    eos = min(tokenizer.eos_ids)
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    engine = make()
    sampling = SamplingParams(temperature=0.0, json_schema=schema, ignore_eos=True, max_tokens=40)
    engine.submit(request("r", [5, 6], sampling))
    engine.run()
    assert engine.output("r")[-1] in tokenizer.eos_ids
    assert engine.text("r").startswith("{")
    assert engine.text("r").endswith("}")
    assert engine.deltas("r")[-1].finish_reason == "stop"
    assert eos not in engine.output("r")[:-1]


@pytest.mark.parametrize("is_tree", [False, True])
def test_accepted_tokens_are_counted_by_origin(make: Any, is_tree: bool) -> None:
    class Foreign(OracleProposer):
        def guess(self, request_id: str, max_tokens: int) -> Draft:
            draft = super().guess(request_id, max_tokens)
            draft.origins = np.where(draft.token_ids % 3, Origin.FLEET, Origin.SNAPSHOT).astype(np.uint8)
            return draft

    full = output_of(make, [5, 6, 7])
    engine = make(Foreign({(5, 6, 7): full}, is_tree=is_tree, wrong=0.3), draft=DraftConfig(max_tokens=8))
    engine.submit(request("r", [5, 6, 7]))
    engine.run()
    stats = engine.decoder.counters.snapshot()[STAGE]
    assert stats.num_accepted_from_fleet + stats.num_accepted_from_snapshot == stats.num_accepted_tokens
    assert 0 < stats.num_accepted_from_fleet <= sum(token % 3 > 0 for token in full)
    assert stats.num_accepted_from_snapshot <= sum(token % 3 == 0 for token in full)


def test_counters_tell_where_drafts_came_from(make: Any) -> None:
    full = output_of(make, [5, 6, 7])
    engine = make(OracleProposer({(5, 6, 7): full}, is_tree=False, wrong=0), draft=DraftConfig(max_tokens=4))
    engine.submit(request("r", [5, 6, 7]))
    engine.run()
    # the prefill gives token 1; then 2-6 (four drafted and one more); 7-10 (three drafted: one more must fit)
    last = engine.deltas("r")[-1].speculation
    assert last is not None
    stats = engine.decoder.counters.snapshot(lambda stage: 77)[STAGE]
    for counted in (last, stats):
        assert (counted.num_steps, counted.num_drafts) == (2, 2)
        assert (counted.num_draft_tokens, counted.num_accepted_tokens) == (7, 7)
        assert counted.drafted_by_source == counted.accepted_by_source == {Source.STAGE: 7}
    assert all(delta.speculation is None for delta in engine.deltas("r")[:-1])
    assert (stats.num_prompt_tokens, stats.num_output_tokens, stats.tree_bytes) == (3, 10, 77)
    assert stats.accepted_per_step == 4.5
    assert stats.decode_s > 0


def test_a_request_without_drafts_is_a_plain_decode(make: Any) -> None:
    class Never(RecordingProposer):
        def guess(self, request_id: str, max_tokens: int) -> Draft:
            raise AssertionError("nobody asked for drafts")

    proposer = Never()
    engine = make(proposer)
    engine.submit(request("r", [5, 6, 7], max_draft=0))
    engine.run()
    assert proposer.told["r"] == engine.output("r")
    assert proposer.learned == {"r": True}


def test_a_failing_pass_ends_what_is_in_flight_and_nothing_else(make: Any) -> None:
    proposer = RecordingProposer()
    engine = make(proposer)
    engine.submit(request("a", [5, 6]))
    engine.submit(request("b", [7, 8]))
    engine.decoder.step()
    engine.model.fail_next = RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.decoder.step()
    engine.decoder.fail("no luck")
    for name in ("a", "b"):
        with pytest.raises(EngineError, match="no luck"):
            engine.deltas(name)
    assert proposer.learned == {"a": False, "b": False}
    engine.submit(request("c", [5, 6]))
    engine.run()
    assert engine.output("c") == output_of(make, [5, 6])
    assert engine.scheduler.num_free == 4


def test_a_proposer_that_can_not_finish_costs_nobody_an_answer(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(RecordingProposer):
        def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
            raise RuntimeError("tree on fire")

    engine = make(Broken())
    engine.submit(request("r", [5, 6]))
    engine.run()
    assert engine.deltas("r")[-1].finish_reason == "length"
    assert "could not finish 'r'" in caplog.text


def test_a_proposer_that_can_not_draft_costs_nobody_an_answer(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(RecordingProposer):
        num_failures = 1

        def guess(self, request_id: str, max_tokens: int) -> Draft:
            self.num_failures -= 1
            if self.num_failures == 0:
                raise MemoryError("no room for a tree")
            return Draft()

    proposer = Broken()
    engine = make(proposer)
    for name in ("a", "b"):
        engine.submit(request(name, [5, 6]))
    engine.run()
    assert engine.output("a") == engine.output("b") == output_of(make, [5, 6])
    assert "continue without" in caplog.text
    # b was not even asked: the proposer's text of both may have gaps, so it is not learned
    assert proposer.learned == {"a": False, "b": False}
    engine.submit(request("c", [5, 6]))  # later requests are drafted for
    engine.run()
    assert proposer.told["c"] == engine.output("c")
    assert proposer.learned["c"]


@pytest.mark.parametrize("foreign", [384, 1 << 30, -1])
def test_a_token_that_the_model_does_not_have_ends_its_draft(make: Any, foreign: int) -> None:
    full = output_of(make, [5, 6, 7])

    class Foreign(RecordingProposer):
        def guess(self, request_id: str, max_tokens: int) -> Draft:
            rest = full[len(self.told[request_id]) :]
            return make_draft([*rest[:2], foreign, *rest[2:]] if request_id == "r" else rest)

    engine = make(Foreign())
    engine.submit(request("r", [5, 6, 7]))
    engine.submit(request("whole", [5, 6, 7]))
    engine.run()
    assert engine.output("r") == engine.output("whole") == full
    assert [len(delta.token_ids) for delta in engine.deltas("r")] == [1, 3, 3, 3]
    assert [len(delta.token_ids) for delta in engine.deltas("whole")] == [1, 9]


def test_a_grammar_that_gives_up_ends_its_request_alone(make: Any) -> None:
    engine = make()
    engine.submit(request("free", [5, 6]))
    sampling = SamplingParams(temperature=1.0, seed=1, json_schema={}, max_tokens=10, n=2)
    live = engine.submit(request("json", [7, 8], sampling))
    choices = [choice for choice in engine.scheduler.live() if choice.live is live]
    grammar: Any = choices[0].sampler.grammar
    grammar._matcher.consume_token(5)  # not JSON: this leaves it in an error state
    engine.run()
    with pytest.raises(EngineError, match="grammar"):
        engine.deltas("json")
    assert len(engine.received["json"]) == 1
    assert engine.output("free") == output_of(make, [5, 6])


def test_an_output_that_can_not_be_read_ends_its_request_alone(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make()
    engine.submit(request("good", [5, 6]))
    live = engine.submit(request("bad", [7, 8]))

    def fail(ids: Any) -> str:
        raise ValueError("what letter is this?")

    for choice in engine.scheduler.live():
        if choice.live is live:
            choice.stream = SimpleNamespace(push=fail)
    engine.run()
    with pytest.raises(EngineError, match="what letter"):
        engine.deltas("bad")
    assert "'bad'" in caplog.text
    assert engine.output("good") == output_of(make, [5, 6])
    assert engine.scheduler.num_free == 4


def test_a_full_line_refuses_new_requests(make: Any) -> None:
    engine = make(num_slots=1, max_queue=1)
    engine.submit(request("a", [5, 6]))
    engine.submit(request("b", [5, 6]))
    with pytest.raises(EngineBusyError):
        engine.submit(request("c", [5, 6]))
    engine.run()
    assert engine.output("a") == engine.output("b")


def test_a_tree_keeps_the_accepted_branch_only(make: Any) -> None:
    full = output_of(make, [5, 6, 7])

    class Forked(RecordingProposer):
        def guess(self, request_id: str, max_tokens: int) -> Draft:
            rest = full[len(self.told[request_id]) :][:2]
            if len(rest) < 2:
                return Draft()
            # two wrong branches precede the right one, so its cache entries must move
            return make_draft([rest[0] ^ 1, rest[0] ^ 2, rest[0], 9, rest[1]], [-1, -1, -1, 0, 2])

    engine = make(Forked())
    engine.submit(request("r", [5, 6, 7]))
    engine.run()
    assert engine.output("r") == full
    assert engine.decoder.counters.snapshot()[STAGE].num_accepted_tokens >= 4


def test_a_fixed_price_is_passed_on(make: Any) -> None:
    proposer = RecordingProposer()
    engine = make(proposer, price=0.7)
    engine.submit(request("r", [5, 6, 7]))
    engine.run()
    assert set(proposer.prices) == {0.7}


class Passed:
    """Counts the segments of all passes so far by their numbers of tokens. Looks at each pass once."""

    def __init__(self) -> None:
        self.num_passes = 0
        self._sizes: Counter[int] = Counter()

    def sizes(self, passes: Sequence[Sequence[Segment]]) -> Counter[int]:
        for segments in passes[self.num_passes :]:
            self._sizes.update(len(segment.token_ids) for segment in segments)
        self.num_passes = len(passes)
        return self._sizes


def test_the_price_follows_what_steps_take(make: Any) -> None:
    """Take 1 ms per pass, 0.1 ms per row of a decode step, and 0.01 ms per row of a prompt.

    Nothing else takes time.
    """

    passed = Passed()

    def seconds() -> float:
        sizes = passed.sizes(engine.model.passes)
        prompts = 40 * sizes[40]
        rows = sum(size * number for size, number in sizes.items()) - prompts
        return 0.001 * passed.num_passes + 0.0001 * rows + 0.00001 * prompts

    class WithoutEstimates(RandomProposer):
        def guess(self, request_id: str, max_tokens: int) -> Draft:
            draft = super().guess(request_id, max_tokens)
            return replace(draft, probs=np.full(len(draft), np.nan, np.float32))

    proposer = WithoutEstimates(is_tree=True)
    engine = make(proposer, price=None, clock=seconds, num_slots=2, max_model_len=1024, max_batch_tokens=40)
    for i in range(8):
        engine.submit(request(f"r{i}", [5 + i] * 40, replace(GREEDY, max_tokens=400)))
    engine.run()
    assert proposer.prices[0] == FIRST_PRICE
    stats = engine.decoder.counters.snapshot()[STAGE]
    assert stats.accepted_per_step < 1.5
    num_passes = stats.num_steps / 2
    decode_s = 0.001 * num_passes + 0.0001 * (stats.num_steps + stats.num_draft_tokens)
    expected = 0.0001 * (stats.num_steps + stats.num_accepted_tokens) / decode_s
    assert engine.decoder.pricing.price == pytest.approx(expected, rel=0.25)


def with_a_stair(make: Any, prob: float, price: float | None) -> tuple[Any, RecordingProposer]:
    """Return an engine after long outputs with chains of three tokens, each with this estimate.

    A pass takes 1 ms; with drafts 2 ms and 0.01 ms per token. Every second pass has a draft.
    """

    class Sometimes(RecordingProposer):
        def guess(self, request_id: str, max_tokens: int) -> Draft:
            told = len(self.told[request_id])
            size = 0 if told % 2 else 1 + told % 3
            draft = make_draft([7] * size, range(-1, size - 1))
            return replace(draft, probs=np.full(size, prob, np.float32), score=prob * size)

    passed = Passed()

    def seconds() -> float:
        sizes = passed.sizes(engine.model.passes)
        return sum(
            number * (0.001 if size in (1, 3) else 0.002 + 0.00001 * size) for size, number in sizes.items()
        )

    proposer = Sometimes()
    engine = make(proposer, price=price, clock=seconds, num_slots=1, max_model_len=1024)
    engine.decoder.pricing._gains = None  # no lulls
    engine.submit(request("r", [5, 6, 7], replace(GREEDY, max_tokens=600)))
    engine.run()
    return engine, proposer


def test_drafts_that_are_not_worth_the_stair_are_not_verified(make: Any) -> None:
    drafted, outputs = {}, []
    for name, prob, price in (("little", 0.1, None), ("much", 0.99, None), ("fixed", 0.1, 0.0)):
        engine, proposer = with_a_stair(make, prob, price)
        outputs.append(engine.output("r"))
        assert proposer.told["r"] == outputs[0][: len(proposer.told["r"])]
        drafted[name] = engine.decoder.counters.snapshot()[STAGE].num_draft_tokens
    assert outputs == [outputs[0]] * 3
    assert drafted["little"] < drafted["fixed"] / 4
    assert drafted["little"] < drafted["much"]


def test_drafts_are_judged_by_the_time_of_a_step_without_drafts(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float | None] = []

    def are_worth(pricing: Pricing, _: Any, num_requests: int) -> bool:
        times.append(pricing.plain_step_s(num_requests))
        return True

    monkeypatch.setattr(Pricing, "are_worth", are_worth)
    with_a_stair(make, 0.5, None)
    assert times[0] is None  # no such step yet
    assert times[-1] == pytest.approx(0.001, rel=0.01)


class SlowAndWrong(RecordingProposer):
    """Drafts a wrong token now and then, or never."""

    period = 5

    def guess(self, request_id: str, max_tokens: int) -> Draft:
        size = int(self.period > 0 and len(self.told[request_id]) % self.period == 0)
        return make_draft([3] * size, [-1] * size)


def with_slow_drafts(
    make: Any,
    proposer: RecordingProposer,
    price: float | None = None,
    *,
    num_requests: int = 1,
    **fields: Any,
) -> list[list[int]]:
    """Return long outputs. A pass takes 1 ms, a question for drafts 0.2 ms."""
    passed = Passed()

    def seconds() -> float:
        passed.sizes(engine.model.passes)
        return 0.001 * passed.num_passes + 0.0002 * len(proposer.prices)

    engine = make(proposer, price=price, clock=seconds, num_slots=num_requests, max_model_len=1024)
    names = [f"r{number}" for number in range(num_requests)]
    for number, name in enumerate(names):
        engine.submit(request(name, [5 + number, 6, 7], replace(GREEDY, max_tokens=1000, **fields)))
    engine.run()
    outputs = [engine.output(name) for name in names]
    assert [proposer.told[name] for name in names] == outputs
    return outputs


@pytest.mark.parametrize("num_requests", [1, 3])
@pytest.mark.parametrize("period", [0, 5])
def test_drafts_that_lose_time_are_seldom_asked_for(make: Any, period: int, num_requests: int) -> None:
    always, seldom = SlowAndWrong(), SlowAndWrong()
    always.period = seldom.period = period
    expected = with_slow_drafts(make, always, 0.2, num_requests=num_requests)
    assert len(always.prices) > 990
    assert with_slow_drafts(make, seldom, num_requests=num_requests) == expected
    assert len(seldom.prices) < 600


def test_a_request_with_a_grammar_asks_in_every_step(make: Any) -> None:
    proposer = SlowAndWrong()
    (output,) = with_slow_drafts(make, proposer, grammar="start: /(.|\\n)*/")
    assert len(output) > 600  # a lull would have begun
    assert len(proposer.prices) >= len(output) - 2


def test_a_proposer_that_failed_has_not_told_what_drafts_are_worth(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(SlowAndWrong):
        def step(self, updates: Any, max_tokens: int = 32, min_prob: float = 0.0) -> list[Draft]:
            super().step(updates, max_tokens, min_prob)
            if len(self.prices) > 20:
                raise RuntimeError("no draft")
            return [Draft() for _ in updates]

    engine = make(Failing(), price=None)
    engine.submit(request("r", [5, 6, 7], replace(GREEDY, max_tokens=100)))
    gains = engine.decoder.pricing._gains
    while engine.decoder.has_work:
        before = gains.of(STAGE).tokens
        engine.decoder.step()
        if "no draft" in caplog.text:
            assert gains.of(STAGE).tokens == before
    assert "no draft" in caplog.text


def test_outputs_that_were_learned_are_shared(make: Any) -> None:
    engine, sharing = make(RecordingProposer()), Sharing()
    engine.decoder.sharing = sharing
    engine.submit(request("r", [5, 6, 7], subject=b"ann", session="run"))
    engine.run()
    assert sharing.shared == [(engine.output("r"), b"ann")]
    assert sharing.sessions == ["run"]


@pytest.mark.parametrize("subject", [b"", b"ann"])
def test_the_proposer_knows_which_outputs_are_personal(make: Any, subject: bytes) -> None:
    proposer = RecordingProposer()
    engine = make(proposer)
    engine.submit(request("r", [5, 6, 7], subject=subject))
    engine.run()
    (settings,) = proposer.settings.values()
    assert settings["is_personal"] == bool(subject)


def test_outputs_that_were_not_learned_are_not_shared(make: Any) -> None:
    engine, sharing = make(RecordingProposer()), Sharing()
    engine.decoder.sharing = sharing
    engine.submit(request("private", [5, 6, 7], learn=False))
    live = engine.submit(request("broken off", [5, 6, 7]))
    engine.decoder.step()
    live.is_cancelled = True
    engine.run()
    assert sharing.shared == []


def test_an_output_that_the_proposer_lost_is_not_shared(make: Any) -> None:
    class Failing(RecordingProposer):
        def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
            super().finish(request_id, learn, output)
            raise ValueError("lost")

    engine, sharing = make(Failing()), Sharing()
    engine.decoder.sharing = sharing
    engine.submit(request("r", [5, 6, 7]))
    engine.run()
    assert engine.output("r")
    assert sharing.shared == []
