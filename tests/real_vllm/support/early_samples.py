"""Runs vLLM's engine core in this process, and counts the steps that are sampled early.

``python -m tests.real_vllm.support.early_samples`` prints the counts and the outputs as JSON.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar
from unittest.mock import patch

from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from agentspec.vllm_plugin import scheduler
from agentspec.vllm_plugin.worker_calls import EarlySampling
from tests.real_vllm.support.in_process import bundled

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
    llm = bundled(distributed_executor_backend="mp")
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
