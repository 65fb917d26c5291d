"""A server that returns hand-written answers and records its calls, used to record a session.

The answers are in ``answers/``, by task and role. The stage tag of a call determines the role. The workspace
named in the conversation determines the task.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentspec.adapters.openhands import instrument
from agentspec.wire import STAGE_HEADER, decode_stage
from examples.openhands.repair import Repair, model_at, repair
from examples.openhands.task import Task
from examples.openhands.workspace import ROOT

WORKFLOW = "repair"

_WORKSPACE = re.compile(re.escape(str(ROOT)) + r"/([\w-]+)")


class Author:
    """A server of each role's answers, in order and per task. ``calls`` are the lines of a record."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._answers = {task.name: task.answers(ROOT / task.name) for task in tasks}
        self._num_given: Counter[tuple[str, str]] = Counter()
        self.calls: list[str] = []

    async def answer(self, request: Request) -> JSONResponse:
        """Handle POST /v1/chat/completions."""
        body = await request.json()
        stage = decode_stage(request.headers[STAGE_HEADER])
        found = _WORKSPACE.search(json.dumps(body["messages"][1:]))
        message = self._next(found[1] if found else "", stage.rpartition("/")[2])
        if message is None:
            return JSONResponse({"error": {"message": f"there is no answer for {stage!r}"}}, 404)
        called = bool(message.get("tool_calls"))
        record = {"messages": body["messages"], "response": message, "stage": stage}
        self.calls.append(json.dumps(record, ensure_ascii=False))
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if called else "stop"}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        head = {"id": f"written-{len(self.calls)}", "object": "chat.completion", "created": 0}
        return JSONResponse({**head, "model": body["model"], "choices": [choice], "usage": usage})

    def _next(self, task: str, role: str) -> dict[str, Any] | None:
        written = self._answers.get(task, {}).get(role, [])
        number = self._num_given[task, role]
        if number >= len(written):
            return None
        self._num_given[task, role] += 1
        message = dict(written[number])
        if "tool_calls" in message:
            message["tool_calls"] = [
                {**call, "id": f"call_{role}_{number}"} for call in message["tool_calls"]
            ]
        return message


@contextmanager
def _serving(author: Author) -> Iterator[str]:
    """Serve the author's answers and yield the base URL."""
    app = Starlette(routes=[Route("/v1/chat/completions", author.answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()


def record(tasks: list[Task], file: Path) -> list[Repair]:
    """Run OpenHands with the written answers of these tasks and write every call to ``file``."""
    author = Author(tasks)
    undo = instrument(workflow=WORKFLOW)
    try:
        with _serving(author) as url:
            repairs = [repair(task, model_at(url, "written", "none")) for task in tasks]
    finally:
        undo()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{call}\n" for call in author.calls), encoding="utf-8")
    return repairs
