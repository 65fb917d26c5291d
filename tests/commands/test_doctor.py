from __future__ import annotations

import socket

import pytest

from agentspec.cli import main
from agentspec.vllm_plugin.versions import installed_version


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


def test_an_engine_elsewhere_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", "0", "--engine-url", "http://127.0.0.1:9"]) == 1
    assert "problem  engine: http://127.0.0.1:9 can't be reached" in capsys.readouterr().out
