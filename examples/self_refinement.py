"""``python -m examples.self_refinement``: a draft, feedback on it, a better one, until it holds.

The draft is sampled hot, so that it often fails. SQLite says what is wrong, and the model writes the query
anew; then it looks at all its tries with their rows, and says which one to trust. (After Madaan et al. 2023,
arXiv 2303.17651; there the feedback is the model's own.)
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
    """Draft, refine while SQLite refuses it, then choose."""
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
    """The query in the judge's JSON; empty, which has no rows, if there is none."""
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
    """See :func:`examples.agentic_sql.pattern.run`."""
    parser = options_of(PATTERN)
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="at most (%(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=1.5, metavar="T", help="of the draft (%(default)s)"
    )
    return run(PATTERN, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
