"""``agentspec serve --dry-run`` prints the values in force and makes every check that a start makes."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentspec.cli import main
from agentspec.models import bundled_model_dir

CAPSYS = pytest.CaptureFixture[str]
CALL = json.dumps({"prompt": "a", "response": "b"})


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield str(taken.getsockname()[1])


def shown(capsys: CAPSYS, *options: str) -> dict[str, Any]:
    assert main(["serve", "--dry-run", "--port", "0", *options]) == 0
    values: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return values


def test_values_of_file_environment_and_options(
    tmp_path: Path, capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "agentspec.yaml"
    file.write_text(f"keys: [{{sha256: {'ab' * 32}, tenant: acme}}]\nengine: {{slots: 3, max_draft: 5}}\n")
    monkeypatch.setenv("AGENTSPEC_ENGINE__MAX_DRAFT", "7")
    monkeypatch.setenv("AGENTSPEC_API_KEYS", "k1=bolt,k2=acme")
    options = ("--config", str(file), "--api-key", "k3", "--admin-key", "boss", "--rule", "paper")
    values = shown(capsys, *options)
    assert values["keys"] == {"number": 4, "by_tenant": {"acme": 2, "bolt": 1, "default": 1}}
    assert values["admin_key_sha256"] == "(hidden)"
    engine = values["engine"]
    assert (engine["engine"], engine["reason"]) == ("torch", "no --model was given")
    assert (engine["slots"], engine["max_draft"], engine["rule"]) == (3, 7, "paper")
    assert (engine["served_model_name"], engine["device"]) == ("agentspec-sql", "cpu")


@pytest.mark.usefixtures("vllm")
def test_the_options_that_vllm_gets(capsys: CAPSYS) -> None:
    options = ("--max-num-seqs", "8", "--hf-token", "s3cret", "--some-api-key=s3cret", "-tp", "2")
    engine = shown(capsys, "--model", "org/name", "--max-model-len", "512", *options)["engine"]
    assert engine["engine"] == "vllm"
    assert engine["reason"] == "--model was given and vLLM 0.32.0 is installed"
    assert (engine["model"], engine["max_model_len"], engine["max_draft"]) == ("org/name", 512, 15)
    hidden = ["--hf-token", "(hidden)", "--some-api-key=(hidden)"]
    assert engine["arguments"] == ["--max-num-seqs", "8", *hidden, "-tp", "2"]


def ended(arguments: list[str]) -> Any:
    """Return the exit status, including one that argparse raises."""
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code


def refused(capsys: CAPSYS, *options: str) -> str:
    """Return the error output, which is the same for a dry run and a start."""
    told = []
    for dry_run in (["--dry-run"], []):
        assert ended(["serve", *dry_run, *options]) in (1, 2)
        told.append(capsys.readouterr().err)
    assert told[0] == told[1]
    assert "agentspec" in told[0]
    return told[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--slots", "0"], "argument --slots: "),
        (["--threads", "x"], "argument --threads: "),
        (["--kv-cache-mb", "0"], "argument --kv-cache-mb: "),
        (["--max-model-len", "-5"], "argument --max-model-len: "),
        (["--max-draft", "1025"], "argument --max-draft: must be less than or equal to 1024, not '1025'"),
        (["--stage-budget-mb", "0"], "argument --stage-budget-mb: "),
        (["--device", "gpu"], "argument --device: must match pattern"),
        (["--dtype", "half"], "--dtype must be one of float64, float32, bfloat16, float16, not 'half'"),
        (["--slot", "3"], "unrecognized arguments: --slot 3; did you mean --slots for --slot?"),
        (["--unknow"], "unrecognized arguments: --unknow\n"),
        (["--max-drfat=3"], "did you mean --max-draft for --max-drfat?"),
        (["--model", "gone"], "--model 'gone' is no folder here"),
        (["--model", "empty"], "can't read 'empty/config.json'"),
        (["--model", "other"], "unknown architecture ['GPT2LMHeadModel']"),
        (["--model", "words"], "no 'tokenizer.json' in 'words'"),
        (["--model", "weights"], "no weights in 'weights'"),
        (["--engine", "replay"], "give it --trace FILE"),
        (["--engine", "replay", "--trace", "gone.jsonl"], "can't read 'gone.jsonl'"),
        (["--engine", "replay", "--trace", "broken.jsonl"], "broken.jsonl:2: "),
        (["--record", "gone/calls.jsonl"], "can't record into 'gone/calls.jsonl': No such file"),
        (["--record", "empty"], "can't record into 'empty': Is a directory"),
        (["--forest-file", "gone/forest"], "forest file 'gone/forest': there is no such folder"),
        (["--forest-file", "slots.yaml"], "'slots.yaml' is no forest file and stays as it is"),
        (["--forest-file", "taken"], "can't save the forest to 'taken': Is a directory"),
        (["--corpus", "here", "--forest-file", "forest"], "--forest-file can't be used with --corpus"),
        (["--corpus", "here", "--forest-folder", "."], "--forest-folder can't be used with --corpus"),
        (["--corpus", "here", "--strict-forest"], "--strict-forest can't be used with --corpus"),
        (["--corpus", "http://host"], "'http://host' is no place for a corpus: name a folder, redis://"),
        (["--corpus", "s3://user:secret@host/x"], "'s3://...@host/x' is no place for a corpus"),
        (["--corpus", ""], "'' is no place for a corpus"),
        (["--corpus-stages", "a=none"], "--corpus-stages has no effect without --corpus: set --corpus"),
        (
            ["--corpus", "here", "--draft", "off"],
            "nothing is learned with --draft off: remove it or --corpus",
        ),
        (["--draft-model", "words"], "--draft-model is not for the embedded one"),
        (["--hybrid-threshold", "2"], "--hybrid-threshold was removed: "),
        (["--host", "0.0.0.0"], "--allow-open"),
        (["--zero-hop"], "--zero-hop is not for the embedded one"),
        (["--config", "arguments.yaml"], "the setting engine.arguments is not for the embedded one"),
        (["--config", "foreign.yaml"], "the setting engine.zero_hop is not for the embedded one"),
        (["--config", "slots.yaml"], "slots.yaml:2: engine.slots: "),
        (["--config", "discovery.yaml"], "discovery file 'gone/stages': there is no such folder"),
    ],
)
def test_what_a_start_refuses_a_dry_run_refuses(
    options: list[str], said: str, tmp_path: Path, capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("other").mkdir()
    Path("taken.saving").mkdir()
    for name in ("words", "weights"):
        Path(name).mkdir()
        shutil.copy(bundled_model_dir() / "config.json", name)
    Path("weights/tokenizer.json").write_text("{}")
    Path("other/config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    Path("broken.jsonl").write_text(f"{CALL}\n{{\n")
    Path("arguments.yaml").write_text("engine: {arguments: [--max-num-seqs, '8']}")
    Path("foreign.yaml").write_text("engine: {zero_hop: true}")
    Path("slots.yaml").write_text("engine:\n  slots: 0\n")
    Path("discovery.yaml").write_text("discovery: {path: gone/stages}")
    before = sorted(tmp_path.rglob("*"))
    assert said in refused(capsys, "--port", "0", "--engine", "torch", *options)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_key_of_the_corpus_that_is_none(capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_CORPUS_KEY", "secret")
    told = refused(capsys, "--corpus", "here")
    assert "$AGENTSPEC_CORPUS_KEY holds no key of 32 bytes" in told
    assert "secret" not in told


def test_a_missing_package_of_the_corpus(capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "agentspec.extras.find_spec", lambda name: None if name == "redis" else find_spec(name)
    )
    told = refused(capsys, "--corpus", "here")
    assert "this needs redis: pip install 'agentspec-serving[corpus]'" in told


def test_the_place_of_the_corpus_without_its_password(
    capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTSPEC_ENGINE__CORPUS", "redis://user:secret@host:1/0")
    assert shown(capsys)["engine"]["corpus"] == "redis://user@host:1/0"


def test_stages_that_are_not_shared(capsys: CAPSYS) -> None:
    stages = ("--corpus-stages", "support=none,support/billing=fleet")
    engine = shown(capsys, "--corpus", "redis://store:1/0", *stages)["engine"]
    assert engine["corpus_stages"] == {"support": "none", "support/billing": "fleet"}


def test_a_port_that_is_taken(taken_port: str, capsys: CAPSYS) -> None:
    assert f"can't listen on 127.0.0.1:{taken_port}: " in refused(capsys, "--port", taken_port)


def test_a_hub_name_without_vllm(capsys: CAPSYS) -> None:
    told = refused(capsys, "--port", "0", "--model", "Qwen/Qwen3-8B")
    assert "--model 'Qwen/Qwen3-8B' is no folder here" in told
    assert "a model hub's names need vLLM: pip install vllm" in told


def test_files_that_could_be_written_are_not_there_afterwards(
    tmp_path: Path, capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTSPEC_DISCOVERY__PATH", "stages.sqlite")
    shown(capsys, "--record", "calls.jsonl", "--forest-file", "forest")
    assert list(tmp_path.iterdir()) == []
    Path("link").symlink_to("made-later")
    shown(capsys, "--record", "link")
    Path("link").unlink()
    Path("calls.jsonl").write_text("{half")  # only a start repairs this
    shown(capsys, "--record", "calls.jsonl")
    Path("stages.sqlite").touch()
    shown(capsys)
    left = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert left == {"calls.jsonl": "{half", "stages.sqlite": ""}


def test_torch_is_neither_imported_nor_needed_elsewhere(llama_checkpoint: Path) -> None:
    code = """
import sys
from agentspec.cli import main
status = main(sys.argv[1:])
print(f"\\nended: {status} {'torch' in sys.modules}")
"""
    options = ["serve", "--port", "0", "--engine", "torch", "--model", str(llama_checkpoint), "--dry-run"]
    run = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True, check=True)
    assert run.stdout.endswith("ended: 0 False\n"), run.stderr
