"""RowStep: a step that is planned first and run later, from an engine's own memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from agentspec._native import RUN_ROW_STEP, RowStep, StepSaving, known_tokens
from agentspec.draft import Source
from agentspec.errors import ConfigError, TokenError
from tests.native.support.row_engine import EOS, TEXT, Engine

K = 6


class Device:
    """Memory of an engine with two rows, of which the first is the request's."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.num_sampled = np.zeros(2, np.int32)
        self.sampled = np.full((2, 1 + K), -1, np.int64)
        self.drafts = np.full((2, K), -1, np.int64)
        self.chances = np.full((2, K), -1, np.float32)

    def plan(self, num_slots: int = 0, **changes: Any) -> RowStep:
        arguments = {
            "rows": self.engine.rows,
            "names": ["r", "stranger"],
            "verified": {"r": [-1] * num_slots},
            "num_sampled": self.num_sampled,
            "sampled": self.sampled,
            "drafts": self.drafts,
            "chances": self.chances,
            "min_prob": 0.0,
        }
        return RowStep(**{**arguments, **changes})

    def sample(self, *tokens: int) -> None:
        self.num_sampled[:] = len(tokens), 1
        self.sampled[0, : len(tokens)] = tokens
        self.sampled[1, 0] = 77


@pytest.fixture
def device() -> Device:
    return Device(Engine())


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
    assert step.sums == (0, 0, 0)
    assert (step.sampled(0), step.draft(0), step.draft(1)) == ([10], TEXT[1:5], [])
    assert step.took_s > 0


def test_the_slots_of_padding_are_verified_but_not_counted_as_drafted(device: Device) -> None:
    device.sample(10)
    device.plan().run()
    device.sample(11, 12, 50)
    step = device.plan(num_slots=6)
    step.run()
    assert step.sums == (1, 6, 3)
    assert step.gained(0) == (3, Source.STAGE)
    counts = device.engine.rows.take_counts("r")
    assert (counts.drafted[Source.STAGE], counts.accepted[Source.STAGE]) == (4, 2)
    device.sample(50, 50, 50)  # padding may be right by chance
    step = device.plan(num_slots=2)
    step.run()
    assert step.gained(0) == (3, Source.NONE)
    assert device.engine.rows.take_counts("r").num_drafts == 0


def test_chances_are_those_of_each_token_after_the_ones_before_it(device: Device) -> None:
    other = np.array([10, 11, 12, 90, 91], np.int32)
    device.engine.core.learn(np.array([device.engine.index], np.uint64), other)
    device.sample(10)
    device.plan().run()
    assert device.chances[0, :2].tolist() == [1, 1]  # both texts continue so
    assert 0.3 < device.chances[0, 2] < 0.7
    assert device.chances[0, 3] == 1


def least(worth: float) -> Any:
    return np.array([worth, 0], np.float32)


def test_the_model_drafts_where_the_trees_draft_is_worth_too_little(device: Device) -> None:
    device.sample(10)
    step = device.plan(num_model=3, least=least(5.0))  # four tokens are worth four at most
    step.run()
    assert (step.lengths, step.model_lengths) == ([3, 0], [3, 0])
    assert device.drafts[:, 0].tolist() == [-1, -1]
    assert device.drafts[:, 1:].tolist() == [[10] * (K - 1), [77] * (K - 1)]
    assert not device.chances.any()
    assert (step.draft(0), step.model_results) == ([], [])
    device.sample(11, 12, 90)
    step = device.plan(num_slots=3, num_model=3, least=least(0.0))
    step.run()
    [(row, num_verified, num_accepted, forgone)] = step.model_results
    assert (row, num_verified, num_accepted) == (0, 3, 2)
    assert 3.5 < forgone <= 4
    assert step.gained(0) == (3, Source.MODEL)
    counts = device.engine.rows.take_counts("r")
    assert (counts.drafted[Source.MODEL], counts.accepted[Source.MODEL]) == (3, 2)
    assert counts.accepted_by_origin == [0, 0, 0]


def test_a_draft_of_the_trees_has_its_price_to_pay(device: Device) -> None:
    device.sample(10)
    step = device.plan(num_model=3, least=least(3.0), min_prob=0.5)  # of four tokens, half a token each
    step.run()
    assert step.model_lengths == [3, 0]


def test_the_trees_draft_where_it_is_worth_more_and_the_model_where_they_have_nothing(device: Device) -> None:
    device.sample(10)
    step = device.plan(num_model=3, least=least(1.0))
    step.run()
    assert (step.lengths, step.model_lengths) == ([4, 0], [0, 0])
    assert device.drafts[0, :4].tolist() == TEXT[1:5]
    device.sample(50)
    step = device.plan(num_slots=4, num_model=3, least=least(0.0))
    step.run()
    assert step.model_lengths == [3, 0]
    device.sample(51)
    step = device.plan(num_slots=2, num_model=3)  # the engine gave it fewer slots
    step.run()
    [(_, num_verified, num_accepted, forgone)] = step.model_results
    assert (num_verified, num_accepted, forgone) == (2, 0, 0)


def test_near_the_end_the_model_drafts_no_more_than_there_is_room_for() -> None:
    device = Device(Engine(most_tokens=4))  # the prompt, three tokens of output
    device.sample(50)
    step = device.plan(num_model=3)
    step.run()
    assert step.model_lengths == [1, 0]
    device.sample(51, 52)
    step = device.plan(num_slots=1, num_model=3)
    step.run()
    assert step.model_lengths == [0, 0]
    assert [one[1:3] for one in step.model_results] == [(1, 1)]


def test_an_end_within_the_models_draft_is_no_refusal() -> None:
    device = Device(Engine())
    device.sample(50)
    device.plan(num_model=3).run()
    device.sample(51, EOS, 60, 61)
    step = device.plan(num_slots=3, num_model=3)
    step.run()
    assert [one[1:3] for one in step.model_results] == [(2, 2)]


def dictated(device: Device, *tokens: int, **changes: Any) -> list[int]:
    """Run a step with these tokens dictated for the request, and return what is drafted then."""
    step = device.plan(dictated={"r": list(tokens)}, **changes)
    step.run()
    assert step.lengths[0] == len(step.draft(0))
    return step.draft(0)


def test_what_a_grammar_dictates_is_drafted_where_the_trees_know_nothing(device: Device) -> None:
    device.sample(50, 51)
    step = device.plan(dictated={"r": [50, 51, 52, 53], "another": [1]})
    step.run()
    assert step.draft(0) == [52, 53]
    assert device.drafts[0].tolist() == [52, 53, 51, 51, 51, 51]  # padding
    assert device.chances[0].tolist() == [1, 1, 0, 0, 0, 0]
    assert not step.acceptance[0].any()  # it is no draft from which the number of slots is learned
    device.sample(52, 53, 60)
    device.plan(num_slots=2).run()
    counts = device.engine.rows.take_counts("r")
    assert (counts.num_output_tokens, counts.num_drafts) == (5, 0)  # no tree drafted it


def test_what_a_grammar_dictates_continues_the_draft_of_the_trees(device: Device) -> None:
    device.sample(10)
    assert dictated(device, 10, *TEXT[1:5], 80, 81, 82) == [*TEXT[1:5], 80, 81]  # as many as there are slots
    chances = device.chances[0]
    assert (chances[:4] > 0.5).all()
    assert chances[4:].tolist() == [1, 1]
    device.sample(*TEXT[1:5], 80, 81, 99)
    step = device.plan(num_slots=6)
    step.run()
    assert step.gained(0) == (7, Source.STAGE)
    counts = device.engine.rows.take_counts("r")
    assert (counts.drafted[Source.STAGE], counts.accepted[Source.STAGE]) == (4, 4)


def test_a_dictated_text_replaces_tokens_that_the_trees_do_not_expect(device: Device) -> None:
    device.sample(10)
    assert dictated(device, 10, 11, 80, 81) == TEXT[1:5]  # the model may split the text into these tokens
    for text in ([10, 11, 70], [10, 11, 71]):  # now 12 follows one time in three
        device.engine.core.learn(np.array([device.engine.index], np.uint64), np.array(text, np.int32))
    device.sample(10)
    assert dictated(device, 10, 11, 80, 81) == [11, 80, 81]
    device.sample(11, 80, 99)
    device.plan(num_slots=3).run()
    counts = device.engine.rows.take_counts("r")
    assert (counts.drafted[Source.STAGE], counts.accepted[Source.STAGE]) == (1, 1)


def test_a_dictated_token_is_worth_no_price_of_one(device: Device) -> None:
    device.sample(50)
    assert dictated(device, 50, 51, 52, min_prob=1.0) == []


def test_a_longer_draft_of_the_trees_stays(device: Device) -> None:
    device.sample(10)
    assert dictated(device, 10, 11, 12) == TEXT[1:5]


@pytest.mark.parametrize("sampled", [[50, 60], [50, 51, 52], [50, 51, 52, 53]])
def test_a_dictated_text_that_is_over_or_did_not_come_true_is_not_drafted(
    device: Device, sampled: list[int]
) -> None:
    device.sample(*sampled)
    assert dictated(device, 50, 51, 52) == []


def test_a_dictated_draft_leaves_room_for_the_last_token() -> None:
    device = Device(Engine(most_tokens=5))  # the prompt, four tokens of output
    device.sample(50)
    assert dictated(device, 50, 51, 52, 53, 54) == [51, 52]


def test_a_model_does_not_draft_what_a_grammar_dictates(device: Device) -> None:
    device.sample(50)
    step = device.plan(dictated={"r": [50, 51, 52]}, num_model=3, least=least(9.0))
    step.run()
    assert (step.lengths, step.model_lengths) == ([2, 0], [0, 0])
    assert device.drafts[0, :2].tolist() == [51, 52]
    assert device.drafts[1, 0] == -1


def test_a_dictated_token_is_a_token(device: Device) -> None:
    with pytest.raises(TokenError, match="-1"):
        device.plan(dictated={"r": [50, -1]})
    with pytest.raises(RuntimeError):
        device.plan(dictated={"r": "text"})


def test_what_the_model_may_draft_is_checked(device: Device) -> None:
    with pytest.raises(ConfigError, match="a row of 6 slots can't hold 7 draft tokens of the model"):
        device.plan(num_model=7)
    with pytest.raises(ValueError, match="there are 2 rows, but fewer values of least"):
        device.plan(num_model=3, least=np.zeros(1, np.float32))


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
    assert device.engine.rows.take_counts("r").num_output_tokens == 0


@pytest.mark.parametrize(("num_sampled", "token"), [(K + 2, 11), (1, -5)])
def test_a_step_that_fails_loses_its_rows_and_no_other(device: Device, num_sampled: int, token: int) -> None:
    device.sample(10)
    device.plan().run()
    device.sample(token)
    device.num_sampled[0] = num_sampled
    step = device.plan()
    step.run()
    assert step.error
    assert step.lengths == [0, 0]
    assert (device.drafts[1] >= 0).all()
    device.sample(11)
    device.plan().run()
    assert device.drafts[0].tolist() == [11] * K
    assert device.engine.learned() == 1


def test_what_a_step_took_is_counted_for_its_own_rows(device: Device) -> None:
    device.sample(10)
    first = device.plan()
    first.run()
    device.sample(11, 12)
    second = device.plan(num_slots=4)
    second.run()
    device.sample(13)
    device.plan(num_slots=4).run()
    second.count_saving(StepSaving(1.0, 0.5, 0.25))
    first.count_saving(StepSaving(9.0, 0.5, 0.25))  # the first token belongs to no decode step
    counts = device.engine.rows.take_counts("r")
    assert (counts.measured_decode_s, counts.plain_decode_s) == (1.0, 1.0)
    device.engine.rows.remove("r")
    second.count_saving(StepSaving(1.0, 0.5, 0.25))


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
        ({"chances": np.zeros((2, K + 1), np.float32)}, ValueError),
        ({"names": [3]}, RuntimeError),
    ],
)
def test_what_can_be_no_step_is_refused(
    device: Device, change: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        device.plan(**change)


def test_memory_that_can_not_be_written_is_refused(device: Device) -> None:
    device.drafts.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        device.plan()


MOST = (1 << 31) - 1


def test_the_tokens_of_a_list_that_the_vocabulary_has_become_an_array() -> None:
    tokens = known_tokens([1, MOST, -1, 2], MOST)
    assert (tokens.dtype, tokens.tolist()) == (np.int32, [1, 2])
    assert known_tokens([], 5).size == 0
    with pytest.raises(TokenError, match="2147483648"):
        known_tokens([1 << 31], MOST)
    with pytest.raises(TypeError):
        known_tokens(["a"], MOST)


def test_an_array_is_copied_only_to_drop_tokens() -> None:
    tokens = np.array([3, 0, 4], np.int32)
    assert known_tokens(tokens, 5) is tokens
    assert known_tokens(tokens, 4).tolist() == [3, 0]
    assert known_tokens(np.array([-1], np.int32), 4).size == 0
