"""``python -m examples.self_consistency``: many samples of one reasoning path, and a majority vote.

Each sample produces its own features, notes and SQL, at a temperature at which single paths fail. The rows of
the queries are the votes. (Wang et al. 2022, arXiv 2203.11171.)
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

from examples.agentic_sql.database import QueryResult
from examples.agentic_sql.pattern import Pattern, Solution, options_of, run
from examples.agentic_sql.task import Task
from examples.saving.calls import Caller


async def solve(task: Task, caller: Caller, options: argparse.Namespace) -> Solution:
    """Draw all samples concurrently, then vote."""
    callers = (caller.sampled(options.temperature, task.seed + number) for number in range(options.samples))
    results = await asyncio.gather(*(_path(task, one) for one in callers))
    return Solution(vote(results), results)


async def _path(task: Task, caller: Caller) -> QueryResult:
    notes = await task.notes(caller)
    return await task.run(await caller.ask("sql", task.asks_for_sql(notes)))


def vote(results: Sequence[QueryResult]) -> QueryResult:
    """Return the most frequent result. Failed queries have no vote. The first one wins ties."""
    votes = Counter(result.rows for result in results if result.error is None)
    if not votes:
        return results[0]
    winner, _ = votes.most_common(1)[0]
    return QueryResult(winner)


PATTERN = Pattern(
    name="self_consistency",
    description="Sample a SQL query many times and let the rows vote, with and without speculation.",
    stages=("extract", "enrich", "sql"),
    json_stages=("extract",),
    tries="samples",
    solve=solve,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; see :func:`examples.agentic_sql.pattern.run`."""
    parser = options_of(PATTERN)
    parser.add_argument("--samples", type=int, default=16, metavar="N", help="of each task (%(default)s)")
    parser.add_argument("--temperature", type=float, default=1.3, metavar="T", help="(%(default)s)")
    return run(PATTERN, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
