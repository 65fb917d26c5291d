"""Runs vLLM's engine core in this process, and counts the steps of outputs under a JSON schema.

``python -m tests.real_vllm.support.dictated BACKEND`` prints steps and outputs as JSON: without drafts, with.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from agentspec.vllm_plugin.scheduler import StepScheduler
from agentspec.wire import XARG_LEARN, XARG_MAX_DRAFT
from tests.real_vllm.support.in_process import bundled

PROMPTS = ("How many orders", "Which customer", "List the products")
SCHEMA = {
    "type": "object",
    "properties": {
        "explanation_of_the_query": {"const": "There is no explanation, since nobody asked."},
        "number_of_tables": {"enum": ["one table", "two tables"]},
        "certainty_of_the_answer": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["explanation_of_the_query", "number_of_tables", "certainty_of_the_answer"],
    "additionalProperties": False,
}


class Counted(StepScheduler):
    """Counts the steps in which a request runs."""

    num_steps = 0

    def schedule(self, *args: Any, **options: Any) -> Any:
        """Schedule a step, and count it."""
        scheduled = super().schedule(*args, **options)
        Counted.num_steps += bool(scheduled.num_scheduled_tokens)
        return scheduled


def main(backend: str) -> None:
    """Generate without drafts and with them. Nothing is learned."""
    import agentspec.vllm_plugin.scheduler as scheduler

    scheduler.StepScheduler = Counted
    llm = bundled(structured_outputs_config={"backend": backend, "disable_any_whitespace": True})
    for temperature in (0.0, 1.0):
        for tags in ({XARG_MAX_DRAFT: 0, XARG_LEARN: 0}, {XARG_LEARN: 0}):
            params = SamplingParams(
                temperature=temperature,
                seed=1,
                max_tokens=160,
                structured_outputs=StructuredOutputsParams(json=SCHEMA),
                extra_args=tags,
            )
            Counted.num_steps = 0
            outputs = [
                list(one.outputs[0].token_ids) for one in llm.generate(list(PROMPTS), params, use_tqdm=False)
            ]
            texts = [llm.get_tokenizer().decode(tokens, skip_special_tokens=True) for tokens in outputs]
            print(json.dumps({"steps": Counted.num_steps, "outputs": outputs, "texts": texts}))


if __name__ == "__main__":
    main(sys.argv[1])
