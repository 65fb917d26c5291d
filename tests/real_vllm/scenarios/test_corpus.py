"""Outputs that vLLM servers and their ranks share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from agentspec.corpus.contents import ScopeContents
from agentspec.corpus.output import Output
from agentspec.corpus.sqlite_store import SqliteStore
from agentspec.errors import AgentSpecError
from agentspec.tags import subject_hash
from agentspec.vllm_plugin.model_runner import RUNNER_VARIABLE
from benchmarks.vllm.chats import Chat, load
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.server import Server
from tests.real_vllm.support.probes import plain
from tests.real_vllm.support.ranks import TIMEOUT_S, TWO_WORKERS, ask_rank, totals
from tests.real_vllm.support.servers import ours, serving

pytestmark = pytest.mark.slow

CHATS = load(7, 81)
AHEAD, STEP_BY_STEP = "--async-scheduling", "--no-async-scheduling"
MODES = (AHEAD, STEP_BY_STEP) if os.environ.get(RUNNER_VARIABLE) == "1" else (STEP_BY_STEP,)

Figures = dict[str, float]


def figures(server: Server) -> Figures:
    found: Figures = server.control("status")["corpus"]
    return found


def wait_for(server: Server, is_so: Callable[[Figures], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not is_so(seen := figures(server)):
        assert time.monotonic() < end_s, seen
        time.sleep(0.1)


def answered(server: Server, chats: Sequence[Chat]) -> list[tuple[list[int], str]]:
    """Return tokens and text of each answer, one request after the other."""
    answers = ask_all(server.url, chats, 1)
    return [(answer.choices[0].token_ids, answer.choices[0].text) for answer in answers]


def outputs_in(place: Path) -> list[Output]:
    with closing(SqliteStore(place, only_reads=True)) as store:
        batches = [one.batch for scope in store.scopes() for one in ScopeContents(store, scope)]
    return [record for batch in batches if batch for record in batch.records if isinstance(record, Output)]


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


@pytest.mark.parametrize("mode", MODES)
def test_the_corpus_holds_what_was_answered(tmp_path: Path, mode: str) -> None:
    place = tmp_path / "corpus"
    subject = subject_hash("default", "ann")  # with it, no output is left out
    chats = [chat.tagged(subject=subject.hex()) for chat in CHATS[:3]]
    with serving(ours(corpus=str(place)), tmp_path, mode) as server:
        assert server.control("status")["async_scheduling"] == (mode == AHEAD)
        cut, stopped, whole = answered(server, [chat.tagged(learn=0) for chat in CHATS[:3]])
        text = stopped[1]
        asked = [
            chats[0].asking(max_tokens=5),
            chats[1].asking(stop=[text[len(text) // 2 :][:4]]),
            chats[2],
        ]
        found = answered(server, asked)
        wait_for(server, lambda seen: seen["num_published"] == len(asked))
        outputs = outputs_in(place)
    assert found[0][0] == cut[0][:5]
    assert found[2] == whole
    assert 0 < len(found[1][0]) < len(stopped[0])
    shared = [output.tokens.tolist() for output in outputs]
    assert found[0][0] in shared
    assert whole[0] in shared
    (other,) = [tokens for tokens in shared if tokens not in (found[0][0], whole[0])]
    assert len(other) >= len(found[1][0]) - 1  # vLLM may have decoded more before it saw the stop string
    assert other == stopped[0][: len(other)]
    assert {output.subject for output in outputs} == {subject}


def test_one_of_two_tensor_parallel_ranks_shares(tmp_path: Path) -> None:
    flags = ("--tensor-parallel-size", "2")
    speculator = ours(corpus=str(tmp_path / "corpus"))
    with serving(speculator, tmp_path, *flags, environment=TWO_WORKERS) as server:
        ask_all(server.url, CHATS[:3], 1)
        names = ("num_published", "num_duplicates", "num_skipped")
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
