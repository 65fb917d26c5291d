"""Servers of several ranks: their environment, and requests to one rank."""

from __future__ import annotations

import httpx

from benchmarks.vllm.chats import Chat
from benchmarks.vllm.server import Server

# vLLM's workers on a CPU bind themselves to cores, one NUMA node each
TWO_WORKERS = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
TIMEOUT_S = 300.0
RANK_HEADER = "X-data-parallel-rank"


def ask_rank(server: Server, rank: int, chat: Chat) -> tuple[str, int]:
    """Return the text of a response of this rank, and the decode steps that it took."""
    body = {**chat.body, "return_token_ids": True}
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json=body, headers={RANK_HEADER: str(rank)}, timeout=TIMEOUT_S
    )
    assert answer.status_code == 200, answer.text
    found = answer.json()
    figures = found["metrics"]["speculative_decoding"]
    return found["choices"][0]["message"]["content"], figures["num_spec_steps"]


def totals(server: Server, name: str) -> int:
    return sum(one[name] for one in server.control("stages")["stages"])
