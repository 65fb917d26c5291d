"""Training samples: prompt and expected output of each stage, for random training questions.

Combine sees real rows if the query returns any, else mostly invented ones. Correction turns see SQLite's own
error messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.agentic_sql import prompts
from examples.agentic_sql.database import Database, QueryResult
from examples.agentic_sql.query import Query
from examples.agentic_sql.questions import TRAINING, Question, Source, draw
from examples.agentic_sql.retrieval import most_similar
from examples.agentic_sql.values import invent


@dataclass(frozen=True, slots=True)
class Sample:
    """One model call: the messages and the expected text."""

    stage: str
    messages: prompts.Messages
    target: str


def stream(databases: dict[str, Database], seed: int | str, source: Source = TRAINING) -> Iterator[Sample]:
    """Yield endless samples, a few per question, with the harder stages more often."""
    rng = Random(f"samples {seed}")
    while True:
        yield from of_question(draw(source, rng), databases, rng)


def copying(seed: int | str) -> Iterator[Sample]:
    """Yield endless samples that repeat a text, to teach copying early."""
    rng = Random(f"copying {seed}")
    while True:
        words = [
            invent(rng) if rng.random() < 0.6 else str(rng.randint(0, 9999))
            for _ in range(rng.randint(3, 14))
        ]
        text = " ".join(words)
        yield Sample("copy", [{"role": "user", "content": text}], text)


def mixed(first: Iterator[Sample], second: Iterator[Sample]) -> Iterator[Sample]:
    """Yield from both streams alternately."""
    for pair in zip(first, second, strict=False):
        yield from pair


def of_question(question: Question, databases: dict[str, Database], rng: Random) -> Iterator[Sample]:
    """Yield the samples drawn from one question."""
    query, text = question.query, question.text
    database = databases[query.database]
    if rng.random() < 0.4:
        yield Sample("classify", prompts.classify(text), query.classification())
    yield Sample("extract", prompts.extract(text, query.database), query.features())
    example = most_similar(text, query.database)
    if rng.random() < 0.5:
        yield Sample(
            "enrich",
            prompts.enrich(text, query.database, query.features(), example),
            query.context(example.query.sql()),
        )
    if rng.random() < 0.9:
        yield _sql_sample(question, query.context(example.query.sql()), database, rng)
    if rng.random() < 0.45:
        yield _combine_sample(question, database, rng)


def _sql_sample(question: Question, notes: str, database: Database, rng: Random) -> Sample:
    style = rng.choice(prompts.STYLES)
    messages = prompts.sql(question.text, notes, style)
    if rng.random() < 0.15:
        broken = _break(question.query.sql(style), rng)
        error = database.query(broken).error
        if error is not None:
            messages = prompts.correction(messages, broken, error)
    return Sample("sql", messages, question.query.sql(style))


def _break(sql: str, rng: Random) -> str:
    """Return the query with a typical mistake of models: one word misspelt, missing or doubled."""
    words = sql.split(" ")
    i = rng.randrange(len(words))
    word = words[i]
    match rng.randrange(4):
        case 0:
            words[i] = word[:-1]
        case 1:
            words[i] = ""
        case 2:
            words[i] = f"{word} {word}"
        case _:
            j = rng.randrange(len(word))
            words[i] = word[:j] + rng.choice("aeiostr") + word[j:]
    return " ".join(w for w in words if w)


def _combine_sample(question: Question, database: Database, rng: Random) -> Sample:
    query = question.query
    right = _rows(query, database, rng)
    candidates = [(query.sql(style), right) for style in prompts.STYLES]
    choice = 0
    if rng.random() < 0.35:  # one writer is wrong; the two that agree are right
        wrong = rng.randrange(3)
        candidates[wrong] = _wrong_candidate(question, candidates[wrong][0], database, rng)
        choice = 1 if wrong == 0 else 0
    return Sample(
        "combine",
        prompts.combine(question.text, candidates),
        combination(choice, candidates[choice][0], query.answer(right.preview)),
    )


def combination(choice: int, sql: str, answer: str) -> str:
    """Return the Combine stage's JSON; ``choice`` counts from 0 here and from 1 in the text."""
    return json.dumps({"choice": choice + 1, "sql": sql, "answer": answer})


def _wrong_candidate(
    question: Question, sql: str, database: Database, rng: Random
) -> tuple[str, QueryResult]:
    if rng.random() < 0.4:
        broken = _break(sql, rng)
        result = database.query(broken)
        if result.error is not None:
            return broken, result
    other = draw(TRAINING, rng, question.query.database).query
    return other.sql(rng.choice(prompts.STYLES)), _rows(other, database, rng)


def _rows(query: Query, database: Database, rng: Random) -> QueryResult:
    real = database.query(query.sql())
    is_empty = not real.rows or real.rows in (((0,),), ((None,),))
    return real if not is_empty or rng.random() < 0.15 else _invented_rows(query, rng)


def _invented_rows(query: Query, rng: Random) -> QueryResult:
    def text() -> str:
        return " ".join(invent(rng) for _ in range(rng.choice((1, 1, 2))))

    def number() -> float | int:
        return round(rng.uniform(1, 999), 2) if query.kind.startswith("average") else rng.randint(1, 999)

    if query.kind in ("count", "average", "total", "highest", "lowest"):
        return QueryResult(rows=((number(),),))
    if query.kind == "most":
        return QueryResult(rows=((text(),),))
    is_pair = query.kind in ("count_by", "average_by")
    column = query.column
    is_number = column is not None and query.schema.table(column[0]).column(column[1]).kind == "number"
    num_rows = query.limit or rng.randint(1, 40)
    return QueryResult(
        rows=tuple(
            (text(), number()) if is_pair else ((number(),) if is_number else (text(),))
            for _ in range(num_rows)
        )
    )
