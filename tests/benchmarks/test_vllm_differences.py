"""Where two answers differ: tokens, ends, choices, clients that left, and ties."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import pytest

from benchmarks.vllm.chats import Chat
from benchmarks.vllm.client import Answer, Choice
from benchmarks.vllm.differences import Difference, differences, gap_nats, logprob_gap

CHAT = Chat("q0/plan", "plan", {})


def answer(*choices: Sequence[int], finish: str = "stop") -> Answer:
    return Answer(
        [1, 2], {i: Choice(list(ids), text=str(ids), finish=(finish, None)) for i, ids in enumerate(choices)}
    )


def found(reference: Answer, other: Answer, *, cut: bool = False) -> list[Difference]:
    return differences([CHAT], [reference], [other], cut=[cut])


def test_the_same() -> None:
    assert found(answer([3, 4, 5]), answer([3, 4, 5])) == []


def test_the_first_token_that_differs_and_what_comes_before_it() -> None:
    assert found(answer([3, 4, 5, 6]), answer([3, 4, 7, 8])) == [Difference("q0/plan", (1, 2, 3, 4), 5, 7)]


@pytest.mark.parametrize(("longer", "shorter"), [([3, 4, 5], [3, 4]), ([3], [])])
def test_one_ends_earlier(longer: list[int], shorter: list[int]) -> None:
    context = (1, 2, *shorter)
    assert found(answer(longer), answer(shorter)) == [Difference("q0/plan", context, longer[-1], None)]
    assert found(answer(shorter), answer(longer)) == [Difference("q0/plan", context, None, longer[-1])]


def test_the_same_tokens_that_end_for_another_reason() -> None:
    assert len(found(answer([3, 4]), answer([3, 4], finish="length"))) == 1


def test_every_choice_is_compared() -> None:
    assert len(found(answer([3], [4]), answer([3], [5]))) == 1
    assert len(found(answer([3], [4]), answer([3]))) == 1


def test_who_left_must_have_seen_a_beginning() -> None:
    assert found(answer([3, 4, 5]), answer([3, 4], finish="length"), cut=True) == []
    assert found(answer([3, 4, 5]), Answer(), cut=True) == []
    assert len(found(answer([3, 4, 5]), answer([3, 5]), cut=True)) == 1
    assert len(found(answer([3, 4]), answer([3, 4, 5]), cut=True)) == 1


def test_log_probabilities() -> None:
    first, second = answer([3, 4]), answer([3, 4])
    assert logprob_gap([first], [second]) == 0
    first.choices[0].logprobs, second.choices[0].logprobs = [-1.0, -2.0], [-1.0, -2.25]
    assert logprob_gap([first], [second]) == 0.25


@pytest.mark.parametrize(
    ("expected", "found_token", "gap"), [(5, 7, 0.5), (5, 8, None), (5, None, None), (None, 7, None)]
)
def test_how_much_likelier_one_token_is(
    monkeypatch: pytest.MonkeyPatch, expected: int | None, found_token: int | None, gap: float | None
) -> None:
    def post(url: str, *, json: dict[str, object], timeout: float) -> httpx.Response:
        assert json["prompt"] == [1, 2, 3]
        logprobs = {"top_logprobs": [{"token_id:5": -1.0, "token_id:7": -1.5}]}
        request = httpx.Request("POST", url)
        return httpx.Response(200, json={"choices": [{"logprobs": logprobs}]}, request=request)

    monkeypatch.setattr(httpx, "post", post)
    assert gap_nats("http://engine", Difference("q0/plan", (1, 2, 3), expected, found_token)) == gap
