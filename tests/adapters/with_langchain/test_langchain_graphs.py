"""Graphs without tags: each question names its expected stage, and the engine records the actual one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import before_model
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from tests.adapters.support.told import told
from tests.adapters.with_langchain.asking import WAYS, Ask

NUM_RUNS = 32
PER_RUN = [
    "plan",
    *["search"] * 3,
    *["outer/inner"] * 2,
    *["team"] * 2,
    *["researcher"] * 2,
    "team/tools/delegate",
    "team/tools/inner",
    "write/model",
]


class State(TypedDict, total=False):
    messages: list[Any]


def graph_of(ask: Any, model: Any, *names: str) -> StateGraph[Any]:
    """Return a graph of consecutive nodes, each of which calls ``ask(model, expected stage)``."""
    graph = StateGraph(State)
    for name in names:
        graph.add_node(name, _asking(ask, model, name))
    for before, after in zip((START, *names), names, strict=False):
        graph.add_edge(before, after)
    return graph


def _asking(ask: Any, model: Any, question: str) -> Any:
    async def node(state: Any) -> dict[str, Any]:
        await ask(model, question)
        return {}

    return node


def workflow_of(model: Any) -> StateGraph[Any]:
    """Return a graph with every kind of node.

    There is a plain node, one that runs three times in parallel, and a sub-graph. Two agents follow; the tool
    of the first runs agents and a graph.
    """

    async def ask(model: Any, question: str) -> None:
        await model.ainvoke([("system", question), ("user", "hi")])

    def agent(system: str, name: str | None = None, tools: Any = ()) -> Any:
        return create_agent(model, list(tools), system_prompt=system, name=name)

    inner = StateGraph(State).add_node("inner", _asking(ask, model, "outer/inner")).add_edge(START, "inner")
    inner_graph = inner.compile()
    in_a_tool = StateGraph(State).add_node("inner", _asking(ask, model, "team/tools/inner"))
    tool_graph = in_a_tool.add_edge(START, "inner").compile()
    question = {"messages": [("user", "hi")]}

    @tool
    async def delegate(task: str) -> str:
        """Have others do it."""
        await agent("researcher", name="researcher").ainvoke(question)
        await agent("team/tools/delegate").ainvoke(question)
        await tool_graph.ainvoke({})
        await agent("researcher", name="researcher").ainvoke(question)
        return "done"

    async def outer(state: Any) -> dict[str, Any]:
        await inner_graph.ainvoke({})
        await inner_graph.ainvoke({})
        return {}

    graph = graph_of(ask, model, "plan")
    graph.add_node("search", _asking(ask, model, "search"))
    graph.add_node("outer", outer)
    graph.add_node("team", agent("team", name="team", tools=[delegate]))
    graph.add_node("write", agent("write/model"))
    graph.add_conditional_edges("plan", lambda state: [Send("search", {}) for _ in range(3)], ["search"])
    graph.add_edge("search", "outer").add_edge("outer", "team").add_edge("team", "write")
    return graph


def sessions(engine: Any) -> dict[str | None, list[str]]:
    """Return the stages of each session."""
    found: dict[str | None, list[str]] = {}
    for request in engine.requests:
        found.setdefault(request.tags.session, []).append(request.tags.stage.name)
    return found


async def test_runs_side_by_side(model: Any, engine: Any) -> None:
    graph = workflow_of(model).compile()
    runs = [graph.ainvoke({"messages": [("user", "hi")]}) for _ in range(NUM_RUNS)]
    await asyncio.gather(*runs)
    assert len(engine.requests) == NUM_RUNS * len(PER_RUN)
    assert all(expected == stage for expected, stage in told(engine))
    assert [sorted(stages) for stages in sessions(engine).values()] == [sorted(PER_RUN)] * NUM_RUNS


async def test_streams_of_graphs_side_by_side(model: Any, engine: Any) -> None:
    graph = workflow_of(model).compile()

    async def follow() -> None:
        async for _ in graph.astream({"messages": [("user", "hi")]}, stream_mode="messages", subgraphs=True):
            pass

    await asyncio.gather(*(follow() for _ in range(4)))
    assert all(expected == stage for expected, stage in told(engine))
    assert [sorted(stages) for stages in sessions(engine).values()] == [sorted(PER_RUN)] * 4


async def test_a_thread_joins_its_runs(model: Any, engine: Any) -> None:
    graph = workflow_of(model).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "thread-1"}}
    await graph.ainvoke({"messages": [("user", "hi")]}, config)
    await graph.ainvoke({"messages": [("user", "ho")]}, config)
    assert all(expected == stage for expected, stage in told(engine))
    assert list(sessions(engine)) == ["thread-1"]


@pytest.mark.parametrize("ask", WAYS)
async def test_every_way_in_a_node(model: Any, engine: Any, ask: Ask) -> None:
    async def tell(model: Any, question: str) -> None:
        await ask(model, [("system", question), ("user", "hi")], None)

    graph = graph_of(tell, model, "plan", "write").compile()
    await asyncio.gather(graph.ainvoke({}), graph.ainvoke({}))
    assert {stage for _, stage in told(engine)} == {"plan", "write"}
    assert all(expected == stage for expected, stage in told(engine))
    assert len(sessions(engine)) == 2


def test_threads(model: Any, engine: Any) -> None:
    """Run graphs of synchronous nodes in the threads of a batch and in threads of the test."""

    def ask(name: str) -> Any:
        return lambda state: {"messages": [model.invoke([("system", name), ("user", "hi")])]}

    graph = StateGraph(State)
    graph.add_node("one", ask("one")).add_node("last", ask("last"))
    graph.add_edge(START, "one").add_edge("one", "last")
    compiled = StateGraph(State).add_node("part", graph.compile()).add_edge(START, "part").compile()
    compiled.batch([{}] * NUM_RUNS)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(compiled.invoke, [{}] * NUM_RUNS))
    assert len(engine.requests) == NUM_RUNS * 2 * 2
    assert all(f"part/{expected}" == stage for expected, stage in told(engine))
    assert [len(stages) for stages in sessions(engine).values()] == [2] * NUM_RUNS * 2


def test_an_agent_of_synchronous_parts(model: Any, engine: Any) -> None:
    """Call the model from the agent's middleware, its tool, and the agents that its tool runs."""
    question: Any = {"messages": [("user", "hi")]}

    @tool
    def delegate(task: str) -> str:
        """Have others do it."""
        create_agent(model, system_prompt="team/tools/delegate").invoke(question)
        create_agent(model, system_prompt="researcher", name="researcher").invoke(question)
        return str(model.invoke([("system", "team/tools"), ("user", "hi")]).text)

    @before_model
    def check(state: Any, runtime: Any) -> None:
        model.invoke([("system", "team/check.before_model"), ("user", "hi")])

    team = create_agent(model, [delegate], system_prompt="team", name="team", middleware=[check])
    team.invoke(question)
    assert len(engine.requests) == 7
    assert all(expected == stage for expected, stage in told(engine))
    assert len(sessions(engine)) == 1


async def test_little_is_kept_of_runs_whose_end_is_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentspec.adapters import langchain as adapter

    begun = asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(adapter, "MAX_RUNS", 2)
    runs: OrderedDict[Any, Any] = OrderedDict()
    monkeypatch.setattr(adapter.LISTENER, "_runs", runs)
    undo = adapter.instrument()
    for _ in range(4):
        begun.clear()
        waiting = asyncio.create_task(wait.ainvoke({}))
        await begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert len(runs) == 2
    undo()


async def test_nothing_is_kept_of_runs_that_are_over(model: Any, engine: Any) -> None:
    from agentspec.adapters.langchain import LISTENER

    def fail(state: Any) -> Any:
        raise KeyError("on purpose")

    graph = graph_of(WAYS[1], model, "plan").add_node("fail", fail).add_edge("plan", "fail").compile()
    with pytest.raises(KeyError):
        await graph.ainvoke({})
    async with aclosing(graph.astream({})) as parts:
        await anext(parts)
    assert LISTENER._runs == {}
