"""The forest as a speculator of vLLM's model runner V2 (0.32 and later), also with asynchronous scheduling.

:func:`install` replaces two names of vLLM's module of the runner, before the worker makes its runner: what
makes the speculator, and the output of a step, whose copy to the host is under way when drafts are wanted.
No file of vLLM is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_tp_group
from vllm.platforms import current_platform
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.async_utils import AsyncOutput
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator
from vllm.v1.worker.gpu.states import RequestState

from agentspec.vllm_plugin.draft_slots import DRAFTED, DRAFTS
from agentspec.vllm_plugin.drafter import ForestDrafter
from agentspec.vllm_plugin.planner import Planned, StepPlanner
from agentspec.vllm_plugin.streams import CudaStream, ImmediateStream, Stream


class StepOutput(AsyncOutput):  # type: ignore[misc]
    """The output of a step. Also has what the scheduler needs to know of the next step's drafts.

    Attributes:
        latest: the last one made in this process.
        drafts: returns the drafts for the next step; None if the scheduler does not wait for them.
    """

    latest: StepOutput | None = None
    drafts: Callable[[], DraftTokenIds | None] | None = None
    planner: StepPlanner | None = None
    planned: Planned | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        StepOutput.latest = self

    def get_output(self) -> ModelRunnerOutput:
        """Wait for the samples, and for a moment for the drafts."""
        output = super().get_output()
        if self.drafts is not None and output.req_ids:
            setattr(output, DRAFTS, self.drafts())
        elif self.planner is not None and self.planned is not None:  # the scheduler works ahead of the drafts
            setattr(output, DRAFTED, self.planner.drafted(self.planned))
        return output


class ForestSpeculator(BaseSpeculator):  # type: ignore[misc]
    """Drafts from the forest. With tensor parallelism, rank 0 drafts and sends the others its drafts.

    Args:
        vllm_config: vLLM's configuration.
        device: device of the model.
        req_states: the runner's requests.

    Attributes:
        planner: plans the steps; None on ranks that do not draft.
        draft_logits: None: a draft token counts as certain in rejection sampling.
        draft_token_confidence_probs: float32 ``[requests, K]``, read by vLLM's adaptive verification.
    """

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: VllmConfig, device: torch.device, req_states: RequestState) -> None:
        spec = vllm_config.speculative_config
        size = vllm_config.scheduler_config.max_num_seqs, spec.num_speculative_tokens
        self.enable_adaptive_verification = spec.enable_adaptive_verification
        self.draft_token_confidence_probs = torch.zeros(size, dtype=torch.float32, device=device)
        self._drafts = torch.zeros(size, dtype=torch.int64, device=device)
        self._tp = get_tp_group()
        self._stream: Stream | None = None
        self.planner: StepPlanner | None = None
        if self._tp.rank_in_group == 0:
            drafter = ForestDrafter(vllm_config)
            drafter.max_model_len = req_states.max_model_len
            self.planner = StepPlanner(drafter, size[0], _host_memory)

    def init_cudagraph_manager(self, cudagraph_mode: object) -> None:
        """Do nothing: no model drafts."""

    def capture(self) -> None:
        """Do nothing: no model drafts."""

    @torch.inference_mode()
    def propose(
        self,
        input_batch: InputBatch,
        attn_metadata: dict[str, Any],
        slot_mappings: dict[str, torch.Tensor],
        last_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        next_prefill_tokens: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        dp_sync_state: object = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: tuple[list[torch.Tensor], torch.Tensor] | None = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> torch.Tensor:
        """Enqueue the drafts for the next step. Waits for nothing.

        Returns:
            int64 ``[rows, K]``, padded with tokens of the model. Valid in the order of the stream.
        """
        drafts = self._drafts[: input_batch.num_reqs]
        if dummy_run:
            return drafts
        if self.planner is not None:
            self._draft(self.planner, input_batch.req_ids)
        if self._tp.world_size > 1:
            self._tp.broadcast(drafts, src=0)
            if self.enable_adaptive_verification:  # every rank chooses what it verifies, by these
                self._tp.broadcast(self.draft_token_confidence_probs[: input_batch.num_reqs], src=0)
        return drafts

    def _draft(self, planner: StepPlanner, names: list[str]) -> None:
        output = StepOutput.latest
        assert output is not None  # made before the drafts are wanted
        planned = planner.plan(names, output.num_sampled_tokens_np, output.sampled_token_ids)
        if planned is None:  # the drafts of the last step can be verified as well as any
            return
        if self._stream is None:
            self._stream = _stream(self._drafts.device)
        self._stream.run(planned.step, output.copy_event)
        output.planner, output.planned = planner, planned
        num_rows = len(names)
        self._drafts[:num_rows].copy_(torch.from_numpy(planner.drafts[:num_rows]), non_blocking=True)
        if self.enable_adaptive_verification:
            chances = torch.from_numpy(planner.chances[:num_rows])
            self.draft_token_confidence_probs[:num_rows].copy_(chances, non_blocking=True)


def install() -> None:
    """Have vLLM's model runner V2 of this process make a :class:`ForestSpeculator`."""
    model_runner.init_speculator = ForestSpeculator
    model_runner.AsyncOutput = StepOutput


def _stream(device: torch.device) -> Stream:
    return ImmediateStream() if device.type == "cpu" else CudaStream(torch.cuda.current_stream(device))


def _host_memory(shape: tuple[int, int], dtype: type[np.generic]) -> NDArray[Any]:
    """Return memory that the device copies from without waiting."""
    tensor = torch.from_numpy(np.zeros(shape, dtype))
    return (tensor if current_platform.is_cpu() else tensor.pin_memory()).numpy()
