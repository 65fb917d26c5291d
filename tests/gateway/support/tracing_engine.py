"""A stand-in for vLLM that returns traces of decode steps."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentspec.vllm_plugin.control import Control
from tests.gateway.support.scripted import TRACE

STEPS = json.loads(json.dumps([step.describe() for step in TRACE]))


@dataclass
class TracingEngine:
    """A stand-in for vLLM with the plugin. It keeps traces of calls that request one, and returns them.

    ``num_late`` is the number of times that it has no trace yet.
    """

    seen: list[dict[str, Any]] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    traces: set[tuple[str, str]] = field(default_factory=set)
    num_late: int = 0
    steps: list[Any] = field(default_factory=lambda: STEPS)
    has_plugin: bool = True

    @property
    def engine_core(self) -> Any:
        return self

    @property
    def app(self) -> Starlette:
        async def complete(request: Request) -> JSONResponse:
            xargs = (await request.json())["vllm_xargs"]
            self.seen.append(xargs)
            if "agentspec_trace" in xargs:
                self.traces.add((xargs["agentspec_tenant"], xargs["agentspec_trace"]))
            choice = {"index": 0, "message": {"role": "assistant", "content": "Hello, wörld!"}}
            return JSONResponse({"choices": [choice], "usage": {"completion_tokens": 4, "prompt_tokens": 1}})

        async def models(request: Request) -> JSONResponse:
            return JSONResponse({"data": [{"id": "scripted"}]})

        routes = [
            Route("/v1/chat/completions", complete, methods=["POST"]),
            Route("/v1/models", models),
        ]
        app = Starlette(routes=routes, middleware=[Middleware(Control)] if self.has_plugin else [])
        app.state.engine_client = self
        return app

    async def call_utility_all_async(
        self, utility: str, method: str, timeout_s: None, args: tuple[str, str, str], options: None
    ) -> list[list[str | None]]:
        command, given = args[0], json.loads(args[1])
        if command != "trace":
            return [[json.dumps({"agentspec": "0.1.0", "stages": []})]]
        self.asked.append(given)
        self.num_late -= 1
        ids = {(None, known) for _, known in self.traces} | self.traces
        is_kept = self.num_late < 0 and (given["tenant"], given["id"]) in ids
        return [[None, json.dumps({"steps": self.steps if is_kept else None})]]
