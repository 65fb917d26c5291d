"""``agentspec run`` with a LangGraph program that has no code for AgentSpec."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = """
from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph

model = ChatOpenAI(model="scripted")


class State(TypedDict, total=False):
    text: str


def extract(state):
    return {"text": model.invoke("Features").text}


def combine(state):
    return {"text": "".join(chunk.text for chunk in model.stream(state["text"]))}


graph = StateGraph(State).add_node("extract", extract).add_node("combine", combine)
graph.add_edge(START, "extract").add_edge("extract", "combine")
print(graph.compile().invoke({})["text"])
"""
TIMEOUT_S = 120.0


def test_a_graph_without_a_tag(
    url: str, engine: object, stages: Callable[[], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "graph.py").write_text(PROGRAM)
    run = [sys.executable, "-m", "agentspec", "run", "--url", url, "--workflow", "agentic_sql"]
    done = subprocess.run(
        [*run, "--", sys.executable, "graph.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("OPENAI")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Hello, wörld!\n"
    assert stages() == ["agentic_sql/extract", "agentic_sql/combine"]
    assert len({request.tags.session for request in engine.requests}) == 1  # type: ignore[attr-defined]
    rows = [line.split()[:2] for line in done.stderr.splitlines()[2:]]
    assert rows == [["agentic_sql/extract", "1"], ["agentic_sql/combine", "1"], ["all", "2"]]


def test_the_processes_of_a_run_are_one_session(url: str, engine: Any, tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(PROGRAM)
    both = f"{sys.executable} graph.py && {sys.executable} graph.py"
    subprocess.run(
        [sys.executable, "-m", "agentspec", "run", "--url", url, "--", "sh", "-c", both],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("OPENAI")},
        check=True,
        timeout=TIMEOUT_S,
    )
    assert [request.tags.stage.name for request in engine.requests] == ["extract", "combine"] * 2
    (session,) = {request.tags.session for request in engine.requests}
    assert session.startswith("run-")
