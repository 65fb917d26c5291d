"""LiteLLM's own calls: each prompt names its expected stage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import litellm
import pytest
from litellm.caching.caching import Cache, LiteLLMCacheType

from agentspec.adapters.caller import Caller, calling
from agentspec.adapters.litellm import instrument
from agentspec.adapters.openai import stage
from agentspec.errors import StageError
from tests.adapters.support.copied import blocks, run
from tests.gateway.support.answering import answering

pytestmark = [  # from LiteLLM, which keeps connections after their event loop ends
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*`ReadOnly` qualifier:UserWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]

Ask = Callable[..., Awaitable[Any]]
Stages = Callable[[], list[str]]
ID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
NUM_RUNS = 32
ANSWER = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "scripted",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
PROVIDERS = ("openai", "hosted_vllm", "litellm_proxy", "custom_openai", "lm_studio", "openrouter", "deepseek")


@pytest.fixture(params=PROVIDERS)
def options(request: pytest.FixtureRequest, url: str, engine: Any) -> dict[str, Any]:
    return options_of(request.param, url)


def options_of(provider: str, url: str) -> dict[str, Any]:
    return {
        "model": f"{provider}/scripted",
        "api_base": url,
        "api_key": "none",
        "max_retries": 0,
        "messages": [{"role": "user", "content": "hi"}],
    }


@pytest.fixture
def instrumented() -> Iterator[None]:
    undo = instrument(workflow="flow")
    yield
    undo()


def complete_now(options: Any) -> None:
    litellm.completion(**options)


async def complete(options: Any, **more: Any) -> None:
    litellm.completion(**options, **more)


async def acomplete(options: Any, **more: Any) -> None:
    await litellm.acompletion(**options, **more)


async def stream(options: Any, **more: Any) -> None:
    assert list(litellm.completion(**options, **more, stream=True))


async def astream(options: Any, **more: Any) -> None:
    chunks = await litellm.acompletion(**options, **more, stream=True)
    assert [chunk async for chunk in chunks]


WAYS = (complete, acomplete, stream, astream)


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("ask", WAYS)
async def test_every_way_of_asking(options: Any, stages: Stages, ask: Ask, engine: Any) -> None:
    await ask(options, metadata={"agentspec_stage": "named"}, litellm_session_id="run 1")
    with stage("block", session="run-2"):
        await ask(options)
    with calling(Caller(role=("team", "writer"))):
        await ask(options, metadata={"generation_name": "summary", "session_id": "run-3"})
    await ask(options)
    assert stages() == ["flow/named", "flow/block", "flow/team/writer/summary", "flow"]
    assert [request.tags.session for request in engine.requests] == ["run%201", "run-2", "run-3", None]


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
async def test_tasks_side_by_side(url: str, engine: Any, provider: str) -> None:
    async def one(name: str) -> None:
        options = {**options_of(provider, url), "messages": [{"role": "user", "content": f"flow/{name}"}]}
        with stage(name):
            await asyncio.gather(
                acomplete(options), astream(options), asyncio.to_thread(complete_now, options)
            )

    await asyncio.gather(*(one(f"task {num}") for num in range(NUM_RUNS)))
    assert len(engine.requests) == 3 * NUM_RUNS
    assert all(request.prompt[0]["content"] == request.tags.stage.name for request in engine.requests)


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_threads(url: str, engine: Any, provider: str) -> None:
    def one(name: str) -> None:
        options = {**options_of(provider, url), "messages": [{"role": "user", "content": f"flow/{name}"}]}
        litellm.completion(**options, metadata={"agentspec_stage": name})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, (f"thread {num}" for num in range(NUM_RUNS))))
    assert len(engine.requests) == NUM_RUNS
    assert all(request.prompt[0]["content"] == request.tags.stage.name for request in engine.requests)


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
async def test_a_router(url: str, stages: Stages, provider: str) -> None:
    options = options_of(provider, url)
    messages: Any = options.pop("messages")
    dead = {**options, "api_base": "http://127.0.0.1:9/v1"}
    models = [
        {"model_name": "one", "litellm_params": options},
        {"model_name": "dead", "litellm_params": dead},
    ]
    router = litellm.Router(model_list=models, fallbacks=[{"dead": ["one"]}], num_retries=0)
    with stage("routed"):
        router.completion("one", messages)
        await router.acompletion("one", messages)
        assert list(router.completion("one", messages, stream=True))
        assert [chunk async for chunk in await router.acompletion("one", messages, stream=True)]
    await router.acompletion("dead", messages, metadata={"agentspec_stage": "fallen/back"})
    assert stages() == [*["flow/routed"] * 4, "flow/fallen/back"]


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "litellm_proxy"])
async def test_other_endpoints(url: str, stages: Stages, provider: str) -> None:
    options = options_of(provider, url)
    del options["messages"]
    with stage("block"):
        litellm.responses(**options, input="hi")
        await litellm.aresponses(**options, input="hi")
        assert list(litellm.responses(**options, input="hi", stream=True))
        options["model"] = "text-completion-openai/scripted" if provider == "openai" else options["model"]
        litellm.text_completion(**options, prompt="hi")
        await litellm.atext_completion(**options, prompt="hi")
    assert stages() == ["flow/block"] * 5


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
async def test_what_is_given_by_hand_stays(
    url: str, stages: Stages, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(provider, url)
    with stage("block"):
        await complete(options, extra_headers={"X-AgentSpec-Stage": "by/hand"})
        await acomplete(options, headers={"X-AgentSpec-Stage": "by/hand"})
        monkeypatch.setattr(litellm, "headers", {"X-AgentSpec-Stage": "of/all"})
        await complete(options)
    assert stages() == ["by/hand", "by/hand", "of/all"]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
async def test_nothing_else_is_sent(engine: Any, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try headers of the call, of all calls, and no headers."""
    for more in ({}, {"headers": {"x-a": "1"}}, {"extra_headers": {"x-b": "2"}}):
        for all_calls in (None, {"x-c": "3"}):
            monkeypatch.setattr(litellm, "headers", all_calls)
            with answering(answer=ANSWER) as (root, seen):
                litellm.completion(**options_of(provider, root), **more)
                undo = instrument(workflow="flow")
                litellm.completion(**options_of(provider, root), **more)
                undo()
            without, tagged = (one.headers for one in seen)
            assert tagged.pop("x-agentspec-workflow") == "flow"
            if provider == "hosted_vllm" and not more:  # this provider drops the headers of all calls
                tagged.pop("x-c", None)
            assert tagged == without


def test_answers_are_cached_for_all_stages() -> None:
    cache = Cache(type=LiteLLMCacheType.LOCAL)
    tagged = {"headers": {"x-agentspec-stage": "a"}, "extra_headers": {"x-agentspec-stage": "a"}}
    for asked in ({"messages": [{"role": "user", "content": "hi"}]}, {"input": "hi"}):
        key = cache.get_cache_key(model="scripted", **asked)
        assert cache.get_cache_key(model="scripted", **asked, **tagged) == key


@pytest.mark.usefixtures("instrumented")
async def test_bad_names(url: str, engine: Any) -> None:
    options = options_of("hosted_vllm", url)
    for ask in (complete, acomplete):
        with pytest.raises(StageError, match="bad stage segment"):
            await ask(options, metadata={"agentspec_stage": "a//b"})
    assert engine.requests == []
    await complete(options, metadata={"generation_name": ID, "session_id": "s" * 300})
    await complete(options, metadata={"generation_name": f"planner-{ID}"})
    assert [(one.tags.stage.name, one.tags.session) for one in engine.requests] == [
        ("flow", None),
        ("flow/planner", None),
    ]


def test_it_can_be_undone(url: str, stages: Stages) -> None:
    before = [litellm.utils.function_setup, litellm.router.run_async_function]
    options = options_of("hosted_vllm", url)
    first, last = instrument(workflow="first"), instrument(workflow="last")
    first()
    litellm.completion(**options)
    last()
    last()
    litellm.completion(**options)
    assert stages() == ["last", "default"]
    assert [litellm.utils.function_setup, litellm.router.run_async_function] == before


def test_a_bad_workflow_changes_nothing() -> None:
    before = litellm.utils.function_setup
    with pytest.raises(StageError, match="a//b"):
        instrument(workflow="a//b")
    assert litellm.utils.function_setup is before


def test_the_block_to_copy_runs() -> None:
    (block,) = blocks("LiteLLM")
    _, found = run(block)
    assert found == ["agentic_sql/extract", "agentic_sql/combine"]
