"""``agentspec run`` with an OpenHands program that has no code for AgentSpec."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PROGRAM = """
import os

from openhands.sdk import LLM, Agent, Conversation

llm = LLM.load_from_env()
conversation = Conversation(agent=Agent(llm=llm), workspace=os.getcwd(), visualizer=None)
conversation.send_message("Do run-1.")
conversation.run()
conversation.generate_title()
conversation.close()
"""
TIMEOUT_S = 240.0


def test_a_conversation_without_a_tag(
    url: str, engine: object, stages: Callable[[], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "agents.py").write_text(PROGRAM)
    run = [sys.executable, "-m", "agentspec", "run", "--url", url, "--workflow", "repair"]
    done = subprocess.run(
        [*run, "--", sys.executable, "agents.py"],
        cwd=tmp_path,
        env={**os.environ, "LLM_MODEL": "openai/scripted"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "agentspec run: no adapter" not in done.stderr
    assert stages() == ["repair/agent", "repair/agent/title"]
    assert len({request.tags.session for request in engine.requests}) == 1  # type: ignore[attr-defined]
