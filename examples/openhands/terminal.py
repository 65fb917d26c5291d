"""OpenHands' terminal in the sandbox's shell, after that shell is ready.

On a busy machine the shell's first prompts arrive late, and OpenHands takes one for the end of a command. The
agent then sees the output of another command. So this module sends the first commands itself, until each gets
its own output.
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
    """A terminal tool that waits for its shell; the model knows it as ``terminal``."""

    name = TerminalTool.name

    @classmethod
    def create(cls, *args: Any, **params: Any) -> Sequence[TerminalTool]:
        """Return the tool of one conversation."""
        tools: Sequence[TerminalTool] = super().create(*args, **params)
        for tool in tools:
            _wait_until_in_step(tool.executor)
        return tools


def terminal() -> Tool:
    """Return the tool for an agent's tool list."""
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
        time.sleep(PAUSE_S)  # late output arrives now and is not taken for that of the next command
    raise ConfigError(f"the shell {str(SHELL)!r} does not do what it is told")
