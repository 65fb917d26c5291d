"""What grammars dictate behind drafts. They are llguidance's, held as vLLM holds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.vllm_plugin.grammar import GrammarDrafts
from agentspec.wire import XARG_MAX_DRAFT
from tests.vllm_plugin.support.grammars import (
    DICTATED,
    EOS,
    SCHEMA,
    TOKENIZER,
    Clock,
    Grammar,
    Request,
    dictated,
    drafts,
    encode,
)


def text_of(tokens: list[int]) -> str:
    return str(TOKENIZER.decode(tokens))


def test_a_grammar_dictates_behind_a_draft_and_keeps_its_own_state() -> None:
    begun = encode("{")[:1]
    for scheduled in ([], begun, [*begun, -1, -1]):  # -1: refused by the grammar
        request = Request(Grammar.of(SCHEMA))
        tokens = dictated(request, r=scheduled)["r"]
        assert text_of(tokens).startswith(DICTATED[:-2])
        assert request.grammar.validate_tokens(tokens) == tokens
        assert text_of(dictated(request)["r"]).startswith(DICTATED[:-2])  # as at the beginning


def test_what_is_free_is_left_to_the_model() -> None:
    free = Request(Grammar.of(SCHEMA), "free")
    free.write(encode(DICTATED + "ab"))
    last = Request(Grammar.of(SCHEMA), "last")
    last.write(encode(DICTATED + 'ab"'))  # one token is left, which the step samples
    ended = Request(Grammar.of({"const": "a"}), "over")
    ended.write([*encode('"a"'), EOS])
    assert dictated(free, last, ended) == {}
    assert dictated(Request(Grammar.of(SCHEMA)), r=encode("no")) == {}


def test_drafts_keep_to_every_limit() -> None:
    assert len(dictated(Request(Grammar.of(SCHEMA)))["r"]) > 7
    for request, size in (
        (Request(Grammar.of(SCHEMA), max_tokens=4), 4),  # the step samples the first one
        (Request(Grammar.of(SCHEMA), extra_args={XARG_MAX_DRAFT: 2}), 3),
        (Request(Grammar.of(SCHEMA), max_tokens=1), 0),
        (Request(Grammar.of(SCHEMA), extra_args={XARG_MAX_DRAFT: 0}), 0),
    ):
        assert len(dictated(request).get("r", [])) == size
        assert size or request.grammar.num_looked_up == 0


def extended(request: Request, most: int = 1000, maker: GrammarDrafts | None = None) -> list[int]:
    """Return a request's draft after it was extended."""
    (maker or drafts()).extend([request], most)
    return request.spec_token_ids


def test_a_grammar_continues_a_draft_of_the_next_step_and_keeps_its_own_state() -> None:
    begun = encode("{")[:1]
    for draft in ([], begun, begun + encode("no")):  # what the grammar forbids is cut
        request = Request(Grammar.of(SCHEMA), spec_token_ids=draft)
        tokens = extended(request)
        assert text_of(tokens).startswith("{" if len(draft) > 1 else DICTATED[:-2])
        assert request.grammar.validate_tokens(tokens) == tokens
        assert text_of(extended(Request(request.grammar))).startswith(DICTATED[:-2])  # as at the beginning


def test_drafts_of_the_next_step_keep_to_every_limit() -> None:
    whole = extended(Request(Grammar.of(SCHEMA)))
    assert len(whole) > 6
    for request, most, size in (
        (Request(Grammar.of(SCHEMA)), 4, 4),
        (Request(Grammar.of(SCHEMA)), 0, 0),
        (Request(Grammar.of(SCHEMA), max_tokens=3), 9, 2),  # the last token is the step's own
        (Request(Grammar.of(SCHEMA), extra_args={XARG_MAX_DRAFT: 0}), 9, 0),
        (Request(Grammar.of(SCHEMA), extra_args={XARG_MAX_DRAFT: 2}), 9, 2),
        (Request(Grammar.of(SCHEMA), frequency_penalty=0.1), 9, 0),
        (Request(Grammar.of(SCHEMA), num_tokens=12), 9, 0),  # its prompt is not read
        (Request(None), 9, 0),
    ):
        assert extended(request, most) == whole[:size]
    first, second = Request(Grammar.of(SCHEMA), "a"), Request(Grammar.of(SCHEMA), "b")
    plain = Request(None, "c", spec_token_ids=[1, 2, 3])
    drafts(most=5).extend([first, second, plain], 10)
    assert [len(one.spec_token_ids) for one in (first, second, plain)] == [5, 2, 3]


def test_a_model_that_splits_the_text_otherwise_gets_no_more_in_the_next_step() -> None:
    text = "customer orders customer orders"
    request, maker = Request(Grammar.of({"const": text})), drafts()
    found = []
    for letter in f'"{text[:20]}':
        found.append(bool(extended(request, maker=maker)))
        request.write(encode(letter)[:1])
    assert found[0]
    assert found[-3:] == [False, False, False]


def test_grammars_are_asked_for_a_share_of_the_time_and_all_requests_in_turn() -> None:
    """Each question takes 4 ms. Of each second that passes, 20 ms are for them, and at most 10 together."""
    passed = Clock(0.0)
    maker = drafts(clock=Clock(0.004), wall_clock=passed)
    requests = [Request(Grammar.of({"type": "string"}), f"r{i}") for i in range(5)]
    for request in requests:
        request.write(encode('"free'))

    def asked() -> list[int]:
        before = [request.grammar.num_looked_up for request in requests]
        dictated(*requests, maker=maker)
        return [request.grammar.num_looked_up - n for request, n in zip(requests, before, strict=True)]

    assert asked() == [1, 1, 1, 0, 0]  # 12 ms: the last one began with 2 left
    assert asked() == [0, 0, 0, 0, 0]
    passed.now_s = 1000.0
    assert asked() == [0, 0, 1, 1, 1]
    passed.now_s += 0.4  # 8 ms, less the 2 too many
    assert asked() == [0, 0, 0, 1, 1]


def test_a_slow_grammar_is_asked_once_and_costs_the_others_a_second() -> None:
    passed, asking = Clock(0.0), Clock(0.0)
    slow, other = Request(Grammar.of({"type": "string"}), "a"), Request(Grammar.of({"type": "string"}), "b")
    for request in (slow, other):
        request.write(encode('"free'))
    look_up = slow.grammar.ll_matcher.compute_ff_tokens

    def slowly() -> list[int]:
        asking.now_s += 5.0
        return list(look_up())

    slow.grammar.ll_matcher.compute_ff_tokens = slowly
    maker = drafts(clock=asking, wall_clock=passed)
    for _ in range(4):
        dictated(slow, other, maker=maker)
        passed.now_s += 0.6
    assert (slow.grammar.num_looked_up, other.grammar.num_looked_up) == (1, 3)


def test_a_long_text_that_the_model_splits_otherwise_is_not_looked_up_again() -> None:
    text = "customer orders " * 600
    request, maker = Request(Grammar.of({"const": text}), max_tokens=100_000), drafts(clock=Clock(0.1))
    for letter in f'"{text[:30]}':
        dictated(request, maker=maker)
        request.write(encode(letter)[:1])
    assert request.grammar.num_looked_up == 1
    assert dictated(request, maker=maker) == {}


def test_reasoning_has_no_grammar() -> None:
    maker = drafts(follows_reasoning=True)
    requests = [
        Request(Grammar.of(SCHEMA), str(ended), reasoning_ended=ended) for ended in (None, False, True)
    ]
    assert dictated(*requests, maker=maker).keys() == {"True"}


def test_a_grammar_that_fails_costs_its_own_drafts_only(caplog: pytest.LogCaptureFixture) -> None:
    broken, whole = Request(Grammar.of(SCHEMA), "a"), Request(Grammar.of(SCHEMA), "b")
    broken.grammar.ll_matcher.compute_ff_tokens = lambda: 1 / 0
    maker = drafts()
    for _ in range(3):
        assert dictated(broken, whole, maker=maker).keys() == {"b"}
    assert caplog.text.count("dictates no drafts") == 1
    maker.forget(["a", "never seen"])
    assert dictated(broken, maker=maker) == {}
    assert caplog.text.count("dictates no drafts") == 2


class Outlines:
    """A grammar of another backend. In some even ``is_terminated`` changes the grammar."""

    def __getattr__(self, name: str) -> Any:
        if name in ("ll_matcher", "matcher"):
            raise AttributeError(name)
        raise AssertionError(f"{name} was called")


def test_a_grammar_of_another_backend_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert dictated(Request(Outlines()), r=[5]) == {}
    assert caplog.text == ""


def test_drafts_that_come_true_are_no_refusals() -> None:
    """Nothing is dictated within a free text. The trees' drafts come true there."""
    request, maker = Request(Grammar.of({"type": "string"})), drafts()
    for word in ['"abc', "def", "ghi", "jkl", "mno"]:
        dictated(request, maker=maker, r=encode(word))
        request.write(encode(word) + encode("x"))
    assert maker._requests["r"].num_refused == 0


def test_a_long_text_that_came_true_is_no_refusal() -> None:
    items = [{"const": "word " * 1100}, {"type": "integer"}]
    schema = {"type": "array", "prefixItems": items, "minItems": 2, "x-guidance": SCHEMA["x-guidance"]}
    request, maker = Request(Grammar.of(schema), max_tokens=100_000), drafts()
    dictated(request, maker=maker)
    whole = list(maker._requests["r"].tokens)
    assert len(whole) > 1024
    request.write([*whole, *encode("7")])
    dictated(request, maker=maker)
    assert maker._requests["r"].num_refused == 0


def test_a_dictated_text_comes_true_step_by_step_without_a_second_question() -> None:
    """Each step samples the first token behind its draft, and the next one verifies the rest."""
    maker, request = drafts(most=3), Request(Grammar.of({"const": "word " * 40}))
    draft: list[int] = []
    while (found := dictated(request, maker=maker, r=draft)) and len(request.output_token_ids) < 60:
        known = maker._requests["r"]
        behind = known.rest(request.output_token_ids)
        request.write(behind[: len(draft) + 1])
        draft = behind[len(draft) + 1 :][: min(3, len(found["r"]) - len(draft) - 1)]
    assert request.grammar.num_looked_up <= 3
    assert len(request.output_token_ids) > 12


def test_a_model_that_splits_the_text_otherwise_gets_no_more() -> None:
    text = "customer orders customer orders"
    request, maker = Request(Grammar.of({"const": text})), drafts()
    found = []
    for letter in f'"{text[:20]}':
        found.append(bool(dictated(request, maker=maker)))
        request.write(encode(letter)[:1])
    assert found[0]
    assert found[-3:] == [False, False, False]


def test_a_token_that_a_step_samples_is_no_draft_that_came_true() -> None:
    """The model writes the first dictated token of each question, and splits what follows into letters."""
    text = "customers " * 40
    request, maker = Request(Grammar.of({"const": text}), max_tokens=1000), drafts()
    num_found = 0
    while num_found < 20 and dictated(request, maker=maker):
        num_found += 1
        tokens = maker._requests["r"].rest(request.output_token_ids)
        request.write(tokens[:1])  # sampled; the next step verifies the others
        dictated(request, maker=maker, r=tokens[1:])
        begun = text_of(request.output_token_ids)
        while (letter := encode(f'"{text}'[len(begun)])[:1]) == tokens[1:2]:  # such as a space
            request.write(letter)
            tokens, begun = tokens[1:], text_of(request.output_token_ids)
        request.write(letter)
    assert num_found == 3
    assert maker._requests["r"].num_refused == 3


class Walked(Grammar):
    """A grammar that names a few tokens at a time, as a walk along masks does."""

    def _look_up(self) -> list[int]:
        return super()._look_up()[:4]


def test_a_text_that_is_found_piece_by_piece_is_drafted_without_gaps() -> None:
    request = Request(Walked.of({"const": "word " * 40}), max_tokens=1000)
    maker, draft, sizes = drafts(most=3), list[int](), []
    while len(request.output_token_ids) < 30:
        found = dictated(request, maker=maker, r=draft)
        tokens = maker._requests["r"].rest(request.output_token_ids)
        sizes.append(len(found["r"]) - len(draft) - 1)
        request.write(tokens[: len(draft) + 1])
        draft = tokens[len(draft) + 1 :][:3]
    assert set(sizes) == {3}


def test_a_refusal_within_a_dictated_draft_counts() -> None:
    request = Request(Walked.of({"const": "customers " * 40}), max_tokens=1000)
    maker = drafts(most=3)
    dictated(request, maker=maker)
    tokens = list(maker._requests["r"].tokens)
    request.write(tokens[:1])
    dictated(request, maker=maker, r=tokens[1:])  # all of it is dictated: the grammar is asked what follows
    letter = text_of(tokens).removeprefix(text_of(tokens[:1]))[0]
    assert encode(letter)[:1] != tokens[1:2]
    request.write(encode(letter)[:1])
    dictated(request, maker=maker)
    assert maker._requests["r"].num_refused == 1


@pytest.mark.parametrize(
    ("parser", "is_in_reasoning", "follows"),
    [("", False, False), ("qwen3", False, True), ("qwen3", True, False)],
)
def test_a_server_tells_if_its_grammars_follow_reasoning(
    parser: str, is_in_reasoning: bool, follows: bool
) -> None:
    config = SimpleNamespace(
        additional_config={},
        speculative_config=SimpleNamespace(num_speculative_tokens=7),
        structured_outputs_config=SimpleNamespace(
            reasoning_parser=parser, enable_in_reasoning=is_in_reasoning
        ),
    )
    request = Request(Grammar.of(SCHEMA), reasoning_ended=False)
    assert bool(dictated(request, maker=GrammarDrafts.of(config))) is not follows
