"""How much the benchmark serves."""

from __future__ import annotations

from dataclasses import dataclass

from lab.price.work import WorkSizes

CALLS_PER_CLIENT = 4  # with fewer, few steps of a run have no prompts and no idle clients


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of calls and of their tokens.

    Attributes:
        sets: recorded sets, by the names of their files: one where drafts pay, and one of open-ended text.
        num_clients: requests at a time.
        history: answers before them that the forest has learned.
        prompt_tokens, output_tokens: of a call, at most.
        rounds: of each load at least, each with new engines.
        further_s: time of a load's further rounds, in which it is not clear if drafts make it slower.
    """

    sets: tuple[str, ...] = ("rsl_sql_bird_dev_gpt4o", "spec_bench_vicuna7b")
    num_clients: tuple[int, ...] = (1, 4, 16)
    history: int = 100
    prompt_tokens: int = 64
    output_tokens: int = 64
    rounds: int = 2
    further_s: float = 300.0

    def num_calls(self, num_clients: int, least: int) -> int:
        """Return the number of calls under a load."""
        return max(least, CALLS_PER_CLIENT * num_clients)

    def work(self, least: int) -> WorkSizes:
        """Return how much of a set is read."""
        most = self.num_calls(max(self.num_clients), least)
        return WorkSizes(most, self.history, self.prompt_tokens, self.output_tokens)


FULL = Sizes()
QUICK = Sizes(num_clients=(1, 4), history=20, output_tokens=24, rounds=1, further_s=0)
