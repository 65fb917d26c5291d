"""The proposers under test: the plugin's, and vLLM's own for suffixes, each created and called as by vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from agentspec.models import bundled_model_dir
from agentspec.replay.calls import Call
from agentspec.stages import StageKey
from agentspec.vllm_plugin.model_runner import PROPOSER
from agentspec.vllm_plugin.planner import Planned, StepPlanner
from agentspec.vllm_plugin.proposer import ForestProposer
from agentspec.vllm_plugin.settings import CONFIG_KEY
from benchmarks.vllm.live_batch import NUM_LIVE, TENANT, VOCABULARY, LiveBatch
from benchmarks.vllm.speculators import NUM_SPECULATIVE_TOKENS

SETTINGS = {
    "price": 0.1,  # the probability that the in-tree proposer requires of a token
    **{f"{scope}_budget_mb": 8_192 for scope in ("stage", "tenant", "total")},  # the in-tree one has no limit
}


class TimedProposer(Protocol):
    """A proposer under test, which drafts for a batch and has learned past outputs.

    Attributes:
        batch: its requests.
        drafts: drafts of the last step, by row.
    """

    batch: LiveBatch
    drafts: list[list[int]]

    def learn(self, call: Call) -> None:
        """Add a past output."""

    def schedule(self) -> None:
        """Do the work of vLLM's scheduler."""

    def hear(self) -> None:
        """Receive the worker's notifications: which requests began and ended."""

    def propose(self) -> list[list[int]]:
        """Take each row's tokens of the last step, and draft for the next: vLLM calls this."""

    def rest(self) -> None:
        """Do the work that runs next to the forward pass."""


class InTreeProposer:
    """vLLM's ``method: suffix``, with its own settings."""

    def __init__(self, batch: LiveBatch) -> None:
        self.batch = batch
        self.drafts: list[list[int]] = []
        self._proposer = SuffixDecodingProposer(_config({"method": "suffix"}, batch.max_model_len))
        self._numbers = count()

    def learn(self, call: Call) -> None:
        """Add a past output, as when a request ends."""
        cache, name = self._proposer.suffix_cache, f"learned-{next(self._numbers)}"
        cache.start_request(name, np.empty(0, np.int32))
        cache.add_active_response(name, call.response)
        cache.stop_request(name)

    def schedule(self) -> None:
        """Do nothing: the proposer does not read the schedule."""

    def hear(self) -> None:
        """Do nothing: the proposer finds new and ended requests in the batch."""

    def propose(self) -> list[list[int]]:
        """Draft, as vLLM does after a step."""
        drafts: list[list[int]] = self._proposer.propose(
            NUM_SPECULATIVE_TOKENS, self.batch.rows, self.batch.sampled
        )
        return drafts

    def rest(self) -> None:
        """Do nothing: all work is in the step."""


class OurProposer:
    """The plugin's proposer, with the worker's notifications."""

    def __init__(self, batch: LiveBatch) -> None:
        self.batch = batch
        self.drafts: list[list[int]] = []
        method = {"method": "custom_class", "model": PROPOSER}
        self._proposer = ForestProposer(_config(method, batch.max_model_len))
        self._proposer.attach(
            SimpleNamespace(
                input_batch=batch.rows,
                max_model_len=batch.max_model_len,
                compilation_config=SimpleNamespace(cudagraph_capture_sizes=None),
            )
        )
        self._proposed: dict[str, list[int]] = {}
        self._output = SchedulerOutput.make_empty()
        self._new: list[Any] = []

    def learn(self, call: Call) -> None:
        """Add a past output to the trees of its stage."""
        self._proposer.drafter.forest.learn(StageKey.parse(call.stage, TENANT), call.response)

    def schedule(self) -> None:
        """Note the drafts verified in the last step, and which requests began and ended."""
        batch, output = self.batch, SchedulerOutput.make_empty()
        output.finished_req_ids = set(batch.finished)
        output.scheduled_spec_decode_tokens = {name: draft for name, draft in self._proposed.items() if draft}
        num_drafted = sum(map(len, self._proposed.values()))
        output.total_num_scheduled_tokens = num_drafted + len(batch.rows.req_ids)
        self._output, self._new = output, list(map(_as_scheduled, batch.new))

    def hear(self) -> None:
        """Pass on the worker's notifications around the forward pass."""
        self._proposer.begin_step(self._output)
        self._proposer.start(self._new)

    def propose(self) -> list[list[int]]:
        """Draft, as vLLM does after a step."""
        rows = self.batch.rows
        return self._proposer.propose(self.batch.sampled, rows.num_tokens_no_spec, rows.token_ids_cpu)

    def rest(self) -> None:
        """Write the shared trees and index prompts, which runs during the forward pass."""
        self._proposed = dict(zip(self.batch.rows.req_ids, self.drafts, strict=True))
        for state in self.batch.new:
            self._proposer.drafter.forest.wait(state.req_id)
        self._proposer.drafter.settle()


class OurPlanner(OurProposer):
    """The plugin's planner for model runner V2, with the worker's notifications. It plans each step."""

    def __init__(self, batch: LiveBatch) -> None:
        super().__init__(batch)
        self._planner = StepPlanner(self._proposer.drafter, NUM_LIVE)
        self._planned: Planned | None = None

    def schedule(self) -> None:
        """Note what the scheduler reports, and put the samples where the device would."""
        super().schedule()
        sampled = self.batch.sampled
        self._num_sampled = np.array(list(map(len, sampled)), np.int32)
        self._sampled = np.full((len(sampled), 1 + NUM_SPECULATIVE_TOKENS), -1, np.int64)
        for row, tokens in enumerate(sampled):
            self._sampled[row, : len(tokens)] = tokens

    def hear(self) -> None:
        """Pass on the worker's notifications around the forward pass."""
        self._planner.begin_step(self._output)
        self._planner.start(self._new)

    def propose(self) -> list[list[int]]:
        """Plan the step, as the speculator does. The drafts come when the device runs it."""
        self._planned = self._planner.plan(self.batch.rows.req_ids, self._num_sampled, self._sampled)
        return []

    def rest(self) -> None:
        """Run the step, as the device's stream does, and what runs during the forward pass."""
        assert self._planned is not None
        step = self._planned.step
        step.run()
        self.drafts = [step.draft(row) for row in range(len(self._num_sampled))]
        super().rest()


def _as_scheduled(state: CachedRequestState) -> Any:
    """Return a new request in the scheduler's form."""
    return SimpleNamespace(
        req_id=state.req_id,
        prompt_token_ids=state.prompt_token_ids,
        prefill_token_ids=state.prompt_token_ids,
        sampling_params=state.sampling_params,
        lora_request=None,
    )


def _config(speculative: Mapping[str, Any], max_model_len: int) -> VllmConfig:
    """Return a server's vLLM configuration: the bundled model with a larger vocabulary and context."""
    arguments = EngineArgs(
        model=str(bundled_model_dir()),
        max_model_len=max_model_len,
        hf_overrides={"vocab_size": VOCABULARY, "max_position_embeddings": max_model_len},
        speculative_config={**speculative, "num_speculative_tokens": NUM_SPECULATIVE_TOKENS},
        additional_config={CONFIG_KEY: SETTINGS},
    )
    return arguments.create_engine_config()
