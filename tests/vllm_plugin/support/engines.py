"""Both model runners without vLLM, and what tests ask of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from agentspec.stages import StageKey
from agentspec.vllm_plugin.drafter import ForestDrafter
from agentspec.vllm_plugin.lora import adapted
from agentspec.vllm_plugin.planner import StepPlanner
from agentspec.vllm_plugin.traces import Step
from agentspec.vllm_plugin.v1.proposer import ForestProposer
from tests.vllm_plugin.support.device import MAX_ROWS, Device
from tests.vllm_plugin.support.runner import Runner

TIMEOUT_S = 60.0

Engine = Runner | Device


def v1(config: Any) -> tuple[Runner, ForestDrafter]:
    runner = Runner(ForestProposer(config))
    return runner, runner.drafter


def v2(config: Any) -> tuple[Device, ForestDrafter]:
    drafter = ForestDrafter(config)
    return Device(StepPlanner(drafter, MAX_ROWS)), drafter


def tokens_of(drafter: ForestDrafter, stage: StageKey) -> int:
    return drafter.forest.stats(adapted(stage, None)).num_tokens


def wait_for(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def output_of(steps: list[Step]) -> list[int]:
    own = [[] if step.own is None else [step.own] for step in steps]
    return [
        token
        for step, last in zip(steps, own, strict=True)
        for token in [*step.draft.tolist()[: step.num_accepted], *last]
    ]
