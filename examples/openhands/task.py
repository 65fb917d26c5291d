"""A repository with a bug, and its hand-written answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentspec.errors import ConfigError

HERE = Path(__file__).parent
PLACE = "$WORKSPACE"
QUESTION = """\
Some tests of the repository in $WORKSPACE fail. Find the bug, fix it in the code and not in the tests, and \
add a regression test. Run the tests with `python -m unittest`. Then have the reviewer look at your change, \
and finish with a summary of the cause, the fix and the test."""


@dataclass(frozen=True, slots=True)
class Task:
    """A repair task; ``files`` is the folder with the repository before the repair."""

    name: str
    files: Path

    def question(self, workspace: Path) -> str:
        """Return the agent's instructions."""
        return QUESTION.replace(PLACE, str(workspace))

    def answers(self, workspace: Path) -> dict[str, list[dict[str, Any]]]:
        """Return the hand-written messages by role, in order."""
        text = (HERE / "answers" / f"{self.name}.yaml").read_text(encoding="utf-8")
        by_role = yaml.safe_load(text.replace(PLACE, str(workspace)))
        condensed = [{"role": "assistant", "content": by_role.pop("condenser")}]
        return {role: [_message(one) for one in steps] for role, steps in by_role.items()} | {
            "condenser": condensed
        }


def _message(step: dict[str, Any]) -> dict[str, Any]:
    """Return the step as an OpenAI message; the server adds an id to the tool call."""
    function = {"name": step["tool"], "arguments": json.dumps(step["arguments"], ensure_ascii=False)}
    return {
        "role": "assistant",
        "content": step.get("say", ""),
        "tool_calls": [{"type": "function", "function": function}],
    }


def tasks(names: Iterable[str] = ()) -> list[Task]:
    """Return the tasks with these names, or all tasks without names.

    Raises:
        ConfigError: a name is unknown.
    """
    every = {path.name: Task(path.name, path) for path in sorted((HERE / "repositories").iterdir())}
    unknown = [name for name in names if name not in every]
    if unknown:
        raise ConfigError(f"there is no task {unknown[0]!r}: there are {', '.join(every)}")
    return [every[name] for name in names] or list(every.values())
