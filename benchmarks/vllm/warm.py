"""A restart: how well a server with a saved forest drafts from its start, against the one that saved it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentspec.reporting.report import Announce
from benchmarks.vllm.chats import Chat, load
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.counters import Counters
from benchmarks.vllm.server import Server
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import OURS, Engine

SEED, PROBE_SEED = 21, 22
NUM_CLIENTS = 4
NUM_PROBES = 20
FILE_NAME = "forest"


def measure(engine: Engine, sizes: Sizes, log_dir: Path, announce: Announce) -> dict[str, Any]:
    """Return the figures for the JSON.

    The same requests, which are not learned from, are sent to three servers: the warm one, one started with
    its saved forest, and one with an empty forest.

    Raises:
        AgentSpecError: a server did not start, or could not save.
    """
    chats = load(sizes.num_warm_chats, SEED)
    probes = [chat.tagged(learn=0) for chat in load(NUM_PROBES, PROBE_SEED)[:NUM_PROBES]]
    with tempfile.TemporaryDirectory() as folder:
        keeping = replace(OURS, settings={"forest_file": str(Path(folder) / FILE_NAME)})
        announce(f"warm: {len(chats)} requests")
        with engine.serving(keeping, log_dir) as server:
            ask_all(server.url, chats, NUM_CLIENTS)
            warm = _ask(server, probes)
            num_rpcs = server.control_rpcs_per_figures()
            saved = server.control("save")
        announce("warm: restarted with the saved forest")
        with engine.serving(keeping, log_dir) as server:
            restarted = _ask(server, probes)
    announce("warm: started cold")
    with engine.serving(OURS, log_dir) as server:
        cold = _ask(server, probes)
    return {
        "warm_restart_acceptance": restarted.accepted_per_step / warm.accepted_per_step,
        "cold_start_acceptance": cold.accepted_per_step / warm.accepted_per_step,
        "control_rpcs_per_figures": num_rpcs,
        "num_saved_outputs": saved["num_outputs"],
        "num_saved_bytes": saved["num_bytes"],
        "figures": {
            name: {"accepted_per_step": one.accepted_per_step, "acceptance_rate": one.acceptance_rate}
            for name, one in (("warm", warm), ("restarted", restarted), ("cold", cold))
        },
    }


def _ask(server: Server, probes: Sequence[Chat]) -> Counters:
    before = server.counters()
    ask_all(server.url, probes, 1)
    return server.counters() - before
