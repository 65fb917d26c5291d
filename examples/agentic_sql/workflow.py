"""The pipeline: Classify -> Extract -> Enrich -> SQL 1..3 in parallel -> Combine.

The model writes all texts. This program only routes, retrieves and runs the queries.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from examples.agentic_sql import prompts
from examples.agentic_sql.calls import Caller
from examples.agentic_sql.database import Database, QueryResult
from examples.agentic_sql.query import Style
from examples.agentic_sql.questions import Question
from examples.agentic_sql.retrieval import similar
from examples.agentic_sql.schema import SCHEMAS

Candidate = tuple[str, QueryResult]
NUM_SOLVED = 10  # retrieved solved questions; the nearest is also the Enrich stage's example


@dataclass(frozen=True, slots=True)
class Answer:
    """The pipeline's result: the chosen query, its rows, and the answer in words.

    ``failure`` is the stage with an unusable text of the model, if any.
    """

    sql: str
    result: QueryResult
    text: str
    failure: str | None = None


async def answer(question: str, caller: Caller, databases: dict[str, Database]) -> Answer:
    """Take one question through all stages."""
    classified = as_json(await caller.ask("classify", prompts.classify(question)))
    name = classified.get("database")
    if name not in SCHEMAS:
        return failed("classify")
    solved = similar(question, name, NUM_SOLVED)
    features = await caller.ask("extract", prompts.extract(question, name), prediction=guess(solved))
    notes = await caller.ask("enrich", prompts.enrich(question, name, features, solved[0]), max_tokens=384)
    writers = (
        write_sql(i, style, question, notes, caller, databases[name])
        for i, style in enumerate(prompts.STYLES, 1)
    )
    candidates = await asyncio.gather(*writers)
    return await _combine(question, candidates, caller, databases[name])


def guess(solved: Sequence[Question]) -> str:
    """Return the features of solved questions as a prediction of this one's (OpenAI's predicted output)."""
    return "\n".join(other.query.features() for other in solved)


async def write_sql(
    number: int, style: Style, question: str, notes: str, caller: Caller, database: Database
) -> Candidate:
    """Return one writer's query, after one retry with SQLite's error message if it was rejected."""
    stage = f"sql_{number}"
    messages = prompts.sql(question, notes, style)
    sql = await caller.ask(stage, messages)
    result = await asyncio.to_thread(database.query, sql)
    if result.error is not None:
        sql = await caller.ask(stage, prompts.correction(messages, sql, result.error))
        result = await asyncio.to_thread(database.query, sql)
    return sql, result


async def _combine(question: str, candidates: list[Candidate], caller: Caller, database: Database) -> Answer:
    return await settled(await caller.ask("combine", prompts.combine(question, candidates)), database)


async def settled(combined_text: str, database: Database) -> Answer:
    """Return the answer in the Combine stage's text, with its query's rows."""
    combined = as_json(combined_text)
    sql, text = combined.get("sql"), combined.get("answer")
    if not isinstance(sql, str) or not isinstance(text, str):
        return failed("combine")
    return Answer(sql, await asyncio.to_thread(database.query, sql), text)


def failed(stage: str) -> Answer:
    """Return the answer for an unusable text of this stage."""
    return Answer("", QueryResult(error=f"the {stage} stage wrote no usable JSON"), "", failure=stage)


def as_json(text: str) -> dict[str, Any]:
    """Return the JSON object in the text; empty if the text is not a JSON object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
