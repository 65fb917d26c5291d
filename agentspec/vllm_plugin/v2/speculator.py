"""The forest as a speculator of vLLM's model runner V2, also with asynchronous scheduling.

:func:`install` replaces two names in vLLM's module of the runner, before the worker creates its runner: the
function that creates the speculator, and the class of a step's output. When the scheduler needs the drafts,
the copy of this output to the host is still running. No file of vLLM is changed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_tp_group
from vllm.platforms import current_platform
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.async_utils import AsyncOutput
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator
from vllm.v1.worker.gpu.states import RequestState

from agentspec.vllm_plugin.drafter import ForestDrafter
from agentspec.vllm_plugin.planner import Planned, StepPlanner
from agentspec.vllm_plugin.signals import Signal
from agentspec.vllm_plugin.v2.model_drafts import ModelDrafts
from agentspec.vllm_plugin.v2.streams import CudaStream, ImmediateStream


class StepOutput(AsyncOutput):  # type: ignore[misc]
    """The output of a step, with the next step's draft lengths and probabilities for the scheduler.

    Attributes:
        latest: the last output created in this process.
    """

    latest: StepOutput | None = None
    planner: StepPlanner | None = None
    planned: Planned | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        StepOutput.latest = self

    def get_output(self) -> ModelRunnerOutput:
        """Wait for the samples, and for a moment for the drafts."""
        output = super().get_output()
        if self.planner is not None and self.planned is not None:
            Signal(drafted=self.planner.drafted(self.planned)).attach(output)
        return output


class ForestSpeculator(BaseSpeculator):  # type: ignore[misc]
    """Drafts from the forest. With tensor parallelism, rank 0 drafts and sends the others its drafts.

    Args:
        vllm_config: vLLM's configuration.
        device: device of the model.
        req_states: the runner's requests.
        model: statistics of vLLM's draft model, if there is one.

    Attributes:
        planner: plans the steps; None on ranks that do not draft.
        draft_logits: None: rejection sampling treats a draft token as certain.
        draft_token_confidence_probs: float32 ``[requests, K]``, read by vLLM's adaptive verification.
    """

    supports_mm_inputs = False
    draft_logits = None

    def __init__(
        self,
        vllm_config: VllmConfig,
        device: torch.device,
        req_states: RequestState,
        model: ModelDrafts | None = None,
    ) -> None:
        spec = vllm_config.speculative_config
        size = vllm_config.scheduler_config.max_num_seqs, spec.num_speculative_tokens
        self.enable_adaptive_verification = spec.enable_adaptive_verification
        self.draft_token_confidence_probs = torch.zeros(size, dtype=torch.float32, device=device)
        self._drafts = torch.zeros(size, dtype=torch.int64, device=device)
        self._tp = get_tp_group()
        self._stream: ImmediateStream | CudaStream | None = None
        self._has_model = model is not None
        self._is_ahead = vllm_config.scheduler_config.async_scheduling  # of the drafts
        self.planner: StepPlanner | None = None
        if self._tp.rank_in_group == 0:
            drafter = ForestDrafter(vllm_config)
            drafter.max_model_len = req_states.max_model_len
            self.planner = StepPlanner(drafter, size[0], _host_memory, model=model)

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
        if not dummy_run:
            self.begin(input_batch.req_ids)
            self.share(input_batch.num_reqs)
        return self.drafts(input_batch.num_reqs)

    def drafts(self, num_rows: int) -> torch.Tensor:
        """Return the drafts of the first rows, int64 ``[rows, K]``."""
        return self._drafts[:num_rows]

    def begin(self, names: list[str]) -> int:
        """Enqueue the step of these rows. Return the number of tokens that the draft model has to draft."""
        if self.planner is None:
            return 0
        output = StepOutput.latest
        assert output is not None  # vLLM creates the output before it asks for drafts
        planned = self.planner.plan(names, output.num_sampled_tokens_np, output.sampled_token_ids)
        if planned is None:  # planning failed: any tokens may be verified, so those of the last step stay
            self.drafts(len(names)).clamp_(min=0)
            return 0
        if self._stream is None:
            self._stream = _stream(self._drafts.device, has_side=self._has_model)
        self._stream.run(planned.step, output.copy_event)
        if self._is_ahead:
            output.planner, output.planned = self.planner, planned
        with self._stream.copying():
            self._copy(self.planner, len(names))
        return planned.num_model

    def join(self) -> None:
        """Have the stream's later work wait for the step that :meth:`begin` enqueued."""
        if self._stream is not None:
            self._stream.join()

    def share(self, num_rows: int) -> None:
        """Send the other ranks the drafts of rank 0."""
        drafts = self.drafts(num_rows)
        if self._tp.world_size > 1:
            self._tp.broadcast(drafts, src=0)
            if self.enable_adaptive_verification:  # every rank decides by these which tokens it verifies
                self._tp.broadcast(self.draft_token_confidence_probs[:num_rows], src=0)

    def _copy(self, planner: StepPlanner, num_rows: int) -> None:
        """Copy the drafts to the device, without waiting."""
        self._drafts[:num_rows].copy_(torch.from_numpy(planner.drafts[:num_rows]), non_blocking=True)
        if self.enable_adaptive_verification:
            chances = torch.from_numpy(planner.chances[:num_rows])
            self.draft_token_confidence_probs[:num_rows].copy_(chances, non_blocking=True)


def install(num_model_tokens: int = 0) -> None:
    """Have vLLM's model runner V2 in this process create a :class:`ForestSpeculator`.

    Args:
        num_model_tokens: largest number of tokens that vLLM's own speculator drafts in addition; 0 = none.
    """
    if num_model_tokens:
        from agentspec.vllm_plugin.v2.hybrid import init_hybrid

        model_runner.init_speculator = partial(init_hybrid, num_model_tokens)
    else:
        model_runner.init_speculator = ForestSpeculator
    model_runner.AsyncOutput = StepOutput


def _stream(device: torch.device, *, has_side: bool) -> ImmediateStream | CudaStream:
    if device.type == "cpu":
        return ImmediateStream()
    cuda: Any = torch.cuda
    return CudaStream(cuda.current_stream(device), cuda.Stream(device) if has_side else None)


def _host_memory(shape: tuple[int, int], dtype: type[np.generic]) -> NDArray[Any]:
    """Return memory that the device copies from without waiting."""
    tensor = torch.from_numpy(np.zeros(shape, dtype))
    return (tensor if current_platform.is_cpu() else tensor.pin_memory()).numpy()
