"""``python -m examples.debate``: several agents take a position, read the others', and revise theirs.

Each agent writes SQL in its own style from its own notes, at a high temperature. In every round each agent
sees all queries with their rows, its own first, and picks one. The majority of the rows is the answer.
(Du et al. 2023, arXiv 2305.14325.)
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from examples.agentic_sql import prompts
from examples.agentic_sql.database import QueryResult
from examples.agentic_sql.pattern import Pattern, Solution, options_of, run
from examples.agentic_sql.task import Task
from examples.saving.calls import Caller
from examples.self_consistency import vote
from examples.self_refinement import chosen_sql

_SEEDS_PER_AGENT = 100
_REPLY_TEMPERATURE = 0.7
Position = tuple[str, QueryResult]


async def solve(task: Task, caller: Caller, options: argparse.Namespace) -> Solution:
    """Solve a task: opening positions, rounds of replies, vote."""
    agents = range(options.agents)
    opening = await asyncio.gather(*(_open(agent, task, caller, options.temperature) for agent in agents))
    positions = opening
    for round_number in range(1, options.rounds + 1):
        replies = (_reply(agent, round_number, positions, task, caller) for agent in agents)
        positions = await asyncio.gather(*replies)
    return Solution(vote([result for _, result in positions]), [result for _, result in opening])


async def _open(agent: int, task: Task, caller: Caller, temperature: float) -> Position:
    """Return an agent's first position; agents share three styles."""
    sampled = caller.sampled(temperature, task.seed + agent * _SEEDS_PER_AGENT)
    style = prompts.STYLES[agent % len(prompts.STYLES)]
    sql = await sampled.ask(f"open_{style}", task.asks_for_sql(await task.notes(sampled), style))
    return sql, await task.run(sql)


async def _reply(
    agent: int, round_number: int, positions: Sequence[Position], task: Task, caller: Caller
) -> Position:
    """Return an agent's position after reading all; it keeps its own if its response can't be parsed."""
    sampled = caller.sampled(_REPLY_TEMPERATURE, task.seed + agent * _SEEDS_PER_AGENT + round_number)
    read = [*positions[agent:], *positions[:agent]]
    sql = chosen_sql(await sampled.ask("reply", prompts.combine(task.text, read)))
    return (sql, await task.run(sql)) if sql else positions[agent]


PATTERN = Pattern(
    name="debate",
    description="Agents debate which SQL query is right, with and without speculation.",
    stages=("extract", "enrich", *(f"open_{style}" for style in prompts.STYLES), "reply"),
    json_stages=("extract", "reply"),
    tries="opening positions",
    solve=solve,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; see :func:`examples.agentic_sql.pattern.run`."""
    parser = options_of(PATTERN)
    parser.add_argument("--agents", type=int, default=3, metavar="N", help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="of replies (%(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=1.3, metavar="T", help="of the opening (%(default)s)"
    )
    return run(PATTERN, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
