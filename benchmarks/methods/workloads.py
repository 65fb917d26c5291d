"""What the methods are compared on: calls whose outputs the bundled model writes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentspec.generation import GenerationRequest
from benchmarks.load import calls

NUM_SAMPLES = 16
TEMPERATURE = 1.3  # as in examples/self_consistency.py
SAMPLED_SHARE = 8  # a question takes minutes with all methods
SAMPLED_STAGES = ("extract", "enrich", "sql_1")


@dataclass(frozen=True, slots=True)
class Workload:
    """Questions, each with its calls in workflow order.

    Attributes:
        num_clients: questions at a time.
        num_slots: sequences at a time.
    """

    questions: Sequence[Sequence[GenerationRequest]]
    num_clients: int
    num_slots: int


def sql(num_questions: int, seed: int) -> Workload:
    """The text-to-SQL pipeline, greedy, four questions at a time."""
    return Workload(_questions(num_questions, seed), 4, 4)


def sampling(num_questions: int, seed: int) -> Workload:
    """Sixteen samples of each call of three stages, one question at a time; of an eighth of the questions."""
    questions = [
        [_sampled(call) for call in question if call.tags.stage.path[-1] in SAMPLED_STAGES]
        for question in _questions(max(1, num_questions // SAMPLED_SHARE), seed)
    ]
    return Workload(questions, 1, NUM_SAMPLES)


def _questions(number: int, seed: int) -> list[list[GenerationRequest]]:
    """Return each question's calls, with sessions that no other seed has."""
    return [
        [replace(call, tags=replace(call.tags, session=f"{seed}-{call.tags.session}")) for call in question]
        for question in calls.load(number, seed)
    ]


def _sampled(call: GenerationRequest) -> GenerationRequest:
    params = replace(call.sampling, temperature=TEMPERATURE, n=NUM_SAMPLES, seed=1, json_schema=None)
    return replace(call, sampling=params)


WORKLOADS: Mapping[str, Callable[[int, int], Workload]] = {"sql": sql, "sampling": sampling}
