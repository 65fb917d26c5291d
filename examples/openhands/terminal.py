"""OpenHands' terminal in the sandbox's shell, once that shell is there.

On a busy machine the shell's first prompts come late, and OpenHands takes one for the end of a command: what
the agent then sees is the output of another one. So the first commands are ours, until each has its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from agentspec.errors import ConfigError
from examples.openhands.workspace import SHELL
from openhands.sdk import Tool, register_tool
from openhands.tools.terminal import TerminalAction, TerminalTool

NUM_IN_STEP = 2
MAX_TRIES = 50
PAUSE_S = 0.2


class SteadyTerminalTool(TerminalTool):  # type: ignore[misc]
    """``terminal`` to the model."""

    name = TerminalTool.name

    @classmethod
    def create(cls, *args: Any, **params: Any) -> Sequence[TerminalTool]:
        """The tool of one conversation."""
        tools: Sequence[TerminalTool] = super().create(*args, **params)
        for tool in tools:
            _wait_until_in_step(tool.executor)
        return tools


def terminal() -> Tool:
    """The tool as an agent names it."""
    register_tool(SteadyTerminalTool.__name__, SteadyTerminalTool)
    params = {"terminal_type": "subprocess", "shell_path": str(SHELL)}
    return Tool(name=SteadyTerminalTool.__name__, params=params)


def _wait_until_in_step(run: Any) -> None:
    num_in_step = 0
    for number in range(MAX_TRIES):
        said = run(TerminalAction(command=f"echo step-{number}")).text.split("\n")[0]
        num_in_step = num_in_step + 1 if said == f"step-{number}" else 0
        if num_in_step == NUM_IN_STEP:
            return
        time.sleep(PAUSE_S)  # what comes late comes now, and is no answer to the next one
    raise ConfigError(f"the shell {str(SHELL)!r} does not do what it is told")
