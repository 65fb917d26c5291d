"""Counting of drafts."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.core.steps import Counts


@dataclass
class Drafted:
    token_ids: list[int]


def drafts(*token_ids: list[int]) -> list[Drafted]:
    return [Drafted(tokens) for tokens in token_ids]


def test_tokens_are_the_same_at_the_same_place() -> None:
    counts = Counts()
    counts.add({"ours": drafts([1, 2, 3], [7, 8], []), "peer": drafts([1, 2, 4, 5], [8, 7], [1])})
    counts.add({"ours": drafts([9]), "peer": drafts([9])})
    assert counts.drafted_per_draft() == {"ours": 1.5, "peer": 2}
    assert counts.agreed_per_draft() == {"ours": 0.75}


def test_without_a_peer_nobody_agrees() -> None:
    counts = Counts()
    counts.add({"ours_1_thread": drafts([1, 2]), "ours_2_threads": drafts([1, 2])})
    assert counts.drafted_per_draft() == {"ours_1_thread": 2, "ours_2_threads": 2}
    assert not counts.agreed_per_draft()
