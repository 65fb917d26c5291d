"""What grammars dictate, as drafts of vLLM's requests. They are llguidance's, held as vLLM holds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.vllm_plugin.grammar_drafts import DICTATED as DICTATED_ATTRIBUTE
from agentspec.vllm_plugin.grammar_drafts import GrammarDrafts
from agentspec.vllm_plugin.model_runner import V1_METHOD, V2_METHOD
from agentspec.wire import XARG_MAX_DRAFT
from tests.vllm_plugin.support.grammars import (
    DICTATED,
    EOS,
    SCHEMA,
    TOKENIZER,
    Clock,
    Grammar,
    Request,
    drafts,
    encode,
)


def extended(request: Request, maker: GrammarDrafts | None = None) -> str:
    """Return the text of a request's draft after it was extended."""
    (maker or drafts()).extend([request])
    return str(TOKENIZER.decode(request.spec_token_ids))


def test_a_grammar_begins_a_draft_where_there_is_none() -> None:
    request = Request(Grammar.of(SCHEMA))
    assert extended(request).startswith(DICTATED[:-2])
    assert request.grammar.validate_tokens(request.spec_token_ids) == request.spec_token_ids


def test_a_grammar_continues_a_draft_and_keeps_its_own_state() -> None:
    request = Request(Grammar.of(SCHEMA), spec_token_ids=encode("{")[:1])
    assert extended(request).startswith(DICTATED[:-2])
    assert request.spec_token_ids[:1] == encode("{")[:1]
    assert extended(Request(request.grammar)).startswith(DICTATED[:-2])  # as at the beginning


def test_what_is_free_is_left_to_the_model() -> None:
    request = Request(Grammar.of(SCHEMA))
    request.write(encode(DICTATED + "ab"))
    assert extended(request) == ""
    request.write(encode('"'))
    assert extended(request) == "}"


def test_a_draft_that_the_grammar_forbids_is_cut() -> None:
    assert extended(Request(Grammar.of(SCHEMA), spec_token_ids=encode("no"))) == ""
    half = Request(Grammar.of(SCHEMA), spec_token_ids=encode("{")[:1] + encode("no"))
    assert extended(half) == "{"
    padded = Request(Grammar.of(SCHEMA), spec_token_ids=[-1])
    drafts().extend([padded])
    assert padded.spec_token_ids == [-1]


def test_drafts_keep_to_every_limit() -> None:
    whole = Request(Grammar.of(SCHEMA))
    drafts().extend([whole])
    tokens = whole.spec_token_ids
    assert len(tokens) > 6
    for limits, size in (
        ({"most": 3}, 3),
        ({"most_tokens": 4}, 4),
        ({"most_tokens": 0}, 0),
    ):
        request = Request(Grammar.of(SCHEMA))
        drafts(**limits).extend([request])
        assert request.spec_token_ids == tokens[:size]
    for request, size in (
        (Request(Grammar.of(SCHEMA), max_tokens=3), 2),  # the last token is the step's own
        (Request(Grammar.of(SCHEMA), extra_args={XARG_MAX_DRAFT: 0}), 0),
        (Request(Grammar.of(SCHEMA), extra_args={XARG_MAX_DRAFT: 2}), 2),
        (Request(Grammar.of(SCHEMA), frequency_penalty=0.1), 0),
        (Request(Grammar.of(SCHEMA), num_uncomputed=5), 0),  # its prompt is not read
        (Request(None), 0),
    ):
        drafts().extend([request])
        assert request.spec_token_ids == tokens[:size]


def test_requests_share_the_tokens_of_a_step() -> None:
    first, second = Request(Grammar.of(SCHEMA), "a"), Request(Grammar.of(SCHEMA), "b")
    plain = Request(None, "c", spec_token_ids=[1, 2, 3])
    drafts(most=5, most_tokens=10).extend([first, second, plain])
    assert [len(one.spec_token_ids) for one in (first, second, plain)] == [5, 2, 3]


def test_grammars_are_asked_for_a_share_of_the_time_and_all_requests_in_turn() -> None:
    """Each question takes 4 ms. Of each second that passes, 20 ms are for them, and at most 10 together."""
    passed = Clock(0.0)
    maker = drafts(clock=Clock(0.004), wall_clock=passed)
    requests = [Request(Grammar.of({"type": "string"}), f"r{i}") for i in range(5)]
    for request in requests:
        request.write(encode('"free'))

    def asked() -> list[int]:
        before = [request.grammar.num_looked_up for request in requests]
        maker.extend(requests)
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
        maker.extend([slow, other])
        passed.now_s += 0.6
    assert (slow.grammar.num_looked_up, other.grammar.num_looked_up) == (1, 3)


def test_what_is_known_to_be_dictated_is_drafted_at_any_time() -> None:
    passed = Clock(0.0)
    maker = drafts(most=4, clock=Clock(0.1), wall_clock=passed)
    request = Request(Grammar.of(SCHEMA))
    for _ in range(3):
        maker.extend([request])
        assert len(request.spec_token_ids) == 4
        request.write(request.spec_token_ids)
    assert request.grammar.num_looked_up == 1


def test_a_long_text_is_looked_up_once_while_it_comes_true() -> None:
    long = {"const": "word " * 200}
    request, maker = Request(Grammar.of(long), max_tokens=10_000), drafts()
    num_steps = 0
    while not request.grammar.is_terminated():
        maker.extend([request])
        draft = request.spec_token_ids or [EOS]
        request.write(draft[:7])
        num_steps += 1
    assert num_steps > 20
    assert request.grammar.num_looked_up <= 2


def test_a_model_that_splits_the_text_otherwise_gets_no_more() -> None:
    text = "customer orders customer orders"
    request, maker = Request(Grammar.of({"const": text})), drafts()
    sizes = []
    for letter in f'"{text[:20]}':
        maker.extend([request])
        sizes.append(len(request.spec_token_ids))
        (token,) = encode(letter)
        request.write([token])
    assert sizes[0] > 0
    assert sizes[-3:] == [0, 0, 0]


def test_a_draft_that_was_refused_leaves_nothing_to_go_on_with() -> None:
    """The output is as long as the draft, and differs: nothing is behind this draft any more."""
    schema = {"enum": ["customer of the shop", "customs of the land"]}
    request, maker = Request(Grammar.of(schema), spec_token_ids=encode('"customer')), drafts()
    draft = list(request.spec_token_ids)
    assert extended(request, maker) == '"customer of the shop"'
    other = encode('"customs')
    assert len(other) >= len(draft)
    request.write(other)
    assert extended(request, maker) == ' of the land"'
    assert request.grammar.validate_tokens(request.spec_token_ids) == request.spec_token_ids


def test_a_draft_that_was_not_scheduled_is_kept() -> None:
    request, maker = Request(Grammar.of(SCHEMA), spec_token_ids=encode("{")[:1]), drafts()
    first = extended(request, maker)
    assert extended(request, maker) == first


def test_a_long_text_that_the_model_splits_otherwise_is_not_looked_up_again() -> None:
    text = "customer orders " * 600
    request, maker = Request(Grammar.of({"const": text}), max_tokens=100_000), drafts(clock=Clock(0.1))
    for letter in f'"{text[:30]}':
        maker.extend([request])
        (token,) = encode(letter)
        request.write([token])
    assert request.grammar.num_looked_up == 1
    assert extended(request, maker) == ""


def test_reasoning_has_no_grammar() -> None:
    maker = drafts(follows_reasoning=True)
    assert extended(Request(Grammar.of(SCHEMA), "a", reasoning_ended=None), maker) == ""
    assert extended(Request(Grammar.of(SCHEMA), "b", reasoning_ended=False), maker) == ""
    assert extended(Request(Grammar.of(SCHEMA), "c", reasoning_ended=True), maker) != ""


def test_an_output_that_ended_gets_nothing() -> None:
    request = Request(Grammar.of({"const": "a"}))
    request.write([*encode('"a"'), EOS])
    assert extended(request) == ""


def test_a_grammar_that_fails_costs_its_own_drafts_only(caplog: pytest.LogCaptureFixture) -> None:
    broken, whole = Request(Grammar.of(SCHEMA), "a"), Request(Grammar.of(SCHEMA), "b")
    broken.grammar.ll_matcher.compute_ff_tokens = lambda: 1 / 0
    maker = drafts()
    for _ in range(3):
        broken.spec_token_ids, whole.spec_token_ids = encode("{")[:1], []
        maker.extend([broken, whole])
        assert broken.spec_token_ids == encode("{")[:1]
        assert len(whole.spec_token_ids) > 6
    assert caplog.text.count("dictates no drafts") == 1
    maker.forget(["a", "never seen"])
    maker.extend([broken])
    assert caplog.text.count("dictates no drafts") == 2


class Outlines:
    """A grammar of another backend. In vLLM 0.26 even ``is_terminated`` changes it."""

    def __getattr__(self, name: str) -> Any:
        if name in ("ll_matcher", "matcher"):
            raise AttributeError(name)
        raise AssertionError(f"{name} was called")


def test_a_grammar_of_another_backend_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    request = Request(Outlines(), spec_token_ids=[5])
    drafts().extend([request])
    assert request.spec_token_ids == [5]
    assert caplog.text == ""


def test_drafts_that_come_true_are_no_refusals() -> None:
    """Nothing is dictated within a free text. The trees' drafts come true there."""
    request, maker = Request(Grammar.of({"type": "string"})), drafts()
    for word in ['"abc', "def", "ghi", "jkl", "mno"]:
        request.spec_token_ids = encode(word)
        maker.extend([request])
        request.write(encode(word) + encode("x"))
    assert maker._requests["r"].num_refused == 0


def test_a_long_text_that_came_true_is_no_refusal() -> None:
    items = [{"const": "word " * 1100}, {"type": "integer"}]
    schema = {"type": "array", "prefixItems": items, "minItems": 2, "x-guidance": SCHEMA["x-guidance"]}
    request, maker = Request(Grammar.of(schema), max_tokens=100_000), drafts()
    maker.extend([request])
    whole = list(maker._requests["r"].tokens)
    assert len(whole) > 1024
    request.write([*whole, *encode("7")])
    maker.extend([request])
    assert maker._requests["r"].num_refused == 0


def attached(
    *requests: Request, maker: GrammarDrafts | None = None, **scheduled: list[int]
) -> tuple[dict[str, str], dict[str, int]]:
    """Return what is attached to the masks of a step, as text, and the lengths of the next drafts."""
    masks = SimpleNamespace(structured_output_request_ids=[*(one.request_id for one in requests), "ended"])
    sizes = (maker or drafts(names_drafts=False)).attach(
        masks, {one.request_id: one for one in requests}, scheduled
    )
    found = getattr(masks, DICTATED_ATTRIBUTE)
    assert sizes.keys() == found.keys()
    return {name: str(TOKENIZER.decode(tokens)) for name, tokens in found.items()}, sizes


def test_a_worker_learns_what_is_dictated_behind_the_draft_that_it_verifies() -> None:
    begun = encode("{")[:1]
    for scheduled in ([], begun, [*begun, -1, -1]):  # -1: refused by the grammar
        request = Request(Grammar.of(SCHEMA))
        texts, sizes = attached(request, r=scheduled)
        assert texts["r"].startswith(DICTATED[:-2])
        assert request.spec_token_ids == []
        whole = Request(request.grammar, spec_token_ids=[token for token in scheduled if token >= 0])
        drafts().extend([whole])
        assert len(whole.spec_token_ids) == sizes["r"] + 1 + (len(scheduled) > 0)


def test_a_worker_learns_nothing_where_nothing_is_dictated() -> None:
    free = Request(Grammar.of(SCHEMA), "free")
    free.write(encode(DICTATED + "ab"))
    last = Request(Grammar.of(SCHEMA), "last")
    last.write(encode(DICTATED + 'ab"'))  # one token is left, which the step samples
    ended = Request(Grammar.of({"const": "a"}), "over")
    ended.write([*encode('"a"'), EOS])
    assert attached(free, last, ended) == ({}, {})
    forbidden = Request(Grammar.of(SCHEMA))
    assert attached(forbidden, r=encode("no")) == ({}, {})


def test_what_a_worker_learns_keeps_to_every_limit() -> None:
    _, sizes = attached(Request(Grammar.of(SCHEMA)))
    assert sizes["r"] > 6
    for request, size in (
        (Request(Grammar.of(SCHEMA), max_tokens=4), 3),
        (Request(Grammar.of(SCHEMA), extra_args={XARG_MAX_DRAFT: 2}), 2),
    ):
        assert attached(request)[1] == {"r": size}
    for request in (
        Request(Grammar.of(SCHEMA), max_tokens=1),
        Request(Grammar.of(SCHEMA), extra_args={XARG_MAX_DRAFT: 0}),
        Request(Outlines()),
    ):
        assert attached(request) == ({}, {})


def test_a_dictated_text_comes_true_step_by_step_without_a_second_question() -> None:
    """Each step samples the first token behind its draft, and the next one verifies the rest."""
    maker, request = drafts(most=3, names_drafts=False), Request(Grammar.of({"const": "word " * 40}))
    draft: list[int] = []
    while (sizes := attached(request, maker=maker, r=draft)[1]) and len(request.output_token_ids) < 60:
        known = maker._requests["r"]
        behind = known.rest(request.output_token_ids)
        request.write(behind[: len(draft) + 1])
        draft = behind[len(draft) + 1 :][: min(3, sizes["r"])]
    assert request.grammar.num_looked_up <= 3
    assert len(request.output_token_ids) > 12


def test_a_model_that_splits_the_text_otherwise_gets_no_more_from_a_worker() -> None:
    text = "customer orders customer orders"
    request, maker = Request(Grammar.of({"const": text})), drafts(names_drafts=False)
    found = []
    for letter in f'"{text[:20]}':
        found.append(bool(attached(request, maker=maker)[1]))
        request.write(encode(letter)[:1])
    assert found[0]
    assert found[-3:] == [False, False, False]


def test_a_token_that_a_step_samples_is_no_draft_that_came_true() -> None:
    """The model writes the first dictated token of each question, and splits what follows into letters."""
    text = "customers " * 40
    request, maker = Request(Grammar.of({"const": text}), max_tokens=1000), drafts(names_drafts=False)
    num_found = 0
    while num_found < 20 and attached(request, maker=maker)[1]:
        num_found += 1
        tokens = maker._requests["r"].rest(request.output_token_ids)
        request.write(tokens[:1])  # sampled; the next step verifies the others
        attached(request, maker=maker, r=tokens[1:])
        begun = str(TOKENIZER.decode(request.output_token_ids))
        while (letter := encode(f'"{text}'[len(begun)])[:1]) == tokens[1:2]:  # such as a space
            request.write(letter)
            tokens, begun = tokens[1:], str(TOKENIZER.decode(request.output_token_ids))
        request.write(letter)
    assert num_found == 3
    assert maker._requests["r"].num_refused == 3


class Walked(Grammar):
    """A grammar that names a few tokens at a time, as a walk along masks does."""

    def _look_up(self) -> list[int]:
        return super()._look_up()[:4]


def test_a_text_that_is_found_piece_by_piece_is_drafted_without_gaps() -> None:
    request = Request(Walked.of({"const": "word " * 40}), max_tokens=1000)
    maker, draft, sizes = drafts(most=3, names_drafts=False), list[int](), []
    while len(request.output_token_ids) < 30:
        _, found = attached(request, maker=maker, r=draft)
        tokens = maker._requests["r"].rest(request.output_token_ids)
        sizes.append(found["r"])
        request.write(tokens[: len(draft) + 1])
        draft = tokens[len(draft) + 1 :][:3]
    assert set(sizes) == {3}


def test_a_refusal_within_a_dictated_draft_counts() -> None:
    request = Request(Walked.of({"const": "customers " * 40}), max_tokens=1000)
    maker = drafts(most=3, names_drafts=False)
    attached(request, maker=maker)
    tokens = list(maker._requests["r"].tokens)
    request.write(tokens[:1])
    attached(request, maker=maker, r=tokens[1:])  # all of it is dictated: the grammar is asked what follows
    letter = str(TOKENIZER.decode(tokens)).removeprefix(str(TOKENIZER.decode(tokens[:1])))[0]
    assert encode(letter)[:1] != tokens[1:2]
    request.write(encode(letter)[:1])
    attached(request, maker=maker)
    assert maker._requests["r"].num_refused == 1


def test_what_can_not_be_drafted_is_not_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    maker = drafts(names_drafts=False)
    for request in (
        Request(Grammar.of(SCHEMA), "a", max_tokens=1),
        Request(Grammar.of(SCHEMA), "b", extra_args={XARG_MAX_DRAFT: 0}),
    ):
        assert attached(request, maker=maker) == ({}, {})
        assert request.grammar.num_looked_up == 0
    broken = Request(Grammar.of(SCHEMA))
    broken.grammar.ll_matcher.compute_ff_tokens = lambda: 1 / 0
    for _ in range(3):
        assert attached(broken, maker=maker) == ({}, {})
    assert caplog.text.count("dictates no drafts") == 1


@pytest.mark.parametrize(
    ("method", "shape", "is_made"),
    [(V1_METHOD, "ragged", True), (V1_METHOD, "uniform", False), (V2_METHOD, "ragged", True)],
)
def test_a_server_with_padded_drafts_has_none(method: str, shape: str, is_made: bool) -> None:
    config = SimpleNamespace(
        additional_config={"agentspec": {"batch_shape": shape}},
        speculative_config=SimpleNamespace(method=method, num_speculative_tokens=7),
        scheduler_config=SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=64),
        model_config=SimpleNamespace(get_vocab_size=lambda: 1000),
        structured_outputs_config=SimpleNamespace(reasoning_parser="", enable_in_reasoning=False),
    )
    made = GrammarDrafts.of(config)
    assert (made is not None) is is_made
    assert made is None or made.names_drafts is (method == V1_METHOD)
    config.speculative_config = None
    assert GrammarDrafts.of(config) is None
