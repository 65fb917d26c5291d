"""Replay compared with hand-worked examples."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from agentspec import Draft, Source
from agentspec.config import DraftConfig
from agentspec.errors import ConfigError
from agentspec.replay.calls import END, Call, encoded, read
from agentspec.replay.drafter import ForestDrafter, PromptLookup
from agentspec.replay.methods import METHODS, Rule
from agentspec.replay.replay import Schedule, replay, verify
from agentspec.replay.tally import Counts, Tally, accepted_shares


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def call(prompt: tuple[int, ...], response: tuple[int, ...], stage: str = "s", session: str = "a") -> Call:
    return Call(stage, session, ids(*prompt), ids(*response, END))


def tree(*nodes: tuple[int, int, float]) -> Draft:
    """Return a draft of nodes (token, parent, D(N))."""
    tokens, parents, probs = zip(*nodes, strict=True)
    return Draft(ids(*tokens), ids(*parents), np.array(probs, np.float32), sum(probs), 1, Source.REQUEST)


# ---- the verifier ----


def test_the_path_that_agrees_with_the_record_is_accepted():
    drafted = tree((7, -1, 0.5), (8, -1, 0.5), (3, 0, 0.25), (9, 1, 0.4), (4, 3, 0.4))
    tally = Tally()
    assert verify(drafted, ids(8, 9, 5, 6), tally) == 2
    # 7 was wrong, 8 right, then 9 right given 8 (0.4 / 0.5), then 4 wrong given 9
    outcomes = [(round(one.expected, 3), one.num, one.hits) for one in tally.bins if one.num]
    assert outcomes == [(1.0, 2, 1), (0.8, 1, 1), (1.0, 1, 0)]


def test_no_more_is_accepted_than_there_is():
    assert verify(tree((1, -1, 1.0), (2, 0, 1.0)), ids(1), Tally()) == 1


def test_what_was_said_before_takes_two_steps():
    """Take one step for the first token, which can't be drafted, and one for the rest and the end."""
    drafter = ForestDrafter(DraftConfig(max_tokens=64, alpha=100.0))
    tally = replay([call((1, 2), (11, 12, 13, 14)), call((3, 4), (11, 12, 13, 14))], drafter)["s"]
    assert (tally.tokens, tally.steps) == (10, 5 + 2)
    assert (tally.drafted, tally.accepted) == (4, 4)
    assert tally.by_source == {Source.STAGE: Counts(1, 4, 4)}
    assert tally.by_match == {1: Counts(1, 4, 4)}


def test_stages_have_trees_and_counts_of_their_own():
    calls = [call((), (5, 6, 7), "x"), call((), (5, 6, 7), "y")]
    apart = replay(calls, ForestDrafter(DraftConfig()))
    together = replay(calls, ForestDrafter(DraftConfig(), by_stage=False))
    assert [apart[stage].accepted for stage in "xy"] == [0, 0]
    assert [together[stage].accepted for stage in "xy"] == [0, 3]


# ---- order ----


def test_sessions_side_by_side_keep_their_own_order():
    calls = [call((), (i,), session=session) for i, session in enumerate("aabbc")]
    schedule = Schedule(calls, 2)
    first, second = schedule.begin()
    assert (first.session, second.session) == ("a", "b")
    assert schedule.begin() == []
    following = schedule.end(first)
    assert following is calls[1]
    assert schedule.end(following) is None
    assert [one.session for one in schedule.begin()] == ["c"]
    with pytest.raises(ConfigError, match="0"):
        Schedule(calls, 0)


@pytest.mark.parametrize("num_sessions", [1, 3, 50])
def test_every_call_is_replayed_whatever_runs_beside_it(num_sessions):
    rng = np.random.default_rng(0)
    calls = [
        call((), tuple(rng.integers(1, 5, rng.integers(1, 9)).tolist()), session=str(i % 7))
        for i in range(40)
    ]
    tally = replay(calls, ForestDrafter(DraftConfig()), num_sessions)["s"]
    assert tally.tokens == sum(len(one.response) for one in calls)
    again = replay(calls, ForestDrafter(DraftConfig()), num_sessions)["s"]
    assert (again.steps, again.drafted, again.accepted) == (tally.steps, tally.drafted, tally.accepted)


# ---- methods ----


def test_prompt_lookup_takes_the_longest_then_the_first():
    lookup = PromptLookup(3, least=2, most=3)
    lookup.start("x", call((1, 2, 3, 4, 9, 2, 3, 5, 0), ()))
    draft = lookup.step("x", ids(2, 3))
    assert (draft.token_ids.tolist(), draft.match_length) == ([4, 9, 2], 2)  # after the first of two
    draft = lookup.step("x", ids(5))
    assert (draft.token_ids.tolist(), draft.match_length) == ([0, 2, 3], 3)  # 2 3 5 is longer than 3 5
    assert not len(lookup.step("x", ids(77)))


def test_who_estimates_nothing_is_not_calibrated():
    calls = [call((1, 2, 3, 4, 1, 2), (3, 4, 1, 2))]
    assert replay(calls, PromptLookup(3))["s"].calibration_error is None
    assert replay(calls, ForestDrafter(DraftConfig()))["s"].calibration_error is not None


def test_estimates_are_compared_with_outcomes_by_bin():
    tally = Tally()
    for probability, is_right in ((0.61, True), (0.63, False), (0.2, False)):
        tally.add_estimate(probability, is_right)
    assert tally.calibration == [
        {"num": 1, "expected": 0.2, "observed": 0.0},
        {"num": 2, "expected": pytest.approx(0.62), "observed": 0.5},
    ]


def test_shares_are_of_accepted_tokens():
    counts = {8: Counts(1, 9, 1), 1: Counts(2, 9, 3), 2: Counts(1, 9, 0)}
    assert accepted_shares(counts) == {1: 0.75, 2: 0.0, 8: 0.25}
    assert accepted_shares({1: Counts(1, 4, 0)}) == {1: 0.0}


def test_prompt_lookup_may_run_into_what_it_looks_for():
    lookup = PromptLookup(8)
    lookup.start("x", call((6, 6, 6), ()))
    assert lookup.step("x", ids()).token_ids.tolist() == [6]


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_accepts_nothing_but_the_record(name):
    calls = [call((1, 2, 3, 1, 2), (3, 1, 2, 3), session=str(i)) for i in range(3)]
    tally = replay(calls, METHODS[name].make(Rule()), 2)["s"]
    assert tally.tokens == 15
    # every step adds a token of the model, unless the draft reached the end of the response
    assert tally.tokens <= tally.steps + tally.accepted <= tally.tokens + len(calls)
    assert tally.accepted > 0


# ---- files ----


def write(path: Path, *lines: object) -> Path:
    text = "\n".join(json.dumps(line) for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_calls_are_read_with_what_is_known_of_them(tmp_path):
    lines = (
        {"prompt": "p", "response": "r", "stage": "plan", "session": "1", "db": "x"},
        {"prompt": "", "response": "q"},
    )
    first, second = read(write(tmp_path / "calls.jsonl.gz", *lines))
    assert (first.stage, first.session, first.group, first.prompt, first.response) == (
        "plan",
        "1",
        "x",
        "p",
        "r",
    )
    assert (second.stage, second.session, second.group) == ("default", "calls.jsonl.gz:2", "calls.jsonl.gz:2")
    made = encoded(second, lambda text: ids(*map(ord, text)))
    assert made.response.tolist() == [ord("q"), END]


def test_each_answer_of_a_chat_is_a_call(tmp_path):
    tool = {"function": {"name": "find", "arguments": '{"x": 1}'}}
    chat = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [tool]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "It is 42."},
    ]
    first, second = read(write(tmp_path / "chats.jsonl", {"messages": chat, "stage": "agent"}))
    assert first.prompt == "<|user|>\nhi\n<|assistant|>\n"
    assert json.loads(first.response) == {"name": "find", "arguments": {"x": 1}}
    assert second.prompt.endswith("<|tool|>\n42\n<|assistant|>\n")
    assert second.response == "It is 42."


def test_the_response_of_recorded_messages_is_the_only_call(tmp_path):
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "who?"}]
    choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in ("me", "you")]
    lines = [
        {"messages": chat, "response": "me"},
        {"request": {"messages": chat}, "response": {"choices": choices}},
    ]
    recorded = list(read(write(tmp_path / "calls.jsonl", *lines)))
    assert [one.response for one in recorded] == ["me", "me", "you"]
    assert {one.prompt for one in recorded} == {"<|user|>\nhi\n<|assistant|>\nwho?\n<|assistant|>\n"}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ({"prompt": "p"}, "response"),
        ({"prompt": 3, "response": "r"}, "3"),
        ([1], "object"),
        ({"messages": "x"}, "messages"),
    ],
)
def test_what_is_no_call_is_named_with_its_line(tmp_path, line, what):
    path = write(tmp_path / "calls.jsonl", {"prompt": "", "response": "r"}, line)
    with pytest.raises(ConfigError, match=rf"calls.jsonl:2: .*{what}"):
        list(read(path))


def test_halves_divide_groups_not_calls(tmp_path):
    lines = [{"prompt": "", "response": "r", "task": str(i // 3)} for i in range(300)]
    halves = {}
    for record in read(write(tmp_path / "calls.jsonl", *lines)):
        halves.setdefault(record.group, set()).add(record.half())
    assert all(len(half) == 1 for half in halves.values())
    assert 30 < sum(half == {0} for half in halves.values()) < 70


def test_a_forest_that_does_not_learn_keeps_what_it_has():
    drafter = ForestDrafter(DraftConfig(alpha=100.0), by_stage=False)
    drafter.learn("s", ids(1, 2, 3))
    drafter.learns = False
    for _ in range(2):
        tally = replay([call((), (1, 2, 3, 4))], drafter)["s"]
        assert (tally.drafted, tally.accepted, tally.steps) == (2, 2, 3)
