from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentspec.config import DraftConfig
from agentspec.engine import EngineConfig, TorchEngine, kv_memory
from agentspec.errors import ConfigError, ContextLengthError, EngineBusyError, EngineError, RequestError
from agentspec.forest import Forest
from agentspec.generation import GenerationDelta, GenerationRequest, SamplingParams
from agentspec.proposer import Proposer
from agentspec.tags import Tags
from tests.support.fakes import STAGE, RecordingModel, RecordingProposer

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPT = "SELECT name FROM items"

Make = Callable[..., TorchEngine]


def request(name: str, prompt: Any = PROMPT, sampling: SamplingParams = GREEDY) -> GenerationRequest:
    return GenerationRequest(name, prompt, sampling, Tags(STAGE))


@pytest.fixture
async def make(llama_checkpoint: Path) -> AsyncIterator[Make]:
    engines = []

    def make(proposer: Proposer | None = None, **settings: Any) -> TorchEngine:
        usual = {"model_path": llama_checkpoint, "dtype": "float64", "max_model_len": 256, "num_slots": 4}
        engines.append(TorchEngine(EngineConfig(**usual | settings), proposer))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()


async def collect(engine: TorchEngine, req: GenerationRequest) -> list[GenerationDelta]:
    return [delta async for delta in engine.generate(req)]


def tokens(deltas: Sequence[GenerationDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def text(deltas: Sequence[GenerationDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def gate(engine: TorchEngine) -> tuple[RecordingModel, threading.Semaphore]:
    """Make the engine's forward passes wait for permits, and record them."""
    permits = threading.Semaphore(0)

    class Gated(RecordingModel):
        def run(self, *arguments: Any) -> Any:
            permits.acquire()
            return super().run(*arguments)

    model: Any = engine._decoder._model
    gated: Any = Gated(model)
    engine._decoder._model = gated
    return gated, permits


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (the other side is a thread, which sets no event)
            await asyncio.sleep(0.002)


async def test_an_answer_streams_and_ends_with_a_reason(make: Make) -> None:
    engine = make()
    deltas = await collect(engine, request("r"))
    assert len(tokens(deltas)) == 12
    assert [delta.finish_reason for delta in deltas] == [None] * 11 + ["length"]
    assert text(deltas) == engine._tokenizer.decode(tokens(deltas))
    assert {delta.num_prompt_tokens for delta in deltas} == {len(engine._tokenizer.encode(PROMPT))}
    assert deltas[-1].speculation is not None
    assert engine.is_healthy


async def test_the_model_card(make: Make, llama_checkpoint: Path) -> None:
    assert make().model.name == llama_checkpoint.name
    card = make(served_name="tiny", max_model_len=None).model
    assert (card.name, card.max_model_len) == ("tiny", 512)
    assert make(max_model_len=10_000).model.max_model_len == 512


async def test_concurrent_requests_share_forward_passes(make: Make) -> None:
    engine = make()
    model, permits = gate(engine)
    tasks = [asyncio.create_task(collect(engine, request(f"r{i}"))) for i in range(4)]
    await until(lambda: engine.stats()[STAGE].num_requests == 4 if STAGE in engine.stats() else False)
    permits.release(1000)
    answers = await asyncio.gather(*tasks)
    assert len({tuple(tokens(deltas)) for deltas in answers}) == 1
    assert len(model.passes) <= 14  # 12, and one or two that began before all had arrived
    assert max(len(segments) for segments in model.passes) == 4


async def test_closing_the_iterator_frees_the_slot_at_the_next_step(make: Make) -> None:
    proposer = RecordingProposer()
    engine = make(proposer, num_slots=1)
    model, permits = gate(engine)
    first: Any = engine.generate(request("first"))
    task = asyncio.create_task(anext(first))
    permits.release(1)
    await task
    second = asyncio.create_task(collect(engine, request("second", [7, 8, 9])))
    await until(lambda: "second" in proposer.prompts)
    await first.aclose()
    num_before = len(model.passes)
    permits.release(1000)
    deltas = await second
    assert len(tokens(deltas)) == 12
    # at most the pass that was waiting at the gate still belonged to the first
    starts = [segments[0].token_ids.tolist() for segments in model.passes[num_before:]]
    assert [7, 8, 9] in starts[:2]
    assert proposer.learned == {"first": False, "second": True}


async def test_a_cancelled_task_leaves_nothing_behind(make: Make) -> None:
    proposer = RecordingProposer()
    engine = make(proposer)
    _, permits = gate(engine)
    task = asyncio.create_task(collect(engine, request("r")))
    await until(lambda: "r" in proposer.prompts)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    permits.release(1000)
    await until(lambda: not proposer.live)
    assert not engine._decoder.has_work


async def test_a_bad_request_leaves_the_others_untouched(make: Make) -> None:
    engine = make()
    alone = tokens(await collect(engine, request("alone")))
    good = [asyncio.create_task(collect(engine, request(f"good{i}"))) for i in range(3)]
    bad: list[tuple[Awaitable[Any], type[Exception], str | None]] = [
        (collect(engine, request("b1", "")), RequestError, "prompt"),
        (collect(engine, request("b2", "x" * 2000)), ContextLengthError, "prompt"),
        (collect(engine, request("b3", "x", replace(GREEDY, top_p=3.0))), RequestError, "top_p"),
        (collect(engine, request("n", "x", replace(GREEDY, n=1000))), RequestError, "n"),
        (collect(engine, request("b4", [{"role": "martian", "content": "x"}])), RequestError, "messages"),
        (
            collect(engine, request("b5", "x", replace(GREEDY, json_schema={"type": 1}))),
            RequestError,
            "response_format",
        ),
    ]
    for answer, kind, param in bad:
        with pytest.raises(kind) as caught:
            await answer
        assert isinstance(caught.value, RequestError)
        assert caught.value.param == param
    for task in good:
        assert tokens(await task) == alone
    assert engine.is_healthy


class Panic(BaseException):
    """A failure raised by a native library that is not an Exception."""


@pytest.mark.parametrize("kind", [RuntimeError, Panic])
async def test_a_failing_step_fails_what_is_in_flight_and_the_engine_goes_on(
    make: Make, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    engine = make()
    expected = tokens(await collect(engine, request("before")))
    model, permits = gate(engine)
    model.fail_next = kind("cosmic ray")
    permits.release(1000)
    with caplog.at_level(logging.CRITICAL), pytest.raises(EngineError, match="cosmic ray"):
        await collect(engine, request("hit"))
    assert tokens(await collect(engine, request("after"))) == expected
    assert engine.is_healthy


async def test_an_engine_that_always_fails_is_unhealthy(make: Make) -> None:
    engine = make()
    model, permits = gate(engine)
    permits.release(1000)
    for i in range(3):
        assert engine.is_healthy
        model.fail_next = RuntimeError("broken")
        with pytest.raises(EngineError):
            await collect(engine, request(f"r{i}"))
    assert not engine.is_healthy
    await collect(engine, request("again"))
    assert engine.is_healthy


async def test_a_full_line_is_a_429(make: Make) -> None:
    proposer = RecordingProposer()
    engine = make(proposer, num_slots=1, max_queue=1)
    _, permits = gate(engine)
    tasks = []
    for i in range(2):
        tasks.append(asyncio.create_task(collect(engine, request(f"r{i}"))))
        await until(lambda: engine.stats()[STAGE].num_requests == len(tasks) if engine.stats() else False)
    await until(lambda: engine._decoder._scheduler.num_waiting == 1)
    with pytest.raises(EngineBusyError) as caught:
        await collect(engine, request("late"))
    assert caught.value.status == 429
    assert "late" not in proposer.prompts  # refused before any preparation for it
    permits.release(1000)
    await asyncio.gather(*tasks)


async def test_closing_ends_requests_under_way(make: Make) -> None:
    proposer = RecordingProposer()
    engine = make(proposer)
    _, permits = gate(engine)
    task = asyncio.create_task(collect(engine, request("r")))
    await until(lambda: "r" in proposer.prompts and engine._decoder.has_work)
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    permits.release(1000)
    await closing
    with pytest.raises(EngineError, match="stopped"):
        await task
    assert not engine.is_healthy
    assert not proposer.live
    await engine.close()
    with pytest.raises(EngineError, match="stopped"):
        await collect(engine, request("late"))
    assert not proposer.live


async def test_a_request_of_a_dead_event_loop_is_dropped(make: Make) -> None:
    engine = make(RecordingProposer(), num_slots=1)
    proposer: Any = engine._proposer

    def leave_early() -> None:
        async def start() -> None:
            generator = engine.generate(request("lost", "x", replace(GREEDY, max_tokens=200)))
            await anext(generator)
            held.append(generator)  # neither closed nor read further

        held: list[Any] = []
        loop = asyncio.new_event_loop()
        loop.run_until_complete(start())
        loop.close()

    await asyncio.to_thread(leave_early)
    await until(lambda: not proposer.live)
    assert len(tokens(await collect(engine, request("next")))) == 12


async def test_the_forest_learns_and_speeds_up_a_stage(make: Make) -> None:
    plain = tokens(await collect(make(), request("r")))
    forest = Forest()
    engine = make(forest, draft=DraftConfig(max_tokens=8), price=0.2)  # independent of this machine's speed
    steps = []
    for i in range(3):
        deltas = await collect(engine, request(f"r{i}"))
        assert tokens(deltas) == plain
        assert deltas[-1].speculation is not None
        steps.append(deltas[-1].speculation.num_steps)
    assert steps[1] < steps[0]
    stats = engine.stats()[STAGE]
    assert stats.num_accepted_tokens > 0
    assert stats.tree_bytes == forest.memory_bytes(STAGE) > 0
    assert stats.tree_limit_bytes == forest.config.stage_limit_bytes
    forest.check_integrity()


@pytest.mark.parametrize("mode", ["chain", "tree"])
async def test_concurrent_stages_with_the_forest_change_no_token(make: Make, mode: str) -> None:
    prompts = [f"{PROMPT} WHERE price < {i % 5}" for i in range(15)]
    plain = make()
    expected = [tokens(await collect(plain, request(f"r{i}", prompt))) for i, prompt in enumerate(prompts)]
    engine = make(Forest(), draft=DraftConfig(mode=mode, max_tokens=8), price=0.2)
    answers = await asyncio.gather(
        *(collect(engine, request(f"r{i}", prompt)) for i, prompt in enumerate(prompts))
    )
    assert [tokens(deltas) for deltas in answers] == expected
    assert engine.stats()[STAGE].num_accepted_tokens > 0


async def test_nothing_is_written_to_stdout(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    sampling = replace(GREEDY, json_schema={"type": "object"}, logprobs=2)
    await collect(make(Forest()), request("r", PROMPT, sampling))
    assert capsys.readouterr().out == ""


async def test_threads_are_set(make: Make) -> None:
    before = torch.get_num_threads()
    try:
        make(threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "setting",
    [
        *({"num_slots": 0}, {"max_batch_tokens": 0}, {"max_queue": 0}, {"max_model_len": 0}, {"threads": 0}),
        {"kv_cache_mb": 0},
    ],
)
def test_a_bad_setting_is_named(setting: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        EngineConfig("somewhere", **setting)


def test_a_bad_dtype_is_named() -> None:
    with pytest.raises(ConfigError, match="int8"):
        EngineConfig("somewhere", dtype="int8")


# ---- memory ----


@pytest.fixture(scope="module")
def wide_model(llama_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with a context of 131,072 tokens and 1.5 KiB of KV cache each, 16 in a page."""
    folder = tmp_path_factory.mktemp("wide")
    for file in llama_checkpoint.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((llama_checkpoint / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 131_072}))
    return folder


LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)


async def test_a_wide_context_takes_memory_for_its_tokens(make: Make, wide_model: Path) -> None:
    """Slots for terabytes, which no machine has, serve several requests of any length at a time."""
    engine = make(model_path=wide_model, num_slots=10_000, max_model_len=None)
    assert engine.model.max_model_len == 131_072
    open_ended = replace(GREEDY, max_tokens=None)
    streams = [engine.generate(request(f"r{i}", PROMPT, open_ended)) for i in range(4)]
    first = [await anext(stream) for stream in streams]
    assert all(delta.token_ids for delta in first)
    for stream in streams:
        assert isinstance(stream, AsyncGenerator)
        await stream.aclose()
    assert tokens(await collect(engine, request("r"))) == tokens(await collect(make(), request("r")))


async def test_requests_wait_for_memory(make: Make, wide_model: Path) -> None:
    """One MiB holds 672 tokens: one and a half of these requests. None fails, and outputs stay the same."""
    prompts = [[5 + i, 6, 7] for i in range(6)]
    plain = make(model_path=wide_model, max_model_len=500, num_slots=1)
    expected = [tokens(await collect(plain, request(f"r{i}", p, LONG))) for i, p in enumerate(prompts)]
    tight = make(model_path=wide_model, max_model_len=500, kv_cache_mb=1)
    found = await asyncio.gather(
        *(collect(tight, request(f"r{i}", prompt, LONG)) for i, prompt in enumerate(prompts))
    )
    assert [tokens(deltas) for deltas in found] == expected
    assert {deltas[-1].finish_reason for deltas in found} == {"length"}
    stats = tight.stats()[STAGE]
    assert stats.num_output_tokens == 6 * 400 == 6 + stats.num_steps + stats.num_accepted_tokens


async def test_a_request_that_never_fits(make: Make, wide_model: Path) -> None:
    """A limit below the model's context is the context. The error names the option and the numbers."""
    engine = make(model_path=wide_model, max_model_len=None, kv_cache_mb=1)
    assert engine.model.max_model_len == 672
    said = r"the KV cache of 1 MiB holds 672 tokens \(for 131072 give --kv-cache-mb 192\)"
    with pytest.raises(ContextLengthError, match=rf"3 prompt tokens and max_tokens=670 .*{said}.* most 669"):
        await collect(engine, request("a", [5, 6, 7], replace(GREEDY, max_tokens=670)))
    with pytest.raises(ContextLengthError, match=f"the prompt has 672 tokens.*{said}"):
        await collect(engine, request("b", [5] * 672))
    open_ended = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    (last,) = (await collect(engine, request("c", [5] * 600, open_ended)))[-1:]
    assert (last.finish_reason, engine.stats()[STAGE].num_output_tokens) == ("length", 72)


def test_a_context_that_the_memory_does_not_hold(make: Make, wide_model: Path) -> None:
    with pytest.raises(
        ConfigError, match="--max-model-len 1000 does not fit: the KV cache of 1 MiB holds 672"
    ):
        make(model_path=wide_model, max_model_len=1000, kv_cache_mb=1)


def test_the_default_is_half_of_what_is_free(
    make: Make, wide_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kv_memory, "available_memory", lambda: 2 << 20)
    assert make(model_path=wide_model, max_model_len=None).model.max_model_len == 672
    assert "is more than" not in caplog.text
    make(model_path=wide_model, max_model_len=None, kv_cache_mb=3)
    assert "--kv-cache-mb 3 is more than the 2 MiB that are free" in caplog.text
