"""Fixtures for the real smolagents, and an engine that does what its agents ask of a model."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from agentspec.generation import GenerationDelta, GenerationRequest
from tests.gateway.support.live import serving_engine
from tests.gateway.support.scripted import ScriptedEngine

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # LiteLLM must not use the network
CODE = re.compile(r"Run `(.+?)`")


class WorkingEngine(ScriptedEngine):
    """An engine that calls the first tool or runs the code of the instructions, and then answers."""

    def _script(self, request: GenerationRequest) -> Iterator[GenerationDelta]:
        return ScriptedEngine(steps=(answer_to(request),))._script(request)


def answer_to(request: GenerationRequest) -> str:
    messages: Any = request.prompt
    is_done = any("Observation" in str(message["content"]) for message in messages[1:])
    if request.tools:
        tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request.tools}
        others = [name for name in tools if name != "final_answer"]
        name = others[0] if others and not is_done else "final_answer"
        call = json.dumps({"name": name, "arguments": dict.fromkeys(tools[name]["required"], "hi")})
        return f"<tool_call>\n{call}\n</tool_call>"
    asked = CODE.search(str(messages[0]["content"]))
    return f"<code>\n{asked[1] if asked and not is_done else 'final_answer(1)'}\n</code>"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Any, str]]:
    """Yield an engine and the base URL of the gateway in front of it."""
    engine = WorkingEngine()
    with serving_engine(engine) as root:
        yield engine, f"{root}/v1"
