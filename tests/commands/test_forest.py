"""Tests of ``agentspec forest`` against a real gateway with the embedded engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentspec.cli import main
from agentspec.commands.gateway_call import Gateway
from tests.support.serving import serving

TEXT = "SELECT name, price FROM items WHERE price > 10 ORDER BY price"


@pytest.fixture(scope="module")
def url(llama_checkpoint: Path) -> Iterator[str]:
    keys = [f"--api-key={tenant}-key={tenant}" for tenant in ("acme", "bolt", "solo")]
    options = ("--engine", "torch", "--threads", "1", "--admin-key", "boss")
    with serving("--model", str(llama_checkpoint), *options, *keys) as (_, base):
        yield base.removesuffix("/v1")


def forest(url: str, *arguments: str, key: str = "acme-key") -> int:
    return main(["forest", *arguments, "--url", url, "--key", key])


def test_a_stage_is_warmed_told_and_forgotten(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_text("\n".join(json.dumps({"stage": "flow/sql", "response": TEXT}) for _ in range(3)))
    assert forest(url, "warm", str(file), key="solo-key") == 0
    assert capsys.readouterr().out.startswith("learned 3 outputs: ")
    complete(url, "flow/sql", TEXT[:12], "solo-key")
    assert forest(url, "stats", key="solo-key") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["stage", "requests"]
    assert row.split()[:3] == ["flow/sql", "1", "8"]
    assert forest(url, "stats", "--json", key="solo-key") == 0
    [told] = json.loads(capsys.readouterr().out)["stages"]
    assert (told["tenant"], told["stage"]) == ("solo", "flow/sql")
    assert told["tree_bytes"] > 0
    assert forest(url, "evict", "flow/sql", key="solo-key") == 0
    assert capsys.readouterr().out == f"forgot flow/sql: {told['tree_bytes']} bytes\n"


def test_old_figures_are_shown_with_their_age(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for age_s in (0.4, 37.2):
        monkeypatch.setattr(Gateway, "call", lambda *_, age_s=age_s: {"age_s": age_s, "stages": []})
        assert main(["forest", "stats"]) == 0
        shown.append(capsys.readouterr().out)
    assert "old" not in shown[0]
    assert "37 s old" in shown[1]


def test_an_operator_sees_all_tenants(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("acme-key", "bolt-key"):
        complete(url, "flow/both", "SELECT", key)
    assert forest(url, "stats", key="boss") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("tenant: stage ")
    assert {"acme: flow/both", "bolt: flow/both"} <= {row.partition("  ")[0] for row in rows}
    assert main(["top", "--once", "--url", url, "--key", "boss"]) == 0
    shown = capsys.readouterr().out
    assert "acme: flow/both" in shown
    assert "bolt: flow/both" in shown
    assert main(["stages", "list", "--url", url, "--key", "boss"]) == 0


def test_a_tenant_sees_nothing_of_another_and_is_no_operator(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complete(url, "flow/own", "SELECT")
    assert forest(url, "stats", key="bolt-key") == 0
    assert "flow/own" not in capsys.readouterr().out
    assert forest(url, "save", "--path", str(tmp_path / "forest")) == 1
    assert "agentspec: error: the server refused: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ['{"stage": "a//b", "response": "x"}', '{"response": 7}', "no json"])
def test_a_file_that_is_none_is_refused(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_text(f'{{"stage": "a", "response": "x"}}\n{line}\n')
    assert forest(url, "warm", str(file)) == 1
    assert "the server refused: line 2: " in capsys.readouterr().err
    assert forest(url, "warm", str(tmp_path / "gone.jsonl")) == 1
    assert "gone.jsonl': No such file" in capsys.readouterr().err


@pytest.mark.parametrize("server", ["http://127.0.0.1:9", "gpu-box"])
def test_nobody_there(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert forest(server, "stats") == 1
    assert f"agentspec: error: no answer from {server}" in capsys.readouterr().err


def complete(url: str, stage: str, prompt: str, key: str = "acme-key") -> dict[str, Any]:
    answer = httpx.post(
        f"{url}/v1/completions",
        json={"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True},
        headers={"authorization": f"Bearer {key}", "x-agentspec-stage": stage},
        timeout=60,
        trust_env=False,
    )
    told: dict[str, Any] = answer.raise_for_status().json()
    return told
