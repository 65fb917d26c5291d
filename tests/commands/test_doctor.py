from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agentspec.cli import main
from agentspec.vllm_plugin.checks import installed_version


def test_a_line_for_each_check_and_what_is_wrong_as_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["doctor", "--port", port]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("ok ", "warning ", "problem ")) for line in lines)
    assert [line for line in lines if line.startswith("problem")] == [
        f"problem  port: {port}: Address already in use; choose another: agentspec serve --port N"
    ]


@pytest.mark.skipif(installed_version() is not None, reason="asks vLLM too, which takes long")
def test_without_vllm_there_is_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", "0"]) == 0
    assert "warning  vLLM: not installed" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["torch", "llguidance"])
@pytest.mark.skipif(installed_version() is not None, reason="asks vLLM too, which takes long")
def test_what_serve_could_not_start_is_a_problem_with_its_repair(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # affects every interpreter started after this
    (tmp_path / f"{missing}.py").write_text(f'raise ModuleNotFoundError("No module named {missing!r}")')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["doctor", "--port", "0"]) == 1
    [problem] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem")]
    assert problem.startswith(
        "problem  embedded engine: agentspec serve can't start it: ModuleNotFoundError: "
    )
    assert f"No module named {missing!r}" in problem
    assert problem.endswith("; pip install 'agentspec-serving[engine]'")


@pytest.mark.skipif(installed_version() is not None, reason="vLLM takes names")
def test_a_model_that_serve_could_not_load_without_vllm(
    llama_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--port", "0", "--model", "Qwen/Qwen3-8B"]) == 1
    assert "problem  model: 'Qwen/Qwen3-8B' is no folder here" in capsys.readouterr().out
    assert main(["doctor", "--port", "0", "--model", str(llama_checkpoint)]) == 0


def test_an_engine_elsewhere_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", "0", "--engine-url", "http://127.0.0.1:9"]) == 1
    assert "problem  engine: http://127.0.0.1:9 can't be reached" in capsys.readouterr().out
