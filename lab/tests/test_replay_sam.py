"""SAM-Decoding compared with hand-worked examples, and its automaton with a search through the text."""

from __future__ import annotations

import random

import numpy as np
import pytest

from agentspec import Source
from agentspec.replay.calls import END, Call
from agentspec.replay.replay import replay
from lab.replay.sam import Match, SuffixAutomata, SuffixAutomaton

NONE: tuple[int, ...] = ()
RUN = tuple(range(11, 23))  # 12 different tokens


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def call(prompt: tuple[int, ...], response: tuple[int, ...] = NONE) -> Call:
    return Call("s", "a", ids(*prompt), ids(*response, END))


# ---- the automaton ----


def last_end(text: list[int], string: list[int]) -> int:
    """Return the position after the string's last occurrence, or 0 if there is no occurrence."""
    ends = range(len(text), len(string) - 1, -1)
    return next((end for end in ends if text[end - len(string) : end] == string), 0)


def longest(text: list[int], string: list[int]) -> tuple[int, int]:
    """Return the length and end of the string's longest suffix in the text."""
    for length in range(len(string), 0, -1):
        if end := last_end(text, string[-length:]):
            return length, end
    return 0, 0


@pytest.mark.parametrize("alphabet", [1, 2, 3, 8])
@pytest.mark.parametrize("least", [1, 3])
def test_the_longest_earlier_suffix_is_found_at_its_last_place(alphabet, least):
    rng = random.Random(alphabet)
    automaton, text = SuffixAutomaton(least), []
    for _ in range(150):
        token = rng.randrange(alphabet)
        text.append(token)
        length, end = automaton.append(token)
        expected = longest(text[:-1], text)  # may overlap the end, but not equal it
        assert length == expected[0]
        if length >= least:
            assert end == expected[1]


@pytest.mark.parametrize("alphabet", [2, 3, 8])
def test_a_string_is_followed_through_another_text(alphabet):
    rng = random.Random(alphabet)
    automaton = SuffixAutomaton()
    for _ in range(120):
        automaton.append(rng.randrange(alphabet))
    match, said = Match(), []
    for _ in range(200):
        said.append(rng.randrange(alphabet + 1))
        match = automaton.follow(match, said[-1])
        expected = longest(automaton.text, said[-20:])
        assert (match.length, automaton.end(match) if match.length else 0) == expected


# ---- drafts ----


def learn(drafter: SuffixAutomata, output: tuple[int, ...]) -> None:
    drafter.start("before", call(NONE))
    drafter.step("before", ids(*output))
    drafter.finish("before", ids())


def test_the_text_itself_is_copied_from_the_last_place():
    drafter = SuffixAutomata(3)
    drafter.start("x", call((1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5, 8, 7)))
    assert not len(drafter.step("x", ids(1, 2, 3, 4)))  # a match of 4: too short
    draft = drafter.step("x", ids(5))  # occurred twice, the last time before 8 7 and this 1
    assert draft.token_ids.tolist() == [8, 7, 1]
    assert draft.is_chain
    assert np.isnan(draft.probs).all()
    assert (draft.match_length, draft.source) == (5, Source.REQUEST)
    assert not len(drafter.step("x", ids(6)))


@pytest.mark.parametrize(
    ("said", "expected", "length", "source"),
    [
        # 18 .. 22 in the prompt is a match of 5. In the output every token of the text matches: 10 are not
        # longer by more than 5, 11 are
        (RUN[2:], [60, *RUN[2:4]], 5, Source.REQUEST),
        (RUN[1:], [50, 51], 11, Source.TENANT),  # the output ends here
    ],
)
def test_outputs_are_copied_where_they_match_longer_by_more_than_the_bias(said, expected, length, source):
    drafter = SuffixAutomata(3)
    learn(drafter, (*RUN, 50, 51))
    learn(drafter, (77, 78))
    drafter.start("x", call((18, 19, 20, 21, 22, 60)))
    draft = drafter.step("x", ids(*said))
    assert (draft.token_ids.tolist(), draft.match_length, draft.source) == (expected, length, source)


def test_outputs_are_learned_when_they_are_finished():
    drafter = SuffixAutomata(4)
    drafter.start("x", call(NONE))
    drafter.start("y", call(NONE))
    drafter.step("x", ids(*RUN))
    assert not len(drafter.step("y", ids(*RUN[:6])))
    drafter.finish("x", ids(END))
    # y produced 11 .. 16 before the output existed, so its match begins at 17: still too short
    assert not len(drafter.step("y", ids(*RUN[6:11])))
    assert drafter.step("y", ids(RUN[11])).token_ids.tolist() == [END]


def test_a_repeated_response_takes_few_steps():
    calls = [call((1,), RUN), call((2,), RUN)]
    tally = replay(calls, SuffixAutomata(32))["s"]
    # 13 tokens one by one, then 6 (a match must be longer than 5), then the remaining 7 in one step
    assert (tally.tokens, tally.steps, tally.accepted) == (26, 13 + 7, 7)
    assert tally.calibration_error is None
