"""LiveRows: drafts and counts for an engine's rows, and refused input."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from agentspec._native import DraftOptions, ForestCore, LiveRows
from agentspec.draft import Source
from agentspec.errors import UnknownRequestError

EOS = 2
TEXT = [10, 11, 12, 13, 14, 15, EOS]
WIDTH = 32


class Engine:
    """One request with a prompt of one token, in its own row."""

    def __init__(self, most_tokens: int = WIDTH) -> None:
        self.core = ForestCore(16, 1 << 20)
        group = self.core.create_group(1 << 20)
        index = self.core.create_index(group, 1 << 20)
        self.core.learn(np.array([index], np.uint64), np.array(TEXT, np.int32))
        options = DraftOptions(False, 8, 4.0, 1, 0.0)
        sources = np.array([Source.STAGE], np.uint8)
        none = np.empty(0, np.int32)
        self.core.start(
            7, group, np.array([1], np.int32), none, np.array([index], np.uint64), sources, True, options
        )
        self.rows = LiveRows(self.core)
        self.rows.add("r", 1, most_tokens, [EOS, 99])
        self.rows.enter("r", 7)
        self.texts = np.zeros((2, WIDTH), np.int32)
        self.ends = np.array([1, 0], np.int32)
        self.index = index

    def step(
        self, tokens: list[int], verified: dict[str, list[int]] | None = None, now_s: float = 0.0
    ) -> Any:
        end = int(self.ends[0])
        self.texts[0, end : end + len(tokens)] = tokens
        self.ends[0] = end + len(tokens)
        return self.rows.step(
            ["r", "stranger"], [tokens, [5]], self.ends, self.texts, verified or {}, 8, 0.0, now_s
        )

    def learned(self) -> int:
        self.core.settle()
        return self.core.index_size(self.index)[1] - len(TEXT)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_a_row_is_drafted_for_and_counted(engine: Engine) -> None:
    engine.ends[1] = 1  # a row of another request
    drafts, score, num_decoding, num_verified, num_new = engine.step([10], now_s=1.0)
    assert drafts == [TEXT[1:5], []]  # four times the match
    assert 3 < score <= 4
    assert (num_decoding, num_verified, num_new) == (0, 0, 0)  # the first token belongs to the prefill
    _, _, *sums = engine.step([11, 12, 50], {"r": [11, 12, 13]}, now_s=3.5)
    assert sums == [1, 3, 3]
    counts = engine.rows.take_counts("r")
    assert (counts.num_output_tokens, counts.num_steps, counts.num_drafts) == (4, 1, 1)
    assert counts.drafted[Source.STAGE] == 3
    assert counts.accepted[Source.STAGE] == 2
    assert counts.decode_s == 2.5
    assert engine.rows.remove("r").num_output_tokens == 0  # each count is reported once
    assert engine.step([1])[0] == [[], []]
    assert engine.learned() == 4


def test_nothing_behind_a_stop_is_learned_counted_or_drafted(engine: Engine) -> None:
    engine.ends[1] = 1
    engine.step([10])
    drafts, *_ = engine.step([11, 99, 12, 13], {"r": [11, 12, 13]})
    assert drafts == [[], []]
    assert engine.rows.take_counts("r").num_output_tokens == 3
    assert engine.learned() == 3


@pytest.mark.parametrize(("most_tokens", "num_drafted"), [(2, 0), (3, 0), (4, 1), (6, 3), (20, 4)])
def test_a_draft_leaves_room_for_the_bonus_token(most_tokens: int, num_drafted: int) -> None:
    engine = Engine(most_tokens)
    engine.ends[1] = 1
    assert engine.step([10])[0][0] == TEXT[1 : 1 + num_drafted]


def test_a_row_is_counted_before_it_enters_and_learned_from_its_beginning(engine: Engine) -> None:
    engine.ends[1] = 1
    engine.rows.add("r", 1, WIDTH, [EOS])
    assert engine.step([10], now_s=1.0)[0] == [[], []]
    assert engine.step([11], now_s=2.0)[0] == [[], []]
    assert engine.learned() == 0
    engine.rows.enter("r", 7)
    assert engine.step([12], now_s=4.0)[0][0] == TEXT[3:]
    counts = engine.rows.take_counts("r")
    assert (counts.num_output_tokens, counts.num_steps, counts.decode_s) == (3, 2, 3.0)
    assert engine.learned() == 3


def test_a_step_that_fails_is_made_up_for(engine: Engine) -> None:
    engine.rows.add("stranger", 0, WIDTH, [])
    engine.ends[1] = 1
    engine.step([10])
    engine.ends[1] = WIDTH + 1
    with pytest.raises(ValueError, match="row 1"):
        engine.step([11])
    engine.ends[1] = 2
    engine.step([12])
    assert engine.rows.take_counts("r").num_output_tokens == 3
    assert engine.learned() == 3


def test_two_threads_may_step_rows_of_their_own() -> None:
    engine = Engine()
    none = np.empty(0, np.int32)
    ids = np.empty(0, np.uint64)
    engine.core.start(8, 0, none, none, ids, np.empty(0, np.uint8), True, DraftOptions(False, 8, 4.0, 1, 0.0))
    engine.rows.add("s", 0, 1 << 20, [])
    engine.rows.enter("s", 8)

    def work(name: str, begin: int) -> int:
        texts, num_steps = np.full((1, 512), 5, np.int32), 0
        for end in range(begin, 500):
            engine.rows.step([name], [[5]], np.array([end], np.int32), texts, {}, 4, 0.0, 0.0)
            num_steps += 1
        return num_steps

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, ["r", "s"], [2, 1])) == [498, 499]
    engine.core.check_integrity()


def test_steps_that_were_missed_are_made_up_for(engine: Engine) -> None:
    engine.ends[1] = 1
    engine.texts[0, 1:4] = TEXT[:3]
    engine.ends[0] = 4
    assert engine.step([13])[0][0] == TEXT[4:]
    counts = engine.rows.take_counts("r")
    assert (counts.num_output_tokens, counts.num_steps) == (4, 3)
    assert engine.learned() == 4


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"names": ["r"]}, ValueError),
        ({"texts": np.zeros(WIDTH, np.int32)}, ValueError),
        ({"texts": np.zeros((1, WIDTH), np.int32)}, ValueError),
        ({"texts": np.zeros((2, WIDTH))}, TypeError),
        ({"ends": np.array([1], np.int32)}, ValueError),
        ({"ends": np.array([WIDTH + 1, 1], np.int32)}, ValueError),
        ({"ends": np.array([0, 1], np.int32)}, ValueError),
        ({"ends": np.array([-1, 1], np.int32)}, ValueError),
        ({"names": [1, "s"]}, TypeError),
        ({"sampled": [7, [5]]}, TypeError),
    ],
)
def test_what_can_be_no_batch_is_refused(
    engine: Engine, change: dict[str, Any], error: type[Exception]
) -> None:
    good = {
        "names": ["r", "s"],
        "sampled": [[10], [5]],
        "ends": np.array([2, 1], np.int32),
        "texts": np.full((2, WIDTH), 10, np.int32),
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
    engine.ends[1] = 1
    engine.core.finish(7, True)
    with pytest.raises(UnknownRequestError):
        engine.step([10])
    engine.rows.remove("r")
    assert engine.step([11])[0] == [[], []]
    engine.core.check_integrity()


def test_a_step_is_counted_with_drafts_and_without(engine: Engine) -> None:
    engine.ends[1] = 1
    engine.step([10])
    engine.rows.count_saving(1.0, 0.5, 0.25)  # the first token belongs to no decode step
    engine.step([11, 12, 13])
    engine.rows.count_saving(1.0, 0.5, 0.25)
    engine.step([14])
    engine.rows.count_saving(2.0, -9.0, 1.0)
    counts = engine.rows.take_counts("r")
    assert counts.measured_decode_s == 3.0
    assert counts.plain_decode_s == 1.25
    engine.rows.remove("r")
    engine.rows.count_saving(1.0, 0.5, 0.25)  # no request to count for
