"""Runs vLLM's engine core in this process, and counts the steps that are sampled early.

``python -m tests.real_vllm.support.early_samples`` prints the counts and the outputs as JSON.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar
from unittest.mock import patch

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from agentspec.models import bundled_model_dir
from agentspec.vllm_plugin import scheduler
from agentspec.vllm_plugin.command import WORKER
from agentspec.vllm_plugin.model_runner import SCHEDULER, ModelRunner
from agentspec.vllm_plugin.worker_calls import EarlySampling

GRAMMAR = r"(SELECT|The) [a-z]{3,12}( [a-z]{2,9}){4,6}\."
PROMPTS = ("How many orders", "Which customer", "List the products")


class Counted(EarlySampling):
    """Counts the requests for samples, those of them that vLLM took, and vLLM's own.

    Attributes:
        counts: of all engines of this process.
    """

    counts: ClassVar[dict[str, int]] = {"asked": 0, "taken": 0, "by vLLM": 0}

    def ask(self, masks: Any) -> None:
        """Count, and ask for the samples."""
        self.counts["asked"] += 1
        super().ask(masks)

    def _samples(self, masks: Any, non_block: bool = False) -> Any:
        self.counts["taken" if self._asked is not None else "by vLLM"] += 1
        return super()._samples(masks, non_block)


def main() -> None:
    """Generate with and without a grammar."""
    llm = LLM(
        model=str(bundled_model_dir()),
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        worker_cls=WORKER,
        scheduler_cls=SCHEDULER,
        distributed_executor_backend="mp",
        speculative_config=ModelRunner(is_v2=False).speculative_config(15),
    )
    constrained = SamplingParams(
        temperature=0, max_tokens=48, structured_outputs=StructuredOutputsParams(regex=GRAMMAR)
    )
    free = SamplingParams(temperature=0, max_tokens=48)
    for params in (free, constrained):
        outputs = [one.outputs[0].text for one in llm.generate(list(PROMPTS), params, use_tqdm=False)]
        print(json.dumps({"counts": Counted.counts, "outputs": outputs}))


if __name__ == "__main__":
    with patch.object(scheduler, "EarlySampling", Counted):
        main()
