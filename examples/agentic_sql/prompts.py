"""What each stage is asked: the messages of every model call of the workflow.

Used by the workflow and by the training data alike, so that the two can't drift apart.
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
    """Which database, which kind of question, which tables? Answered in JSON."""
    databases = "\n".join(schema.summary for schema in SCHEMAS.values())
    return _messages("Classify the question. Answer in JSON.", f"{databases}\nQuestion: {question}")


def extract(question: str, database: str) -> Messages:
    """The question's parts. Answered in JSON."""
    return _messages(
        "Extract the features of the question. Answer in JSON.",
        f"{SCHEMAS[database].text}\nQuestion: {question}",
    )


def enrich(question: str, database: str, features: str, example: Question) -> Messages:
    """Notes for the SQL writers, from the retrieved schema and a similar question."""
    return _messages(
        "Write the notes that the SQL writers need.",
        f"{SCHEMAS[database].text}\nExample: {example.text}\nSQL: {example.query.sql()}\n"
        f"Question: {question}\nFeatures: {features}",
    )


def sql(question: str, notes: str, style: Style) -> Messages:
    """One SQL candidate."""
    return _messages(_SQL_ROLES[style], f"{notes}\nQuestion: {question}")


def correction(previous: Messages, bad_sql: str, error: str) -> Messages:
    """The same writer again, with what SQLite said of its query."""
    return [
        *previous,
        {"role": "assistant", "content": bad_sql},
        {"role": "user", "content": f"SQLite says: {error}\nWrite the corrected query."},
    ]


def combine(question: str, candidates: Sequence[tuple[str, QueryResult]]) -> Messages:
    """Pick the candidate to trust and answer in words. Answered in JSON."""
    lines = [f"{i}. {text}\nRows: {result.preview}" for i, (text, result) in enumerate(candidates, 1)]
    return _messages(
        "Pick the best query and answer the question. Answer in JSON.",
        "\n".join(lines) + f"\nQuestion: {question}",
    )
