"""Tests of ``agentspec top`` against a real gateway with the embedded engine."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from agentspec.cli import main
from agentspec.commands.top import BARS, snapshots, spark, view
from agentspec.errors import EngineError
from tests.support.serving import TIMEOUT_S, finish, serving

STAGE = "flow/[red]write"  # looks like markup, but must be printed as it is


@pytest.fixture(scope="module")
def url(llama_checkpoint: Path) -> Iterator[str]:
    options = ("--model", str(llama_checkpoint), "--engine", "torch", "--threads", "1", "--api-key", "k=acme")
    with serving(*options, "--price", "0.2") as (_, base):  # independent of step times on this machine
        headers = {"authorization": "Bearer k", "x-agentspec-stage": STAGE}
        for _ in range(2):
            body = {"prompt": "SELECT name FROM", "max_tokens": 32, "temperature": 0, "ignore_eos": True}
            answer = httpx.post(f"{base}/completions", json=body, headers=headers, timeout=TIMEOUT_S)
            assert answer.status_code == 200
        yield base


def test_one_table_without_a_terminal(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--once"], []):
        assert main(["top", "--url", url, "--key", "k", *options]) == 0
        head, row, total, last = capsys.readouterr().out.rstrip().splitlines()
        assert head.split()[:3] == ["stage", "tokens/step", "now"]
        assert row.startswith(STAGE)
        assert float(row.split()[3]) > 1  # since the start: the second response was drafted from the first
        assert row.split()[1:] == total.split()[1:]
        assert total.startswith("all")
        assert last == "0 calls under way"


@pytest.mark.parametrize(
    ("url_of", "key", "said"),
    [
        ("{}", None, "the server refused: an API key is needed"),
        ("{}", "wrong", "the server refused: this API key is not known"),
        ("http://127.0.0.1:9", "k", "no answer from http://127.0.0.1:9/agentspec/events"),
        ("no url", "k", "no answer from"),
    ],
)
def test_what_goes_wrong_is_said(
    url: str, url_of: str, key: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [] if key is None else ["--key", key]
    assert main(["top", "--url", url_of.format(url), *options]) == 1
    assert f"agentspec: error: {said}" in capsys.readouterr().err


def test_the_end_of_the_server_is_told(llama_checkpoint: Path) -> None:
    options = ("--model", str(llama_checkpoint), "--engine", "torch", "--threads", "1", "--grace-s", "600")
    with serving(*options) as (process, base):
        told = snapshots(base, None)
        assert next(told)["stages"] == []
        process.send_signal(signal.SIGTERM)
        with pytest.raises(EngineError, match="has ended"):
            list(told)
        assert finish(process) == (0, "")


@pytest.mark.parametrize(
    ("series", "shown"),
    [
        ([], ""),
        ([1.0, None, 2.0], f"{BARS[0]} {BARS[-1]}"),
        ([1.0, 8.0, 4.5], f"{BARS[0]}{BARS[-1]}{BARS[4]}"),
        ([9.0, *[1.0] * 20], BARS[0] * 20),
    ],
)
def test_sparks(series: list[float | None], shown: str) -> None:
    assert spark(series) == shown


TOTAL: dict[str, Any] = {
    "series": [],
    "accepted_per_step_now": None,
    "accepted_per_step_recent": None,
    "accepted_per_step": None,
    "requests_per_s": 0.0,
    "tokens_per_s": 0.0,
    "acceptance_rate": 0.0,
    "num_draft_tokens": 0,
    "num_accepted_tokens": 0,
    "saved_s": None,
    "tree_bytes": 0,
    "num_running": 3,
}


def test_a_view_of_nothing_and_of_too_much() -> None:
    for width, has_trend in ((132, True), (80, False)):
        out = io.StringIO()
        told = {"stages": [], "total": TOTAL, "num_stages_left_out": 7}
        Console(file=out, width=width).print(view(told, width))
        assert out.getvalue().rstrip().endswith("3 calls under way, 7 more stages")
        assert ("tokens/step" in out.getvalue()) is has_trend
        assert max(map(len, out.getvalue().splitlines())) <= width
