"""``python -m examples.self_refinement``: draft a query and refine it by feedback until it runs.

The draft is sampled at a high temperature, so it often fails. SQLite reports the error, and the model
rewrites the query. Then the model reads all tries with their rows and picks one. (After Madaan et al. 2023,
arXiv 2303.17651, where the model itself gives the feedback.)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from examples.agentic_sql import prompts
from examples.agentic_sql.pattern import Pattern, Solution, options_of, run
from examples.agentic_sql.task import Task
from examples.saving.calls import Caller


async def solve(task: Task, caller: Caller, options: argparse.Namespace) -> Solution:
    """Draft a query, refine it while SQLite rejects it, then choose."""
    asked = task.asks_for_sql(await task.notes(caller))
    sql = await caller.sampled(options.temperature, task.seed).ask("draft", asked)
    tries = [(sql, await task.run(sql))]
    for round_number in range(1, options.rounds + 1):
        sql, result = tries[-1]
        if result.error is None:
            break
        refining = caller.sampled(1.0, task.seed + round_number)
        sql = await refining.ask("refine", prompts.correction(asked, sql, result.error))
        tries.append((sql, await task.run(sql)))
    chosen = await caller.ask("judge", prompts.combine(task.text, tries))
    return Solution(await task.run(chosen_sql(chosen)), [tries[0][1]])


def chosen_sql(judgement: str) -> str:
    """Return the query in the judge's JSON; without one, the empty string, which has no rows."""
    try:
        value = json.loads(judgement)
    except json.JSONDecodeError:
        return ""
    sql = value.get("sql") if isinstance(value, dict) else None
    return sql if isinstance(sql, str) else ""


PATTERN = Pattern(
    name="self_refinement",
    description="Refine a SQL query by what SQLite says of it, with and without speculation.",
    stages=("extract", "enrich", "draft", "refine", "judge"),
    json_stages=("extract", "judge"),
    tries="first drafts",
    solve=solve,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; see :func:`examples.agentic_sql.pattern.run`."""
    parser = options_of(PATTERN)
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="at most (%(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=1.5, metavar="T", help="of the draft (%(default)s)"
    )
    return run(PATTERN, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
