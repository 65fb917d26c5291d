"""A scripted engine that follows its request: calls a tool, fills in a schema, or greets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentspec.generation import GenerationDelta, GenerationRequest
from tests.gateway.support.scripted import STEPS, ScriptedEngine

JOKE = {"setup": "Why?", "punchline": "Because."}


class ObligingEngine(ScriptedEngine):
    """A scripted engine with tool calls in the form of Hermes.

    An argument is the quoted text of the question, if there is any.
    """

    def _script(self, request: GenerationRequest) -> Iterator[GenerationDelta]:
        return ScriptedEngine(steps=steps_for(request))._script(request)


def steps_for(request: GenerationRequest) -> tuple[str, ...]:
    """Return the answer, in parts."""
    messages = request.prompt
    if request.sampling.json_schema is not None:
        text = json.dumps(filled(request.sampling.json_schema) or JOKE)
    elif request.tools and isinstance(messages, list) and messages[-1]["role"] != "tool":
        forced = request.sampling.grammar or ""
        functions = [tool["function"] for tool in request.tools]
        called = next((one for one in functions if one["name"] in forced), functions[0])
        arguments = filled(called.get("parameters") or {}, quoted_in(messages[-1]))
        call = json.dumps({"name": called["name"], "arguments": arguments}, ensure_ascii=False)
        text = f"<tool_call>\n{call}\n</tool_call>"
    elif marks := marks_in(messages[-1]) if isinstance(messages, list) else []:
        text = "".join(f"{mark}\nWhy?\n\n" for mark in marks)
    else:
        return STEPS
    return text[:20], text[20:40], text[40:]


def marks_in(message: Mapping[str, Any]) -> list[str]:
    """Return the marks that DSPy wants before each field of the answer."""
    _, _, asked = str(message["content"]).partition("Respond with the corresponding output fields")
    return re.findall(r"\[\[ ## \w+ ## \]\]", asked)


def quoted_in(message: Mapping[str, Any]) -> str:
    """Return the text in single quotes, or a default."""
    found = re.search(r"'([^']+)'", str(message["content"]))
    return found[1] if found else "Paris"


def filled(schema: Mapping[str, Any], text: str = "Why?") -> dict[str, Any]:
    """Return an object that satisfies a simple schema."""
    properties = schema.get("properties", {})
    by_type = {"integer": 3, "boolean": True}
    return {name: by_type.get(one.get("type"), text) for name, one in properties.items()}
