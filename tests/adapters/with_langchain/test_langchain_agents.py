"""Agents in others' tools: each question names its expected stage, and the engine records the actual one."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import before_model
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import create_react_agent

from tests.adapters.support.told import told
from tests.adapters.with_langchain.asking import WAYS, Ask, Stages

QUESTION: Any = {"messages": [("user", "hi")]}
ID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
Make = Callable[..., Any]


def react_agent(model: Any, stage: str, name: str | None = None, tools: Sequence[BaseTool] = ()) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in favour of langchain's create_agent
        return create_react_agent(model, list(tools), prompt=stage, name=name)


def new_agent(model: Any, stage: str, name: str | None = None, tools: Sequence[BaseTool] = ()) -> Any:
    return create_agent(model, list(tools), system_prompt=stage, name=name)


MAKERS: tuple[Make, ...] = (react_agent, new_agent)
every_kind = pytest.mark.parametrize("make", MAKERS)
every_pair = pytest.mark.parametrize(
    ("make", "make_inner"), [(make, inner) for make in MAKERS for inner in MAKERS]
)


class State(TypedDict, total=False):
    messages: list[Any]


def as_tool(agent: Any, name: str, ask: Ask = WAYS[0]) -> BaseTool:
    """Return a tool that runs the agent by the given method."""

    async def run_it(task: str) -> str:
        await ask(agent, QUESTION)
        return "done"

    def run_it_here(task: str) -> str:
        agent.invoke(QUESTION)
        return "done"

    return StructuredTool.from_function(run_it_here, run_it, name=name, description="Has another do it.")


def in_turn(*runnables: Any) -> BaseTool:
    """Return a tool that runs all of them."""

    @tool
    def delegate(task: str) -> str:
        """Have others do it."""
        for runnable in runnables:
            runnable.invoke(QUESTION)
        return "done"

    return delegate


def are_right(engine: Any, *stages: str) -> bool:
    return {one for one, _ in told(engine)} == set(stages) and all(one == got for one, got in told(engine))


@pytest.mark.parametrize("ask", WAYS)
@every_kind
async def test_a_name_is_the_stage(model: Any, engine: Any, make: Make, ask: Ask) -> None:
    await ask(make(model, "planner", "planner"), QUESTION)
    await ask(make(model, "writer", "writer"), QUESTION)
    assert are_right(engine, "planner", "writer")


@pytest.mark.parametrize("ask", WAYS)
@every_pair
async def test_named_agents_as_tools(model: Any, engine: Any, make: Make, make_inner: Make, ask: Ask) -> None:
    tools = [as_tool(make_inner(model, name, name), f"ask_{name}", ask) for name in ("one", "other")]
    for each in tools:  # the scripted model calls the first of its tools
        await make(model, "boss", "boss", [each]).ainvoke(QUESTION)
    assert are_right(engine, "boss", "one", "other")


@pytest.mark.parametrize("ask", WAYS)
@every_pair
async def test_agents_without_a_name_have_their_tools(
    model: Any, engine: Any, make: Make, make_inner: Make, ask: Ask
) -> None:
    for name in ("search", "check"):
        inner = make_inner(model, f"boss/tools/{name}")
        await make(model, "boss", "boss", [as_tool(inner, name, ask)]).ainvoke(QUESTION)
    assert are_right(engine, "boss", "boss/tools/search", "boss/tools/check")


@every_kind
def test_one_agent_as_two_tools(model: Any, engine: Any, make: Make, stages: Stages) -> None:
    for name in (None, "writer"):
        agent = make(model, "it", name)
        for each in ("draft", "mend"):
            make(model, "boss", "boss", [as_tool(agent, each)]).invoke(QUESTION)
    assert [stage for stage in stages() if stage != "boss"] == [
        *("boss/tools/draft", "boss/tools/mend", "writer", "writer")
    ]


@every_pair
def test_two_deep(model: Any, engine: Any, make: Make, make_inner: Make) -> None:
    innermost = [make(model, "boss/tools/ask/tools/look_up"), make_inner(model, "reader", "reader")]
    inner = [
        make_inner(model, "boss/tools/ask", None, [as_tool(innermost[0], "look_up")]),
        make_inner(model, "writer", "writer", [as_tool(innermost[1], "look_up")]),
        make(model, "writer", "writer", [as_tool(make(model, "writer/tools/look_up"), "look_up")]),
    ]
    for agent in inner:
        make_inner(model, "boss", "boss", [as_tool(agent, "ask")]).invoke(QUESTION)
    assert are_right(
        engine,
        *(
            "boss",
            "boss/tools/ask",
            "boss/tools/ask/tools/look_up",
            "writer",
            "reader",
            "writer/tools/look_up",
        ),
    )


@every_kind
def test_a_boss_without_a_name(model: Any, stages: Stages, engine: Any, make: Make) -> None:
    make(model, "", None, [as_tool(make(model, ""), "ask")]).invoke(QUESTION)
    own = "agent" if make is react_agent else "model"
    assert stages() == [own, "tools/ask", own]


@every_kind
async def test_side_by_side(model: Any, engine: Any, make: Make) -> None:
    bosses = [
        make(model, "boss", "boss", [as_tool(make(model, f"boss/tools/t{letter}"), f"t{letter}", WAYS[1])])
        for letter in "abcd"
    ]
    await asyncio.gather(*(boss.ainvoke(QUESTION) for boss in bosses for _ in range(4)))
    assert len(engine.requests) == 3 * 16
    assert all(expected == stage for expected, stage in told(engine))
    assert len({request.tags.session for request in engine.requests}) == 16


async def test_tools_of_one_answer(model: Any, engine: Any) -> None:
    """Run the tools of one answer concurrently in a tool node."""
    from langchain_core.messages import AIMessage
    from langgraph.prebuilt import ToolNode

    names = ("search", "check")
    tools = [as_tool(react_agent(model, f"tools/{name}"), name, WAYS[1]) for name in names]
    calls: Any = [{"name": name, "args": {"task": "x"}, "id": name, "type": "tool_call"} for name in names]
    graph = StateGraph(State).add_node("tools", ToolNode(tools)).add_edge(START, "tools").compile()
    state: Any = {"messages": [AIMessage("", tool_calls=calls)]}
    await graph.ainvoke(state)
    graph.invoke(state)
    assert are_right(engine, "tools/search", "tools/check")


@every_kind
def test_an_agent_as_a_node(model: Any, engine: Any, make: Make) -> None:
    graph = StateGraph(State)
    graph.add_node("first", make(model, "writer", "writer", [in_turn(make(model, "writer/tools/delegate"))]))
    graph.add_node("last", make(model, "last/agent" if make is react_agent else "last/model"))
    graph.add_edge(START, "first").add_edge("first", "last")
    graph.compile(name="pipeline").invoke(QUESTION)
    assert are_right(engine, *{expected for expected, _ in told(engine)})
    assert {"writer", "writer/tools/delegate"} < {stage for _, stage in told(engine)}


def test_nodes_of_a_graph_with_a_name_keep_theirs(model: Any, stages: Stages, engine: Any) -> None:
    def ask(state: Any) -> None:
        model.invoke("hi")

    graph = StateGraph(State).add_node("plan", ask).add_node("agent", ask)
    compiled = graph.add_edge(START, "plan").add_edge("plan", "agent").compile(name="flow")
    compiled.invoke({})
    create_agent(model, [in_turn(compiled)], name="boss").invoke(QUESTION)
    assert stages() == ["plan", "flow", "boss", "boss/tools/plan", "flow", "boss"]


def test_an_agent_in_itself(model: Any, stages: Stages, engine: Any) -> None:
    inner = create_agent(model, name="writer")
    create_agent(model, [in_turn(inner)], name="writer").invoke(QUESTION)
    assert stages() == ["writer"] * 3


def test_what_an_agent_without_a_name_does_inside(model: Any, engine: Any) -> None:
    @tool
    def count(text: str) -> str:
        """Count."""
        return str(model.invoke([("system", "boss/tools/delegate/tools"), ("user", text)]).text)

    @before_model
    def check(state: Any, runtime: Any) -> None:
        model.invoke([("system", "boss/tools/delegate/check.before_model"), ("user", "hi")])

    inner = create_agent(model, [count], system_prompt="boss/tools/delegate", middleware=[check])
    create_agent(model, [in_turn(inner)], system_prompt="boss", name="boss").invoke(QUESTION)
    assert are_right(
        engine,
        *(
            "boss",
            "boss/tools/delegate",
            "boss/tools/delegate/tools",
            "boss/tools/delegate/check.before_model",
        ),
    )


@every_kind
def test_ids_are_taken_out_of_names(model: Any, stages: Stages, engine: Any, make: Make) -> None:
    inner = make(model, "", f"planner-{ID}")
    make(model, "", f"boss-{ID}", [as_tool(inner, "ask")]).invoke(QUESTION)
    make(model, "", "boss", [as_tool(make(model, ""), f"ask_{ID[:8]}")]).invoke(QUESTION)
    assert stages() == ["boss", "planner", "boss", "boss", "boss/tools/ask", "boss"]


def test_an_agents_name_goes_before_its_runs(model: Any, stages: Stages, engine: Any) -> None:
    create_agent(model, name="writer").invoke(QUESTION, {"run_name": "nightly"})
    react_agent(model, "").invoke(QUESTION, {"run_name": "the run of Monday"})
    assert stages() == ["writer", "agent"]


@pytest.mark.parametrize("ask", WAYS)
async def test_a_run_may_have_a_name(model: Any, stages: Stages, engine: Any, ask: Ask) -> None:
    chain = RunnableLambda(lambda text: text) | model
    await ask(model.with_config(run_name="classify"), "hi", None)
    await ask(chain, "hi", {"run_name": f"extract-{ID}"})
    await ask(chain.with_config(run_name="combine") | (lambda message: message), "hi", None)
    await ask(chain, "hi", None)
    each = 2 if ask.__name__ in ("batch", "abatch") else 1
    assert stages() == [name for name in ("classify", "extract", "combine", "default") for _ in range(each)]


def test_tags_and_nodes_go_before_the_names_of_runs(model: Any, stages: Stages, engine: Any) -> None:
    def plan(state: Any) -> None:
        model.invoke("hi", {"run_name": "named"})

    model.invoke("hi", {"run_name": "named", "tags": ["tagged"]})
    StateGraph(State).add_node("plan", plan).add_edge(START, "plan").compile().invoke({}, {"run_name": "run"})
    in_turn(RunnableLambda(lambda _: "hi") | model.with_config(run_name="inner")).invoke({"task": "x"})
    assert stages() == ["tagged", "plan", "inner"]


def test_a_tool_that_runs_outside_graphs(model: Any, stages: Stages, engine: Any) -> None:
    as_tool(react_agent(model, ""), "ask").invoke({"task": "x"})
    assert stages() == ["ask"]
