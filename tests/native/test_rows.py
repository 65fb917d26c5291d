"""LiveRows and RowStep: a step that is planned first and run later, from an engine's own memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from agentspec._native import RUN_ROW_STEP, StepSaving, known_tokens
from agentspec.draft import Source
from agentspec.errors import ConfigError, TokenError
from tests.native.support.row_engine import EOS, TEXT, WIDTH, Device, Engine, K


@pytest.fixture
def device() -> Device:
    return Device()


# ---- a step ----


def test_a_planned_step_drafts_once_its_samples_have_arrived(device: Device) -> None:
    step = device.plan()
    assert not step.is_done
    device.sample(10)  # later, by the device
    step.run()
    assert step.is_done
    assert not step.error
    assert step.lengths == [4, 0]
    assert device.drafts[0].tolist() == [*TEXT[1:5], 10, 10]  # padding is a token of the model
    assert device.drafts[1].tolist() == [77] * K
    assert (device.chances[0, :4] > 0.5).all()
    assert device.chances[0, 4:].tolist() == [0, 0]
    assert device.chances[1].tolist() == [0] * K
    assert step.sums == (0, 0, 0)  # the first token belongs to the prefill
    assert (step.sampled(0), step.draft(0), step.draft(1)) == ([10], TEXT[1:5], [])
    assert step.took_s > 0


def test_a_row_is_counted_up_to_its_end(device: Device) -> None:
    device.step(10)
    step = device.step(11, 12, 50, num_slots=6)  # four draft tokens, two slots of padding
    assert step.sums == (1, 6, 3)
    assert step.gained(0) == (3, Source.STAGE)
    counts = device.rows.take_counts("r")
    assert (counts.num_output_tokens, counts.num_steps, counts.num_drafts) == (4, 1, 1)
    assert (counts.drafted[Source.STAGE], counts.accepted[Source.STAGE]) == (4, 2)
    assert counts.accepted_by_origin == [2, 0, 0]
    assert counts.decode_s > 0
    step = device.step(50, 50, 50, num_slots=2)  # padding may be right by chance
    assert step.gained(0) == (3, Source.NONE)
    assert device.rows.take_counts("r").num_drafts == 0
    assert device.step(99, 12, 13).lengths == [0, 0]  # what follows a stop is not learned, counted or drafted
    assert device.rows.take_counts("r").num_output_tokens == 1
    assert device.engine.learned() == 8


def test_chances_are_those_of_each_token_after_the_ones_before_it(device: Device) -> None:
    other = np.array([10, 11, 12, 90, 91], np.int32)
    device.engine.core.learn(np.array([device.engine.index], np.uint64), other)
    device.step(10)
    assert device.chances[0, :2].tolist() == [1, 1]  # both texts continue so
    assert 0.3 < device.chances[0, 2] < 0.7
    assert device.chances[0, 3] == 1


def test_a_c_function_runs_it_without_python(device: Device) -> None:
    device.sample(10)
    step = device.plan()
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(RUN_ROW_STEP)  # releases the GIL, as a CUDA thread has none
    run(step.address)
    assert step.is_done
    assert step.lengths == [4, 0]


def test_rows_without_samples_get_padding_that_is_a_token(device: Device) -> None:
    step = device.plan()
    step.run()
    assert step.lengths == [0, 0]
    assert device.drafts.tolist() == [[0] * K] * 2
    assert device.rows.take_counts("r").num_output_tokens == 0


@pytest.mark.parametrize(("num_sampled", "token"), [(K + 2, 11), (1, -5)])
def test_a_step_that_fails_loses_its_rows_and_no_other(device: Device, num_sampled: int, token: int) -> None:
    device.step(10)
    device.sample(token)
    device.num_sampled[0] = num_sampled
    step = device.plan()
    step.run()
    assert step.error
    assert step.lengths == [0, 0]
    assert (device.drafts[1] >= 0).all()
    device.step(11)
    assert device.drafts[0].tolist() == [11] * K
    assert device.engine.learned() == 1


def test_what_a_step_took_is_counted_for_its_own_rows(device: Device) -> None:
    first = device.step(10)
    second = device.step(11, 12, num_slots=4)
    device.step(13, num_slots=4)
    second.count_saving(StepSaving(1.0, 0.5, 0.25))
    first.count_saving(StepSaving(9.0, 0.5, 0.25))  # the first token belongs to no decode step
    counts = device.rows.take_counts("r")
    assert (counts.measured_decode_s, counts.plain_decode_s) == (1.0, 1.0)
    device.rows.remove("r")
    second.count_saving(StepSaving(1.0, 0.5, 0.25))


# ---- a row's life ----


def test_a_row_is_counted_before_it_enters_and_learned_from_its_beginning(device: Device) -> None:
    device.rows.add("r", 1, WIDTH, [EOS], keeps_output=True)
    assert device.step(10, 11).lengths == [0, 0]
    assert device.engine.learned() == 0
    device.rows.enter("r", 7)
    assert device.step(12).draft(0) == TEXT[3:]
    device.step(13, EOS, 14)
    assert device.rows.take_counts("r").num_output_tokens == 5
    ended = device.rows.remove("r")
    device.step(15)  # a step in flight
    assert (ended.output.dtype, ended.output.tolist()) == (np.int32, [10, 11, 12, 13, EOS])
    assert (ended.is_ended, ended.num_output_tokens, ended.counts().num_output_tokens) == (True, 5, 0)
    assert device.engine.learned() == 5
    assert device.rows.remove("r").output.tolist() == []


@pytest.mark.parametrize(("num_tokens", "is_lost"), [(2, False), (1, True), (3, True)])
def test_a_row_continues_after_a_stop_with_the_same_text(
    device: Device, num_tokens: int, is_lost: bool
) -> None:
    device.step(10)
    device.rows.resume("r", num_tokens)
    device.rows.resume("stranger", num_tokens)
    assert device.step(11, num_slots=3).draft(0) == ([] if is_lost else TEXT[2:])
    assert device.rows.take_counts("r").num_drafts == 0  # its draft was dropped


def test_a_prompt_that_is_read_again_after_output_loses_the_row(device: Device) -> None:
    device.rows.prefill("stranger")
    device.rows.prefill("r")
    assert device.step(10).draft(0) == TEXT[1:5]
    device.rows.prefill("r")
    assert device.step(11).draft(0) == []
    assert device.engine.learned() == 1


def test_a_held_row_has_its_counts_up_to_any_token(device: Device) -> None:
    device.rows.add("r", 1, WIDTH, [EOS], keeps_output=True, request=7, is_held=True)
    for tokens in ([10], [11, 12], [13]):
        device.step(*tokens)
    assert device.rows.take_counts("r").num_output_tokens == 0
    ended = device.rows.remove("r")
    assert not ended.is_ended
    assert [ended.counts(size).num_steps for size in range(5)] == [0, 0, 1, 1, 2]
    assert ended.counts().num_output_tokens == 4


# ---- what the engine's own model drafts ----


def least(worth: float) -> Any:
    return np.array([worth, 0], np.float32)


def test_the_model_drafts_where_the_trees_draft_is_worth_too_little(device: Device) -> None:
    step = device.step(10, num_model=3, least=least(5.0))  # four tokens are worth four at most
    assert (step.lengths, step.model_lengths) == ([3, 0], [3, 0])
    assert device.drafts[:, 0].tolist() == [-1, -1]
    assert device.drafts[:, 1:].tolist() == [[10] * (K - 1), [77] * (K - 1)]
    assert not device.chances.any()
    assert (step.draft(0), step.model_results) == ([], [])
    step = device.step(11, 12, 90, num_slots=3, num_model=3, least=least(0.0))
    [(row, num_verified, num_accepted, forgone)] = step.model_results
    assert (row, num_verified, num_accepted) == (0, 3, 2)
    assert 3.5 < forgone <= 4
    assert step.gained(0) == (3, Source.MODEL)
    counts = device.rows.take_counts("r")
    assert (counts.drafted[Source.MODEL], counts.accepted[Source.MODEL]) == (3, 2)
    assert counts.accepted_by_origin == [0, 0, 0]


@pytest.mark.parametrize(
    ("worth", "min_prob", "lengths", "by_model"),
    [
        (3.0, 0.5, [3, 0], [3, 0]),  # four tokens, at half a token each
        (1.0, 0.0, [4, 0], [0, 0]),
    ],
)
def test_a_draft_of_the_trees_is_worth_its_tokens_less_their_price(
    device: Device, worth: float, min_prob: float, lengths: list[int], by_model: list[int]
) -> None:
    step = device.step(10, num_model=3, least=least(worth), min_prob=min_prob)
    assert (step.lengths, step.model_lengths) == (lengths, by_model)


def test_the_model_drafts_where_the_trees_have_nothing(device: Device) -> None:
    assert device.step(50, num_model=3, least=least(0.0)).model_lengths == [3, 0]
    step = device.step(51, num_slots=2, num_model=3)  # the engine gave it fewer slots
    [(_, num_verified, num_accepted, forgone)] = step.model_results
    assert (num_verified, num_accepted, forgone) == (2, 0, 0)
    step = device.step(52, EOS, 60, num_slots=3, num_model=3)  # an end within its draft is no refusal
    assert [one[1:3] for one in step.model_results] == [(2, 2)]


def test_near_the_end_the_model_drafts_no_more_than_there_is_room_for() -> None:
    device = Device(Engine(most_tokens=4))  # the prompt, three tokens of output
    assert device.step(50, num_model=3).model_lengths == [1, 0]
    step = device.step(51, 52, num_slots=1, num_model=3)
    assert step.model_lengths == [0, 0]
    assert [one[1:3] for one in step.model_results] == [(1, 1)]


# ---- what a grammar dictates ----


def dictated(device: Device, *tokens: int, **changes: Any) -> list[int]:
    """Run a step with these tokens dictated for the request, and return what is drafted then."""
    step = device.plan(dictated={"r": list(tokens), "another": [1]}, **changes)
    step.run()
    assert step.lengths[0] == len(step.draft(0))
    return step.draft(0)


@pytest.mark.parametrize(
    ("sampled", "text", "drafted"),
    [
        ([50, 51], [50, 51, 52, 53], [52, 53]),  # the trees know nothing
        ([10], [10, *TEXT[1:5], 80, 81, 82], [*TEXT[1:5], 80, 81]),  # it continues their draft
        ([10], [10, 11, 80, 81], TEXT[1:5]),  # the model may split the text into these tokens
        ([10], [10, 11, 12], TEXT[1:5]),  # a longer draft of the trees stays
        ([50, 60], [50, 51, 52], []),  # it did not come true
        ([50, 51, 52], [50, 51, 52], []),  # it is over
        ([50, 51, 52, 53], [50, 51, 52], []),
    ],
)
def test_what_a_grammar_dictates_is_drafted(
    device: Device, sampled: list[int], text: list[int], drafted: list[int]
) -> None:
    device.sample(*sampled)
    assert dictated(device, *text) == drafted


def test_a_dictated_token_is_certain_and_counted_for_no_tree(device: Device) -> None:
    device.sample(50, 51)
    step = device.plan(dictated={"r": [50, 51, 52, 53]})
    step.run()
    assert device.drafts[0].tolist() == [52, 53, 51, 51, 51, 51]  # padding
    assert device.chances[0].tolist() == [1, 1, 0, 0, 0, 0]
    assert not step.acceptance[0].any()  # it is no draft from which the number of slots is learned
    device.step(52, 53, 60, num_slots=2)
    counts = device.rows.take_counts("r")
    assert (counts.num_output_tokens, counts.num_drafts) == (5, 0)
    device.sample(10)
    dictated(device, 10, *TEXT[1:5], 80, 81, 82)
    step = device.step(*TEXT[1:5], 80, 81, 99, num_slots=6)
    assert step.gained(0) == (7, Source.STAGE)
    counts = device.rows.take_counts("r")
    assert (counts.drafted[Source.STAGE], counts.accepted[Source.STAGE]) == (4, 4)


def test_a_dictated_text_replaces_tokens_that_the_trees_do_not_expect(device: Device) -> None:
    for text in ([10, 11, 70], [10, 11, 71]):  # now 12 follows one time in three
        device.engine.core.learn(np.array([device.engine.index], np.uint64), np.array(text, np.int32))
    device.sample(10)
    assert dictated(device, 10, 11, 80, 81) == [11, 80, 81]


def test_a_dictated_draft_leaves_room_for_the_last_token_and_has_its_price() -> None:
    device = Device(Engine(most_tokens=5))  # the prompt, four tokens of output
    device.sample(50)
    assert dictated(device, 50, 51, 52, 53, 54) == [51, 52]
    device = Device()
    device.sample(50)
    assert dictated(device, 50, 51, 52, min_prob=1.0) == []


def test_a_model_does_not_draft_what_a_grammar_dictates(device: Device) -> None:
    step = device.step(50, dictated={"r": [50, 51, 52]}, num_model=3, least=least(9.0))
    assert (step.lengths, step.model_lengths) == ([2, 0], [0, 0])
    assert device.drafts[0, :2].tolist() == [51, 52]
    assert device.drafts[1, 0] == -1


# ---- refused input ----


def test_nothing_can_be_read_before_it_has_run(device: Device) -> None:
    step = device.plan()
    for read in (
        lambda: step.lengths,
        lambda: step.sums,
        lambda: step.draft(0),
        lambda: step.count_saving(StepSaving(1, 1, 1)),
    ):
        with pytest.raises(ValueError, match="has not run"):
            read()
    step.run()
    with pytest.raises(IndexError, match="no row 2"):
        step.draft(2)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"num_sampled": np.zeros(1, np.int32)}, ValueError),
        ({"num_sampled": np.zeros(2, np.int64)}, TypeError),
        ({"sampled": np.zeros((1, 3), np.int64)}, ValueError),
        ({"sampled": np.zeros((2, 0), np.int64)}, ConfigError),
        ({"sampled": np.zeros((2, 3), np.int32)}, TypeError),
        ({"drafts": np.zeros((1, K), np.int64)}, ValueError),
        ({"drafts": np.zeros(2 * K, np.int64)}, ValueError),
        ({"drafts": np.frombuffer(bytes(16 * K), np.int64).reshape(2, K)}, ValueError),  # not writeable
        ({"chances": np.zeros((2, K + 1), np.float32)}, ValueError),
        ({"names": [3]}, RuntimeError),
        ({"num_model": 7}, ConfigError),
        ({"num_model": 3, "least": np.zeros(1, np.float32)}, ValueError),
        ({"dictated": {"r": [50, -1]}}, TokenError),
        ({"dictated": {"r": "text"}}, RuntimeError),
    ],
)
def test_what_can_be_no_step_is_refused(
    device: Device, change: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        device.plan(**change)


MOST = (1 << 31) - 1


def test_the_tokens_that_the_vocabulary_has_become_an_array() -> None:
    tokens = known_tokens([1, MOST, -1, 2], MOST)
    assert (tokens.dtype, tokens.tolist()) == (np.int32, [1, 2])
    assert known_tokens([], 5).size == 0
    for wrong, error in (([1 << 31], TokenError), (["a"], TypeError)):
        with pytest.raises(error):
            known_tokens(wrong, MOST)
    array = np.array([3, 0, 4], np.int32)
    assert known_tokens(array, 5) is array  # copied only to drop tokens
    assert known_tokens(array, 4).tolist() == [3, 0]
    assert known_tokens(np.array([-1], np.int32), 4).size == 0
