"""A conversation as a key of a recorded call: turns, and digests of them.

Equivalent spellings are normalized: text as a string or in parts, ``developer`` or ``system``, the white
space of JSON. Ids of tool calls are left out, as they differ between runs.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, NamedTuple

from agentspec.recorded.calls import Message, Prompt, said, tool_calls
from agentspec.recorded.varying import mask_varying


class Turn(NamedTuple):
    """One message: its role, and its text with its tool calls."""

    role: str
    text: str

    def digest(self) -> bytes:
        """Return a digest of the turn, equal for equal turns."""
        return blake2b(f"{self.role}\0{self.text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def masked(self) -> Turn:
        """Return the turn without the parts that vary between runs."""
        return Turn(self.role, mask_varying(self.text))


def turns(prompt: Prompt) -> list[Turn]:
    """Return the messages as turns. Raw text is a user's turn. Raises ConfigError for a malformed message."""
    if isinstance(prompt, str):
        return [Turn("user", prompt)]
    return [_turn(message) for message in prompt]


def _turn(message: Message) -> Turn:
    role, text = message["role"], said(message)
    if role == "assistant":  # a message sent back may have lost the white space around its calls
        calls = [[name, _parsed(arguments)] for name, arguments in tool_calls(message)]
        text = "\n".join([text.strip(), *(json.dumps(call, sort_keys=True) for call in calls)])
    return Turn("system" if role == "developer" else role, text)


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
