"""The graph with the interface and timing of the tagged pipeline. The timing sends nothing to the gateway."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_openai import ChatOpenAI

from agentspec.adapters.headers import agentspec_headers
from agentspec.adapters.langchain import FIGURES_FIELD
from examples.agentic_sql.database import Database
from examples.agentic_sql.graph import build
from examples.agentic_sql.workflow import Answer
from examples.saving.calls import Call


class Untagged:
    """One graph with and one without speculation; the adapter also sets the session."""

    def __init__(self, base_url: str, api_key: str, model: str, databases: dict[str, Database]) -> None:
        def graph(headers: dict[str, str]) -> Any:
            chat = ChatOpenAI(
                model=model,
                base_url=base_url,
                api_key=api_key,
                temperature=0,
                max_tokens=256,
                max_retries=1,
                streaming=True,
                stream_usage=True,
                default_headers=headers,
            )
            return build(chat, databases)

        self._on = graph({})
        self._off = graph(agentspec_headers(None, max_draft=0, learn=False))

    async def answer(self, question: str, session: str, *, speculate: bool) -> tuple[Answer, Sequence[Call]]:
        """Return the answer and its calls; ``session`` is unused, as one run of a graph is a session."""
        stopwatch = Stopwatch()
        graph = self._on if speculate else self._off
        state = await graph.ainvoke({"question": question}, {"callbacks": [stopwatch]})
        return state["answer"], stopwatch.calls


@dataclass(slots=True)
class LiveCall:
    """A running call: its node, its start time, and the times of its first and last token."""

    node: str
    started: float
    first: float | None = None
    last: float = 0.0


class Stopwatch(AsyncCallbackHandler):  # type: ignore[misc]
    """A callback that times the calls of one graph run."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._live: dict[UUID, LiveCall] = {}

    async def on_chat_model_start(
        self, *asked: Any, run_id: UUID, metadata: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Record the start time, before the request is sent."""
        self._live[run_id] = LiveCall((metadata or {})["langgraph_node"], time.perf_counter())

    async def on_llm_new_token(self, token: str, *, chunk: Any = None, run_id: UUID, **kwargs: Any) -> None:
        """Record the time of a chunk; ignore chunks with neither text nor finish reason."""
        if token or (chunk is not None and (chunk.generation_info or {}).get("finish_reason")):
            live = self._live[run_id]
            live.last = time.perf_counter()
            live.first = live.first or live.last

    async def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the finished call."""
        live = self._live.pop(run_id)
        message = response.generations[0][0].message
        first = live.first or live.last
        self.calls.append(
            Call(
                live.node,
                str(message.text),
                (message.usage_metadata or {}).get("output_tokens", 0),
                first - live.started,
                live.last - first,
                message.response_metadata.get(FIGURES_FIELD, {}),
            )
        )
