"""Rounds of lanes in turn: every variant under every load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.models import bundled_model_dir
from agentspec.reporting.report import Announce
from benchmarks.harness import calls
from benchmarks.harness.process import without_gc
from lab.load.lane import Lane
from lab.load.variants import OFF, VARIANTS

QUESTIONS_PER_CLIENT = 1.5  # with fewer, most of a run would be its end, when clients are idle
TURN_S = 0.1  # CPU time of one turn: shorter than the machine's fluctuations


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of work: questions of seven calls each, at least; rounds, each with new lanes; clients."""

    num_questions: int = 8
    num_rounds: int = 5
    num_clients: tuple[int, ...] = (1, 2, 4, 8, 16)
    seed: int = 1

    def questions(self, num_clients: int) -> int:
        """Return the number of questions for a number of clients."""
        return max(self.num_questions, round(QUESTIONS_PER_CLIENT * num_clients))


Served = dict[str, dict[str, Any]]  # variant -> figures


def measure(sizes: Sizes, announce: Announce) -> dict[int, list[Served]]:
    """Return each variant's figures in each round, by the number of live requests.

    Raises:
        ConfigError: the example's questions are missing.
    """
    torch.set_num_threads(1)  # more are slower with the bundled model, and one can be timed
    questions = {n: calls.load(sizes.questions(n), sizes.seed) for n in sizes.num_clients}
    folder = bundled_model_dir()
    model, tokenizer = load_model(folder), Tokenizer.load(folder)
    rounds: dict[int, list[Served]] = {num_clients: [] for num_clients in sizes.num_clients}
    for number in range(sizes.num_rounds):
        for num_clients in sizes.num_clients:
            announce(f"round {number + 1} of {sizes.num_rounds}, {num_clients} at a time")
            lanes = {
                name: Lane(model, tokenizer, questions[num_clients], one.draft, one.price, num_clients)
                for name, one in VARIANTS.items()
            }
            take_turns(list(lanes.values()))
            rounds[num_clients].append(_served(lanes))
    return rounds


def take_turns(lanes: Sequence[Lane]) -> None:
    """Run every lane to its end, in short turns."""
    with without_gc():
        while waiting := [lane for lane in lanes if not lane.is_done]:
            for lane in waiting:
                lane.run(TURN_S)


def _served(lanes: Mapping[str, Lane]) -> Served:
    plain = lanes[OFF].outputs
    return {
        name: {
            "tokens_per_cpu_s": lane.num_tokens / lane.cpu_s,
            "tokens_per_s": lane.num_tokens / lane.wall_s,
            "outputs_identical": lane.outputs == plain,
            "price": lane.price,
            **lane.speculation(),
        }
        for name, lane in lanes.items()
    }
