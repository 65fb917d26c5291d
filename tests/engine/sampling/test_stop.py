from __future__ import annotations

import random

import pytest

from agentspec.engine.sampling.stop import StopStrings
from agentspec.generation import LateStop


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


def test_a_stop_string_in_early_text_is_text() -> None:
    checker = StopStrings(["END"])
    assert checker.push("a END b E", is_early=True) == "a END b "
    assert checker.push("ND c") == ""
    assert checker.is_hit


LATE = LateStop("</call>", "<call>")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<call>1</call>\n<call>2</call>", "<call>1</call>\n"),
        ("<call>1<call>2</call> x <call>", "<call>1<call>2</call> x "),
        ("<call>1</call></call><cal l>", "<call>1</call></call><cal l>"),
        ("</call></call><call>", "</call></call>"),
        ("no mark <call> <call>", "no mark <call> <call>"),
        ("<call>1</call>;<call>", "<call>1</call>"),
        ("; </call><call>", ""),
    ],
)
def test_a_late_stop_string_counts_behind_its_mark_however_the_text_is_cut(text: str, shown: str) -> None:
    rng = random.Random(3)
    for _ in range(200):
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 8)))
        checker = StopStrings([";"], LATE)
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        got = "".join(checker.push(piece) for piece in pieces)
        got += "" if checker.is_hit else checker.flush()
        assert got == shown, pieces
        assert checker.is_hit == (shown != text)
