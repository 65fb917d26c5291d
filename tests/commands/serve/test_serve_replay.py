"""Tests of ``agentspec serve --engine replay`` as a process."""

from __future__ import annotations

import gzip
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentspec.cli import main
from tests.support.checkpoints import make_tokenizer
from tests.support.serving import finish, serving

ASKED = [{"role": "user", "content": "Wie groß? \N{PARTY POPPER}"}]
CALL = {"messages": ASKED, "response": {"role": "assistant", "content": "5 größer als 3"}}


def answer(base: str, path: str, **body: Any) -> Any:
    return httpx.post(f"{base}{path}", json=body, timeout=60).json()


def test_the_bundled_model_says_what_is_recorded(tmp_path: Path) -> None:
    trace = tmp_path / "calls.jsonl.gz"
    trace.write_bytes(gzip.compress(json.dumps(CALL).encode()))
    with serving("--engine", "replay", "--trace", str(trace)) as (process, base):
        for _ in range(2):
            said = answer(base, "/chat/completions", messages=ASKED, model="what was recorded")
            assert said["choices"][0]["message"]["content"] == "5 größer als 3"
        card = httpx.get(f"{base}/models").json()["data"][0]
        assert (card["id"], card["max_model_len"]) == ("agentspec-sql", 32768)
        assert finish(process, signal.SIGTERM) == (0, "")


def test_what_was_recorded_is_replayed(llama_checkpoint: Path, tmp_path: Path) -> None:
    trace, model = str(tmp_path / "calls.jsonl"), ("--model", str(llama_checkpoint), "--threads", "1")
    with serving(*model, "--engine", "torch", "--record", trace) as (process, base):
        said = answer(base, "/chat/completions", messages=ASKED, max_tokens=9, temperature=0)["choices"]
        assert finish(process, signal.SIGTERM)[0] == 0
    with serving(*model, "--engine", "replay", "--trace", trace, "--draft", "off") as (process, base):
        assert answer(base, "/chat/completions", messages=ASKED)["choices"] == said


def test_a_shape_without_weights(llama_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((llama_checkpoint / "config.json").read_text())
    make_tokenizer(tmp_path)
    trace = tmp_path / "calls.jsonl"
    trace.write_text(json.dumps(CALL))
    options = ("--model", str(tmp_path), "--engine", "replay", "--trace", str(trace), "--threads", "1")
    with serving(*options, "--max-model-len", "999") as (process, base):
        said = answer(base, "/chat/completions", messages=ASKED)
        assert said["choices"][0]["message"]["content"] == "5 größer als 3"
        assert httpx.get(f"{base}/models").json()["data"][0]["max_model_len"] == 999
        status, log = finish(process, signal.SIGTERM)
        assert status == 0
        assert "they are random" in log


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "can't read"),
        ("", "no calls in"),
        (json.dumps(CALL) + "\n\n{broken", "calls.jsonl:3: Expecting property name"),
        ("[1]", "calls.jsonl:1: a record is a JSON object"),
        (json.dumps({"prompt": "a"}), "calls.jsonl:1: 'response' must be"),
    ],
)
def test_a_malformed_file(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "calls.jsonl"
    if text is not None:
        trace.write_text(text)
    assert main(["serve", "--port", "0", "--engine", "replay", "--trace", str(trace)]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "replay"], "give it --trace FILE"),
        (["--engine", "torch", "--trace", "calls.jsonl"], "--trace is not for the embedded one"),
        (["--engine", "replay", "--trace", "a", "--zero-hop"], "--zero-hop is not for"),
    ],
)
def test_options_that_do_not_fit(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", *options]) == 1
    assert said in capsys.readouterr().err
