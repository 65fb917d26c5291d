"""The held-out questions: a fixed, fair list, excluded from training.

Fair means that the gold query returns rows and that its answer does not depend on the breaking of ties. The
databases alternate.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count, cycle
from random import Random

from examples.agentic_sql.database import Database
from examples.agentic_sql.query import Query
from examples.agentic_sql.questions import HELD_OUT, REWORDED_DATABASE, Question, draw, is_held_out_shape
from examples.agentic_sql.schema import SCHEMAS

_SEED = 2026


def held_out(num_questions: int, databases: dict[str, Database], seed: int = _SEED) -> list[Question]:
    """Return the first ``num_questions`` held-out questions; a seed always gives the same ones."""
    questions: list[Question] = []
    seen: set[str] = set()
    rngs = {name: Random(f"held-out {seed} {name}") for name in SCHEMAS}
    for name, _ in zip(cycle(SCHEMAS), count(), strict=False):
        if len(questions) == num_questions:
            return questions
        question = draw(HELD_OUT, rngs[name], name)
        while question.text in seen or not is_fair(question.query, databases[name]):
            question = draw(HELD_OUT, rngs[name], name)
        seen.add(question.text)
        questions.append(question)
    raise AssertionError("cycle() never ends")


def is_fair(query: Query, database: Database) -> bool:
    """Return True if the gold answer is not empty and does not depend on the breaking of ties."""
    rows = database.query(query.sql()).rows
    if not rows or rows == ((0,),) or rows == ((None,),):
        return False
    if query.is_ordered:
        assert query.limit is not None
        ranks = database.query(replace(query, column=query.order, limit=query.limit + 1).sql()).rows
        return len(set(ranks)) == len(ranks)
    if query.kind == "most":
        counts = sorted(
            (int(str(n)) for _, n in database.query(replace(query, kind="count_by").sql()).rows), reverse=True
        )
        return len(counts) == 1 or counts[0] > counts[1]
    return True


def novelty(question: Question) -> str:
    """Return the main difference of a held-out question from training: wording, combination or values."""
    if question.query.database == REWORDED_DATABASE:
        return "wording"
    return "combination" if is_held_out_shape(question.query) else "values"
