"""The forest together with one of vLLM's draft models, such as an EAGLE head, in model runner V2.

The trees draft on the host while the model drafts on the device. Then each row takes the draft with the
higher expected gain (:class:`ModelDrafts <agentspec.vllm_plugin.v2.model_drafts.ModelDrafts>`).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.spec_decode import init_speculator
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
from vllm.v1.worker.gpu.states import RequestState

from agentspec.errors import ConfigError
from agentspec.vllm_plugin.v2.model_drafts import ModelDrafts
from agentspec.vllm_plugin.v2.speculator import ForestSpeculator


def check_draft_model(vllm_config: VllmConfig) -> None:
    """Raise ConfigError if vLLM's draft model can't draft together with the trees."""
    spec = vllm_config.speculative_config
    refused = {
        "enable_adaptive_verification": spec.enable_adaptive_verification,
        "a model with several MTP modules": spec.use_multi_module_mtp(),
        "prefill context parallelism": vllm_config.parallel_config.prefill_context_parallel_size > 1,
    }
    for name, is_set in refused.items():
        if is_set:
            raise ConfigError(f"{name} can't be used with a draft model and the trees")


def init_hybrid(
    num_model_tokens: int, vllm_config: VllmConfig, device: torch.device, req_states: RequestState
) -> DraftModelSpeculator:
    """Return vLLM's speculator for this configuration, which drafts together with the forest.

    Args:
        num_model_tokens: most tokens of the model's draft.
        vllm_config: vLLM's configuration; its number of speculative tokens is the trees' maximum.
        device: device of the model.
        req_states: the runner's requests.
    """
    most = min(num_model_tokens, vllm_config.num_speculative_tokens)
    speculator = init_speculator(_drafting(most, vllm_config), device, req_states)
    Hybrid(speculator, vllm_config, device, req_states).install()
    return speculator


class Hybrid:
    """Replaces two methods of a vLLM speculator. The runner still sees the same speculator.

    Args:
        speculator: vLLM's; drafts ``speculator.num_speculative_steps`` tokens at most.
        vllm_config: vLLM's configuration.
        device: device of the model.
        req_states: the runner's requests.
    """

    def __init__(
        self,
        speculator: DraftModelSpeculator,
        vllm_config: VllmConfig,
        device: torch.device,
        req_states: RequestState,
    ) -> None:
        self._speculator = speculator
        self._propose = speculator.propose
        self._init_cudagraph_manager = speculator.init_cudagraph_manager
        self._most: int = speculator.num_speculative_steps
        self._num_slots: int = vllm_config.num_speculative_tokens
        # all processes of a draft model must run the same passes, but only one knows the number of wanted
        # tokens
        num_processes = get_tp_group().world_size * vllm_config.parallel_config.data_parallel_size
        self._is_fixed = num_processes > 1
        self._forest = ForestSpeculator(vllm_config, device, req_states, ModelDrafts(self._most))

    def install(self) -> None:
        """Have the speculator draft together with the forest."""
        self._speculator.propose = self.propose
        self._speculator.init_cudagraph_manager = self.init_cudagraph_manager
        self._speculator.planner = self._forest.planner  # the worker looks for it there

    def init_cudagraph_manager(self, cudagraph_mode: object) -> None:
        """Prepare its CUDA graphs. Its first pass reads all tokens that the model verified."""
        self._speculator.num_speculative_steps = self._num_slots
        try:
            self._init_cudagraph_manager(cudagraph_mode)
        finally:
            self._speculator.num_speculative_steps = self._most

    @torch.inference_mode()
    def propose(
        self,
        input_batch: InputBatch,
        *args: Any,
        dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Enqueue the drafts for the next step: those of the trees, or of the model. Waits for nothing.

        Args:
            input_batch: the step's requests.
            args, options: vLLM's, for its speculator.
            dummy_run: the requests are made up.
            num_speculative_tokens: vLLM's, here always the trees' maximum.

        Returns:
            int64 ``[rows, K]``, padded with tokens of the model.
        """
        num_wanted = self._most if dummy_run else self._forest.begin(input_batch.req_ids)
        num_drafted = self._most if self._is_fixed else num_wanted
        made = self._propose(
            input_batch, *args, dummy_run=dummy_run, num_speculative_tokens=num_drafted, **options
        )
        drafts = self._forest.drafts(input_batch.num_reqs)
        if not dummy_run:
            self._forest.join()
            of_trees = drafts[:, :num_wanted]
            of_trees.copy_(torch.where(drafts[:, :1] < 0, made[:, :num_wanted], of_trees))
            self._forest.share(input_batch.num_reqs)
        return drafts


def _drafting(num_tokens: int, vllm_config: VllmConfig) -> VllmConfig:
    """Return the configuration of a speculator that drafts ``num_tokens`` tokens."""
    config = copy.copy(vllm_config)
    config.speculative_config = copy.copy(vllm_config.speculative_config)
    config.speculative_config.num_speculative_tokens = num_tokens
    return config
