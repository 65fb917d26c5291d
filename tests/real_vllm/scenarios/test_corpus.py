"""Outputs that vLLM servers and their ranks share."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.errors import AgentSpecError
from benchmarks.vllm.chats import load
from benchmarks.vllm.client import ask_all
from tests.real_vllm.support.corpus import figures, wait_for
from tests.real_vllm.support.probes import plain
from tests.real_vllm.support.ranks import TWO_WORKERS, ask_rank, totals
from tests.real_vllm.support.servers import ours, serving

pytestmark = pytest.mark.slow

CHATS = load(7, 81)


def test_what_one_server_learned_the_next_one_drafts(tmp_path: Path) -> None:
    place = str(tmp_path / "corpus")
    with serving(ours(), tmp_path) as server:
        expected = plain(ask_all(server.url, CHATS, 4))
    with serving(ours(corpus=place), tmp_path) as server:
        assert plain(ask_all(server.url, CHATS, 4)) == expected
        assert plain(ask_all(server.url, [CHATS[0].tagged(learn=0)], 1)) == expected[:1]
        cold = totals(server, "num_accepted_tokens")
        with pytest.raises(AgentSpecError, match="neither saved nor loaded"):
            server.control("save")
    with serving(ours(corpus=place), tmp_path) as server:
        wait_for(server, lambda seen: seen["num_learned"] > 0 and seen["lag_s"] == 0)
        assert plain(ask_all(server.url, CHATS, 4)) == expected
        assert totals(server, "num_accepted_tokens") > cold
        assert figures(server)["num_damaged"] == 0


def test_one_of_two_tensor_parallel_ranks_shares(tmp_path: Path) -> None:
    flags = ("--tensor-parallel-size", "2")
    speculator = ours(corpus=str(tmp_path / "corpus"))
    with serving(speculator, tmp_path, *flags, environment=TWO_WORKERS) as server:
        ask_all(server.url, CHATS[:3], 1)
        names = ("num_published", "num_skipped")
        wait_for(server, lambda seen: sum(seen[name] for name in names) == 3)
        assert figures(server)["num_learned"] == 0


def test_two_data_parallel_ranks_learn_from_each_other(tmp_path: Path) -> None:
    chat = CHATS[2]
    flags = ("--data-parallel-size", "2")
    speculator = ours(corpus=str(tmp_path / "corpus"))
    with serving(speculator, tmp_path, *flags, environment=TWO_WORKERS) as server:
        text, cold = ask_rank(server, 0, chat)
        wait_for(server, lambda seen: seen["num_learned"] == 1)
        found, steps = ask_rank(server, 1, chat)
        assert found == text
        assert steps < cold
