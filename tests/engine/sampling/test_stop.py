from __future__ import annotations

import random

import pytest

from agentspec.engine.sampling.stop import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    checker = StopStrings(stops)
    text = "".join(checker.push(piece) for piece in pieces)
    if not checker.is_hit:
        text += checker.flush()
    return text, checker.is_hit


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "is_hit"),
    [
        ([], ["ab", "c"], "abc", False),
        (["END"], ["a E", "N", "D b"], "a ", True),
        (["END"], ["a E", "N", "d"], "a ENd", False),
        (["END"], ["EEN", "D"], "E", True),
        (["aab"], ["a", "a", "a", "b"], "a", True),
        (["\n\n"], ["x\n", "y\n", "\n", "z"], "x\ny", True),
        (["cd", "bcd"], ["ab", "c", "d"], "a", True),
        (["ab", "abc"], ["xa", "b", "c"], "x", True),
        (["b", "a"], ["xxab"], "xx", True),
    ],
)
def test_cuts_before_the_first_stop_string(
    stops: list[str], pieces: list[str], text: str, is_hit: bool
) -> None:
    assert run(stops, pieces) == (text, is_hit)


def test_holds_back_only_what_may_become_a_stop_string() -> None:
    checker = StopStrings(["</s>"])
    assert checker.push("a <") == "a "
    assert checker.push("/") == ""
    assert checker.push("b") == "</b"
    assert checker.push("</s") == ""
    assert checker.push(">c") == ""
    assert checker.is_hit
    assert checker.push("more") == ""
    assert checker.flush() == ""


def test_agrees_with_a_search_in_the_whole_text_however_it_is_cut() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        pieces = ["".join(rng.choices("ab", k=rng.randint(0, 1))) for _ in range(12)]
        whole = "".join(pieces)
        # one character at a time: the first complete stop string ends the output
        ends = [whole.find(stop) + len(stop) for stop in stops if stop in whole]
        if not ends:
            assert run(stops, pieces) == (whole, False)
            continue
        done = whole[: min(ends)]
        start = min(done.find(stop) for stop in stops if stop in done)
        assert run(stops, pieces) == (whole[:start], True)
