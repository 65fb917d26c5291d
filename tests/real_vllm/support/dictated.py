"""Runs vLLM's engine core in this process, and counts the steps of outputs under a JSON schema.

``python -m tests.real_vllm.support.dictated BACKEND`` prints steps and outputs as JSON, greedy and sampled:
without drafts, with those of the trees, and with what the grammar dictates as well; first of the SQL
pipeline's questions, then under a schema that leaves next to no choice. Nothing is learned. With ``--quick``
only the latter, greedy; with ``--async`` vLLM schedules ahead of the drafts, which needs model runner V2.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from agentspec.vllm_plugin import grammar
from agentspec.vllm_plugin.scheduler import StepScheduler
from agentspec.vllm_plugin.v2.scheduler import RaggedScheduler
from agentspec.wire import XARG_LEARN, XARG_MAX_DRAFT
from benchmarks.vllm.chats import load
from tests.real_vllm.support.in_process import bundled

STAGE, NUM_CHATS = "agentic_sql/extract", 3


def members(**of_what: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": of_what,
        "required": list(of_what),
        "additionalProperties": False,
    }


FILTER = members(column={"type": "string"}, op={"enum": ["=", ">"]}, value={"type": "string"})
SCHEMA = members(
    kind={"enum": ["lowest", "highest", "average", "count", "total"]},
    table={"enum": ["customers", "products", "orders"]},
    column={"type": "string"},
    filters={"type": "array", "items": FILTER},
    group_by={"const": None},
    order_by={"const": None},
    limit={"const": None},
)

PROMPTS = ("How many orders", "Which customer", "List the products")
CONSTANTS = members(
    explanation_of_the_query={"const": "There is no explanation, since nobody asked."},
    number_of_tables={"enum": ["one table", "two tables"]},
    certainty_of_the_answer={"type": "integer", "minimum": 0, "maximum": 9},
) | {"x-guidance": {"whitespace_flexible": False}}


class Steps:
    """Counts the steps in which a request runs."""

    num_steps = 0

    def schedule(self, *args: Any, **options: Any) -> Any:
        """Schedule a step, and count it."""
        scheduled = SCHEDULE[type(self)](self, *args, **options)
        Steps.num_steps += bool(scheduled.num_scheduled_tokens)
        return scheduled


SCHEDULE = {kind: kind.schedule for kind in (StepScheduler, RaggedScheduler)}


def main(backend: str, *, is_quick: bool, is_async: bool) -> None:
    """Generate in every way."""
    for kind in SCHEDULE:
        kind.schedule = Steps.schedule
    llm = bundled(
        structured_outputs_config={"backend": backend},
        additional_config={"agentspec": {"price": 0.1}},
        async_scheduling=is_async,
        distributed_executor_backend="mp" if is_async else None,  # the worker is another process then
    )
    chats = [chat.body["messages"] for chat in load(7 * NUM_CHATS, 5) if chat.stage == STAGE]
    cases = (
        (SCHEMA, lambda params: llm.chat(chats, params, use_tqdm=False)),
        (CONSTANTS, lambda params: llm.generate(list(PROMPTS), params, use_tqdm=False)),
    )
    for schema, ask in cases[1:] if is_quick else cases:
        for temperature in (0.0,) if is_quick else (0.0, 1.0):
            for drafts in ("none", "trees", "grammar"):
                print(json.dumps(generated(ask, schema, temperature, drafts)))


def never(_: Any) -> bool:
    """Know no grammar: it dictates nothing then."""
    return False


def generated(ask: Any, schema: dict[str, Any], temperature: float, drafts: str) -> dict[str, Any]:
    """Return the steps, the outputs, and the texts of those that ended by themselves."""
    params = SamplingParams(
        temperature=temperature,
        seed=1,
        max_tokens=160,
        structured_outputs=StructuredOutputsParams(json=schema),
        extra_args={XARG_LEARN: 0, **({XARG_MAX_DRAFT: 0} if drafts == "none" else {})},
    )
    Steps.num_steps = 0
    with nullcontext() if drafts == "grammar" else patch.object(grammar, "_is_known", never):
        answers = ask(params)
    return {
        "steps": Steps.num_steps,
        "outputs": [list(one.outputs[0].token_ids) for one in answers],
        "ended": [one.outputs[0].text for one in answers if one.outputs[0].finish_reason == "stop"],
    }


if __name__ == "__main__":
    main(sys.argv[1], is_quick="--quick" in sys.argv, is_async="--async" in sys.argv)
