"""The requests that are sent, and ways to vary them."""

from __future__ import annotations

from itertools import pairwise

from agentspec.wire import XARGS_FIELD
from benchmarks.vllm import scenarios
from benchmarks.vllm.chats import load


def test_whole_questions_the_same_every_time() -> None:
    chats = load(8, seed=1)
    assert len(chats) == 14
    assert chats == load(8, seed=1)
    assert len({chat.name for chat in [*chats, *load(8, seed=2)]}) == 28


def test_greedy_and_tagged_as_by_the_gateway() -> None:
    chat = load(1, seed=1)[0]
    assert chat.stage == "agentic_sql/classify"
    assert chat.body["temperature"] == 0
    assert chat.body[XARGS_FIELD]["agentspec_stage"] == chat.stage


def test_a_change_leaves_the_original_alone() -> None:
    chat = load(1, seed=1)[0]
    changed = chat.tagged(learn=0).asking(max_tokens=5)
    assert (changed.body[XARGS_FIELD]["agentspec_learn"], changed.body["max_tokens"]) == (0, 5)
    assert (chat.body[XARGS_FIELD]["agentspec_learn"], chat.body["max_tokens"]) == (1, 384)


def test_some_clients_leave_and_always_the_same() -> None:
    chats = load(70, seed=1)
    seen = [scenarios.leaving(chat) for chat in chats]
    assert seen == [scenarios.leaving(chat) for chat in chats]
    assert None in seen
    assert {1 <= tokens <= 24 for tokens in seen if tokens is not None} == {True}


def test_scenarios_with_the_same_server_follow_one_another() -> None:
    flags = [one.flags for one in scenarios.SCENARIOS]
    changes = sum(a != b for a, b in pairwise(flags))
    assert changes == len(set(flags)) - 1
