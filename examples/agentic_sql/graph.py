"""The pipeline as a LangGraph graph without any tags: its node names become the stages.

Prompts, requests and routing are those of ``workflow.py``. The graph needs one call of AgentSpec, before or
after the models are created: ``agentspec.adapters.langchain.instrument(workflow="agentic_sql")``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from operator import or_
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

from examples.agentic_sql import prompts
from examples.agentic_sql.database import Database
from examples.agentic_sql.query import Style
from examples.agentic_sql.retrieval import similar
from examples.agentic_sql.schema import SCHEMAS
from examples.agentic_sql.workflow import NUM_SOLVED, Answer, Candidate, as_json, failed, guess, settled

WRITERS = {f"sql_{number}": style for number, style in enumerate(prompts.STYLES, 1)}


class State(TypedDict, total=False):
    """The state of one question; each writer adds its candidate."""

    question: str
    database: str
    features: str
    notes: str
    candidates: Annotated[dict[str, Candidate], or_]
    answer: Answer


Node = Callable[[State], Awaitable[State]]


class Nodes:
    """The node functions, which call the model and run queries."""

    def __init__(self, model: ChatOpenAI, databases: dict[str, Database]) -> None:
        self._text = model
        self._json = model.bind(response_format={"type": "json_object"})
        self._databases = databases

    async def classify(self, state: State) -> State:
        """Choose the database."""
        name = as_json(await _said(self._json, prompts.classify(state["question"]))).get("database")
        return {"database": name} if name in SCHEMAS else {"answer": failed("classify")}

    async def extract(self, state: State) -> State:
        """Extract the question's features; send those of solved questions as a prediction."""
        question, database = state["question"], state["database"]
        predicted = guess(similar(question, database, NUM_SOLVED))
        model = self._json.bind(prediction={"type": "content", "content": predicted})
        return {"features": await _said(model, prompts.extract(question, database))}

    async def enrich(self, state: State) -> State:
        """Write notes for the writers."""
        question, database = state["question"], state["database"]
        example = similar(question, database, 1)[0]
        asked = prompts.enrich(question, database, state["features"], example)
        return {"notes": await _said(self._text.bind(max_tokens=384), asked)}

    def writer(self, name: str, style: Style) -> Node:
        """Return a writer node: one query, and one retry with SQLite's error message if it was rejected."""

        async def write(state: State) -> State:
            query = self._databases[state["database"]].query
            messages = prompts.sql(state["question"], state["notes"], style)
            sql = await _said(self._text, messages)
            result = await asyncio.to_thread(query, sql)
            if result.error is not None:
                sql = await _said(self._text, prompts.correction(messages, sql, result.error))
                result = await asyncio.to_thread(query, sql)
            return {"candidates": {name: (sql, result)}}

        return write

    async def combine(self, state: State) -> State:
        """Choose a candidate and write the answer in words."""
        candidates = [state["candidates"][name] for name in WRITERS]
        text = await _said(self._json, prompts.combine(state["question"], candidates))
        return {"answer": await settled(text, self._databases[state["database"]])}


def build(model: ChatOpenAI, databases: dict[str, Database]) -> Any:
    """Return the compiled graph: ``(await graph.ainvoke({"question": ...}))["answer"]``."""
    nodes = Nodes(model, databases)
    graph = StateGraph(State)
    graph.add_node("classify", nodes.classify)
    graph.add_node("extract", nodes.extract)
    graph.add_node("enrich", nodes.enrich)
    for name, style in WRITERS.items():
        graph.add_node(name, nodes.writer(name, style))
        graph.add_edge("enrich", name)
    graph.add_node("combine", nodes.combine)
    graph.add_edge(START, "classify")
    graph.add_conditional_edges("classify", _after_classify, ["extract", END])
    graph.add_edge("extract", "enrich")
    graph.add_edge(list(WRITERS), "combine")
    graph.add_edge("combine", END)
    return graph.compile()


def _after_classify(state: State) -> str:
    return END if "answer" in state else "extract"


async def _said(model: Runnable[Any, Any], messages: prompts.Messages) -> str:
    return str((await model.ainvoke(messages)).text)
