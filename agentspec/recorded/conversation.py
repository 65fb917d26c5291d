"""A conversation as far as it tells which call it is: turns, and digests of them.

What a client may write either way is written one way: text as a string or in parts, ``developer`` or
``system``, the white space of JSON. Ids of tool calls are left out, as each run has its own.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, NamedTuple

from agentspec.recorded.calls import Message, Prompt, said, tool_calls
from agentspec.recorded.varying import mask_varying


class Turn(NamedTuple):
    """One message: who said it, and what, with the calls of tools."""

    role: str
    text: str

    def digest(self) -> bytes:
        """Equal for equal turns."""
        return blake2b(f"{self.role}\0{self.text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def masked(self) -> Turn:
        """Without what varies from run to run."""
        return Turn(self.role, mask_varying(self.text))


def turns(prompt: Prompt) -> list[Turn]:
    """The messages; raw text is what a user says. Raises ConfigError if a message is malformed."""
    if isinstance(prompt, str):
        return [Turn("user", prompt)]
    return [_turn(message) for message in prompt]


def _turn(message: Message) -> Turn:
    role, text = message["role"], said(message)
    if role == "assistant":  # what comes back of it may have lost the white space around its calls
        calls = [[name, _parsed(arguments)] for name, arguments in tool_calls(message)]
        text = "\n".join([text.strip(), *(json.dumps(call, sort_keys=True) for call in calls)])
    return Turn("system" if role == "developer" else role, text)


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
