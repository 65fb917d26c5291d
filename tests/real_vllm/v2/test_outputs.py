"""Outputs with drafts and without, under vLLM's model runner V2, scheduled step by step or ahead."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from benchmarks.vllm.chats import load
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.speculators import NONE, Speculator, bundled_on_cpu

Serving = Callable[..., AbstractContextManager[Any]]

CHATS = load(20, 3)


def answers(server: Any) -> list[list[int]]:
    return [answer.choices[0].token_ids for answer in ask_all(server.url, CHATS, 8)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Return the outputs without speculation."""
    with bundled_on_cpu().serving(NONE, tmp_path_factory.mktemp("none")) as server:
        return answers(server)


@pytest.mark.parametrize(
    "flag", ["--async-scheduling", pytest.param("--no-async-scheduling", marks=pytest.mark.slow)]
)
def test_no_token_is_changed(serving: Serving, expected: list[list[int]], flag: str) -> None:
    ours = Speculator("agentspec", num_tokens=15, settings={"price": 0.05}, flags=(flag,))
    with serving(ours) as server:
        assert answers(server) == expected
        status = server.control("status")
        assert (status["model_runner"], status["async_scheduling"]) == ("V2", flag == "--async-scheduling")
        figures = server.control("stages")["stages"]
        num_drafted = sum(one["num_draft_tokens"] for one in figures)
        num_accepted = sum(one["num_accepted_tokens"] for one in figures)
        assert num_accepted > 600
        # all slots for every request: 7 (lab/log); ahead, a busy machine knows the drafts' lengths late
        assert status["num_slots"] < (6 if flag == "--async-scheduling" else 4) * num_accepted
        assert status["num_slots"] >= num_drafted
        counters = server.counters()
        assert counters.num_output_tokens == sum(map(len, expected))
        assert counters.num_draft_tokens == num_drafted  # vLLM's own figures do not count padding either
