"""Fixtures: tiny traces and matching sizes."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.core.sizes import Sizes
from benchmarks.gateway.sides import running_stub
from benchmarks.vllm.server import Server

WORDS = "select from where name city count orders customer join the answer is plan tool call result".split()


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two files of 40 sessions each. Every response names its session."""
    folder = tmp_path_factory.mktemp("traces")
    rng = random.Random(5)
    for name in ("first", "second"):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as lines:
            for session in range(40):
                for step in range(3):
                    said = " ".join(rng.choices(WORDS, k=60))
                    call = {
                        "session": f"{session}",
                        "prompt": " ".join(rng.choices(WORDS, k=700 * (step + 1))),
                        "response": f"{name} session {session} step {step}: {said}",
                    }
                    lines.write(json.dumps(call) + "\n")
    return folder


@pytest.fixture(scope="session")
def tiny() -> Sizes:
    return Sizes(
        corpus_tokens=3_000,
        copies=3,
        text_tokens=34_000,
        output_tokens=500,
        num_history=20,
        prompt_tokens=200,
        num_steps=2,
        num_starts=1,
        num_memory_requests=2,
    )


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run the stub that plays the engine behind the gateway."""
    with running_stub(tmp_path_factory.mktemp("stub")) as server:
        yield server


@pytest.fixture
def without_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the peer appear not to be installed."""
    monkeypatch.delitem(sys.modules, "benchmarks.core.arctic", raising=False)
    monkeypatch.setitem(sys.modules, "arctic_inference.suffix_decoding", None)
