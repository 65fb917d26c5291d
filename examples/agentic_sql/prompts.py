"""The prompts of each stage: messages of every model call of the workflow.

Shared by the workflow and the training data, so that both stay consistent.
"""

from __future__ import annotations

from collections.abc import Sequence

from examples.agentic_sql.database import QueryResult
from examples.agentic_sql.query import Style
from examples.agentic_sql.questions import Question
from examples.agentic_sql.schema import SCHEMAS

Messages = list[dict[str, str]]

STYLES: tuple[Style, ...] = ("join", "alias", "nested")  # of SQL 1, 2, 3
_SQL_ROLES: dict[Style, str] = {
    "join": "Write one SQLite query with full table names.",
    "alias": "Write one SQLite query with aliases T1, T2.",
    "nested": "Write one SQLite query with sub-queries where they do.",
}


def _messages(system: str, user: str) -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def classify(question: str) -> Messages:
    """Return the prompt for database, kind of question and tables. The answer is JSON."""
    databases = "\n".join(schema.summary for schema in SCHEMAS.values())
    return _messages("Classify the question. Answer in JSON.", f"{databases}\nQuestion: {question}")


def extract(question: str, database: str) -> Messages:
    """Return the prompt for the question's features. The answer is JSON."""
    return _messages(
        "Extract the features of the question. Answer in JSON.",
        f"{SCHEMAS[database].text}\nQuestion: {question}",
    )


def enrich(question: str, database: str, features: str, example: Question) -> Messages:
    """Return the prompt for the SQL writers' notes, with the retrieved schema and a similar question."""
    return _messages(
        "Write the notes that the SQL writers need.",
        f"{SCHEMAS[database].text}\nExample: {example.text}\nSQL: {example.query.sql()}\n"
        f"Question: {question}\nFeatures: {features}",
    )


def sql(question: str, notes: str, style: Style) -> Messages:
    """Return the prompt for one SQL candidate."""
    return _messages(_SQL_ROLES[style], f"{notes}\nQuestion: {question}")


def correction(previous: Messages, bad_sql: str, error: str) -> Messages:
    """Return the writer's second prompt, with SQLite's error message for its query."""
    return [
        *previous,
        {"role": "assistant", "content": bad_sql},
        {"role": "user", "content": f"SQLite says: {error}\nWrite the corrected query."},
    ]


def combine(question: str, candidates: Sequence[tuple[str, QueryResult]]) -> Messages:
    """Return the prompt for choosing a candidate and answering in words. The answer is JSON."""
    lines = [f"{i}. {text}\nRows: {result.preview}" for i, (text, result) in enumerate(candidates, 1)]
    return _messages(
        "Pick the best query and answer the question. Answer in JSON.",
        "\n".join(lines) + f"\nQuestion: {question}",
    )
