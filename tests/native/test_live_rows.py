"""LiveRows: drafts and counts for an engine's rows, and refused input."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from agentspec._native import DraftOptions, StepSaving
from agentspec.draft import Source
from agentspec.errors import TokenError, UnknownRequestError
from tests.native.support.row_engine import EOS, TEXT, WIDTH, Engine


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_a_row_is_drafted_for_and_counted(engine: Engine) -> None:
    drafts, chances, score, num_decoding, num_verified, num_new = engine.step([10], now_s=1.0)
    assert drafts == [TEXT[1:5], []]  # four times the match
    assert 3 < score <= 4
    assert chances.dtype == np.float32
    assert chances.sum() == pytest.approx(score)
    assert chances.tolist() == sorted(chances.tolist(), reverse=True)
    assert (num_decoding, num_verified, num_new) == (0, 0, 0)  # the first token belongs to the prefill
    _, _, _, *sums = engine.step([11, 12, 50], {"r": [11, 12, 13]}, now_s=3.5)
    assert sums == [1, 3, 3]
    counts = engine.rows.take_counts("r")
    assert (counts.num_output_tokens, counts.num_steps, counts.num_drafts) == (4, 1, 1)
    assert counts.drafted[Source.STAGE] == 3
    assert counts.accepted[Source.STAGE] == 2
    assert counts.decode_s == 2.5
    assert engine.rows.remove("r").counts().num_output_tokens == 0  # each count is reported once
    assert engine.step([1])[0] == [[], []]
    assert engine.learned() == 4


def test_nothing_behind_a_stop_is_learned_counted_or_drafted(engine: Engine) -> None:
    engine.step([10])
    drafts, *_ = engine.step([11, 99, 12, 13], {"r": [11, 12, 13]})
    assert drafts == [[], []]
    assert engine.rows.take_counts("r").num_output_tokens == 3
    assert engine.learned() == 3


@pytest.mark.parametrize(("most_tokens", "num_drafted"), [(2, 0), (3, 0), (4, 1), (6, 3), (20, 4)])
def test_a_draft_leaves_room_for_the_bonus_token(most_tokens: int, num_drafted: int) -> None:
    engine = Engine(most_tokens)
    assert engine.step([10])[0][0] == TEXT[1 : 1 + num_drafted]


def test_a_row_is_counted_before_it_enters_and_learned_from_its_beginning(engine: Engine) -> None:
    engine.rows.add("r", 1, WIDTH, [EOS])
    assert engine.step([10], now_s=1.0)[0] == [[], []]
    assert engine.step([11], now_s=2.0)[0] == [[], []]
    assert engine.learned() == 0
    engine.rows.enter("r", 7)
    assert engine.step([12], now_s=4.0)[0][0] == TEXT[3:]
    counts = engine.rows.take_counts("r")
    assert (counts.num_output_tokens, counts.num_steps, counts.decode_s) == (3, 2, 3.0)
    assert engine.learned() == 3


def test_a_step_that_fails_changes_no_row(engine: Engine) -> None:
    engine.step([10])
    with pytest.raises(TokenError):
        engine.step([-4])
    engine.ends[0] = 2
    assert engine.step([11])[0][0] == TEXT[2:]
    assert engine.rows.take_counts("r").num_output_tokens == 2
    assert engine.learned() == 2


def test_a_row_that_ends_elsewhere_is_lost(engine: Engine) -> None:
    engine.step([10])
    engine.ends[0] -= 1  # the engine took a token back, as after a failed load of its cache
    assert engine.step([11])[0] == [[], []]
    assert engine.step([12])[0] == [[], []]
    engine.rows.enter("r", 7)
    assert engine.step([13])[0] == [[], []]
    assert engine.rows.take_counts("r").num_output_tokens == 4
    assert engine.learned() == 1  # nothing in doubt


@pytest.mark.parametrize(("num_tokens", "is_lost"), [(2, False), (1, True), (3, True)])
def test_a_row_continues_after_a_stop_with_the_same_text(
    engine: Engine, num_tokens: int, is_lost: bool
) -> None:
    engine.step([10])
    engine.rows.resume("r", num_tokens)
    engine.rows.resume("stranger", num_tokens)
    drafts = engine.step([11], {"r": [0, 0, 0]})[0][0]  # its draft was dropped
    assert drafts == ([] if is_lost else TEXT[2:])
    assert engine.rows.take_counts("r").num_drafts == 0


def test_a_prompt_that_is_read_again_after_output_loses_the_row(engine: Engine) -> None:
    engine.rows.prefill("stranger")
    engine.rows.prefill("r")
    assert engine.step([10])[0][0] == TEXT[1:5]
    engine.rows.prefill("r")
    assert engine.step([11])[0][0] == []


def test_padding_is_no_draft(engine: Engine) -> None:
    engine.step([10])
    sums = engine.step([11, 12], {"r": [11, 50, -1, -1]})[3:]
    assert sums == (1, 2, 2)
    counts = engine.rows.take_counts("r")
    assert (counts.drafted[Source.STAGE], counts.accepted[Source.STAGE]) == (2, 1)
    engine.rows.lose("r")
    engine.step([13], {"r": [13, 14]})
    engine.step([14], {"r": [-1, -1]})
    assert engine.rows.take_counts("r").num_drafts == 1


def test_two_threads_may_step_rows_of_their_own() -> None:
    engine = Engine()
    none = np.empty(0, np.int32)
    engine.core.start(8, 0, none, none, [], True, DraftOptions(False, 8, 4.0, 1, 0.0))
    engine.rows.add("s", 0, 1 << 20, [], request=8)

    def work(name: str, begin: int) -> int:
        num_steps = 0
        for end in range(begin, 500):
            engine.rows.step([name], [[5]], np.array([end], np.int32), {}, 4, 0.0, 0.0)
            num_steps += 1
        return num_steps

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, ["r", "s"], [2, 1])) == [498, 499]
    engine.core.check_integrity()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"names": ["r"]}, ValueError),
        ({"ends": np.array([2.0, 1.0])}, TypeError),
        ({"ends": np.array([[2, 1]], np.int32)}, ValueError),
        ({"ends": np.array([1], np.int32)}, ValueError),
        ({"ends": np.array([-1, 1], np.int32)}, ValueError),
        ({"names": [1, "s"]}, TypeError),
        ({"sampled": [7, [5]]}, TypeError),
        ({"sampled": [["a"], [5]]}, TypeError),
        ({"sampled": [[1 << 31], [5]]}, TokenError),
    ],
)
def test_what_can_be_no_batch_is_refused(
    engine: Engine, change: dict[str, Any], error: type[Exception]
) -> None:
    good = {
        "names": ["r", "s"],
        "sampled": [[10], [5]],
        "ends": np.array([2, 1], np.int32),
        "verified": {},
        "max_tokens": 8,
        "min_prob": 0.0,
        "now_s": 0.0,
    }
    with pytest.raises(error):
        engine.rows.step(**{**good, **change})
    assert engine.learned() == 0
    engine.rows.step(**good)
    assert engine.learned() == 1


def test_a_request_that_is_gone_is_an_error_and_no_more(engine: Engine) -> None:
    engine.core.finish(7, True)
    with pytest.raises(UnknownRequestError):
        engine.step([10])
    engine.rows.remove("r")
    assert engine.step([11])[0] == [[], []]
    engine.core.check_integrity()


def test_a_step_is_counted_with_drafts_and_without(engine: Engine) -> None:
    engine.step([10])
    engine.rows.count_saving(StepSaving(1.0, 0.5, 0.25))  # the first token belongs to no decode step
    engine.step([11, 12, 13])
    engine.rows.count_saving(StepSaving(1.0, 0.5, 0.25))
    engine.step([14])
    engine.rows.count_saving(StepSaving(2.0, -9.0, 1.0))
    counts = engine.rows.take_counts("r")
    assert counts.measured_decode_s == 3.0
    assert counts.plain_decode_s == 1.25
    engine.rows.remove("r")
    engine.rows.count_saving(StepSaving(1.0, 0.5, 0.25))  # no request to count for


def kept(engine: Engine) -> None:
    """Have the engine keep its output."""
    engine.rows.add("r", 1, WIDTH, [EOS, 99], keeps_output=True)
    engine.rows.enter("r", 7)


def test_an_output_can_be_taken_in_parts_while_it_is_written(engine: Engine) -> None:
    kept(engine)
    engine.step([10])
    assert engine.rows.take_parts(2) == []
    engine.step([11, 12])
    [(name, tokens)] = engine.rows.take_parts(2)
    assert (name, tokens.tolist(), tokens.dtype) == ("r", [10, 11, 12], np.int32)
    engine.step([13])
    assert engine.rows.take_parts(2) == []
    assert engine.rows.take_parts(1, 1) == []  # 3 tokens were taken: 5 are due
    [(_, tokens)] = engine.rows.take_parts(1)
    assert tokens.tolist() == [13]
    engine.step([14, EOS])
    assert engine.rows.remove("r").output.tolist() == [*range(10, 15), EOS]  # the whole output
    assert engine.rows.take_parts(1) == []
    with pytest.raises(ValueError, match="a part has one token at least, not 0"):
        engine.rows.take_parts(0)


def test_an_output_that_is_not_kept_has_no_parts(engine: Engine) -> None:
    engine.step([10, 11])
    assert engine.rows.take_parts(1) == []


def test_a_row_keeps_its_output_if_it_is_asked_to(engine: Engine) -> None:
    engine.step([10])
    assert engine.rows.remove("r").output.dtype == np.int32
    assert engine.rows.remove("stranger").output.tolist() == []
    engine.rows.add("r", 1, WIDTH, [EOS], keeps_output=True)
    engine.ends[0] = 1
    engine.step([10, 11])
    assert engine.rows.remove("r").output.tolist() == []  # it has not entered: the core knows nothing
    engine.rows.add("r", 1, WIDTH, [EOS], keeps_output=True)
    engine.ends[0] = 1
    before = engine.learned()
    engine.step([10, 11])
    engine.rows.enter("r", 7)
    engine.step([12])
    engine.step([13, EOS, 14])
    ended = engine.rows.remove("r")
    assert ended.output.tolist() == [10, 11, 12, 13, EOS]
    assert ended.is_ended
    assert engine.rows.remove("r").output.tolist() == []
    assert engine.learned() - before == 5


def test_an_output_that_ended_stays_the_same(engine: Engine) -> None:
    engine.rows.add("r", 1, WIDTH, [EOS], keeps_output=True)
    engine.rows.enter("r", 7)
    engine.step([10, 11])
    ended = engine.rows.remove("r")
    engine.step([12])  # a step in flight
    assert ended.output.tolist() == [10, 11]
    assert ended.counts().num_output_tokens == ended.num_output_tokens == 2
    assert engine.learned() == 2


def test_a_gap_ends_the_output(engine: Engine) -> None:
    engine.rows.add("r", 1, WIDTH, [EOS], keeps_output=True)
    engine.rows.enter("r", 7)
    engine.step([10, 11])
    engine.ends[0] -= 1
    engine.step([12])
    assert engine.rows.remove("r").output.tolist() == [10, 11]
    assert engine.learned() == 2


def test_a_held_row_has_no_parts_and_counts_up_to_any_token(engine: Engine) -> None:
    engine.rows.add("r", 1, WIDTH, [EOS], keeps_output=True, request=7, is_held=True)
    for tokens in ([10], [11, 12], [13]):
        engine.step(tokens)
    assert engine.rows.last_gain("r") == (1, 0)
    assert engine.rows.last_gain("stranger") == (0, 0)
    assert engine.rows.take_parts(1) == []
    assert engine.rows.take_counts("r").num_output_tokens == 0
    ended = engine.rows.remove("r")
    assert not ended.is_ended
    assert [ended.counts(size).num_steps for size in range(5)] == [0, 0, 1, 1, 2]
    assert ended.counts().num_output_tokens == 4
