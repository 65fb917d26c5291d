"""The pipeline: Classify -> Extract -> Enrich -> SQL 1..3 in parallel -> Combine.

Every text comes from the model; this program only routes, retrieves and runs the queries.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from examples.agentic_sql import prompts
from examples.agentic_sql.calls import Caller
from examples.agentic_sql.database import Database, QueryResult
from examples.agentic_sql.query import Style
from examples.agentic_sql.retrieval import similar
from examples.agentic_sql.schema import SCHEMAS

Candidate = tuple[str, QueryResult]
NUM_SOLVED = 10  # solved questions that are retrieved; the nearest is also the Enrich stage's example


@dataclass(frozen=True, slots=True)
class Answer:
    """What the pipeline says: the query it trusts, its rows, and the answer in words.

    ``failure`` says at which stage the model's text could not be used, if it could not.
    """

    sql: str
    result: QueryResult
    text: str
    failure: str | None = None


async def answer(question: str, caller: Caller, databases: dict[str, Database]) -> Answer:
    """Take one question through all stages."""
    classified = _json(await caller.ask("classify", prompts.classify(question)))
    name = classified.get("database")
    if name not in SCHEMAS:
        return _failed("classify")
    solved = similar(question, name, NUM_SOLVED)
    # their features are a good guess at this question's: predicted output, as OpenAI calls it
    guess = "\n".join(other.query.features() for other in solved)
    features = await caller.ask("extract", prompts.extract(question, name), prediction=guess)
    notes = await caller.ask("enrich", prompts.enrich(question, name, features, solved[0]), max_tokens=384)
    writers = (
        write_sql(i, style, question, notes, caller, databases[name])
        for i, style in enumerate(prompts.STYLES, 1)
    )
    candidates = await asyncio.gather(*writers)
    return await _combine(question, candidates, caller, databases[name])


async def write_sql(
    number: int, style: Style, question: str, notes: str, caller: Caller, database: Database
) -> Candidate:
    """One writer: a query, and one more try with SQLite's words if it was refused."""
    stage = f"sql_{number}"
    messages = prompts.sql(question, notes, style)
    sql = await caller.ask(stage, messages)
    result = await asyncio.to_thread(database.query, sql)
    if result.error is not None:
        sql = await caller.ask(stage, prompts.correction(messages, sql, result.error))
        result = await asyncio.to_thread(database.query, sql)
    return sql, result


async def _combine(question: str, candidates: list[Candidate], caller: Caller, database: Database) -> Answer:
    combined = _json(await caller.ask("combine", prompts.combine(question, candidates)))
    sql, text = combined.get("sql"), combined.get("answer")
    if not isinstance(sql, str) or not isinstance(text, str):
        return _failed("combine")
    return Answer(sql, await asyncio.to_thread(database.query, sql), text)


def _failed(stage: str) -> Answer:
    return Answer("", QueryResult(error=f"the {stage} stage wrote no usable JSON"), "", failure=stage)


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
