"""The domain: gold queries agree in every style, and the held-out part is really new."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from examples.agentic_sql import question_set, questions
from examples.agentic_sql.database import Database, open_all
from examples.agentic_sql.prompts import STYLES
from examples.agentic_sql.schema import SCHEMAS
from examples.agentic_sql.values import POOLS, is_held_out


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Database]:
    return open_all(tmp_path_factory.mktemp("databases"))


def _training(number: int) -> list[questions.Question]:
    return list(islice(questions.stream(questions.TRAINING, "a test"), number))


def test_every_style_of_gold_sql_returns_the_same_rows(databases: dict[str, Database]) -> None:
    held_out = islice(questions.stream(questions.HELD_OUT, "a test"), 200)
    for question in [*held_out, *_training(200)]:
        query = question.query
        first, *others = (databases[query.database].query(query.sql(style)) for style in STYLES)
        assert first.error is None, query.sql()
        assert all(first.matches(other) for other in others), query


def test_there_are_four_databases_with_rows(databases: dict[str, Database]) -> None:
    assert len(databases) >= 4
    for name, database in databases.items():
        for table in SCHEMAS[name].tables:
            assert database.query(f"SELECT COUNT(*) FROM {table.name}").rows == ((table.num_rows,),)


def test_held_out_questions_are_fixed_distinct_and_fair(databases: dict[str, Database]) -> None:
    first, again = (question_set.held_out(40, databases) for _ in range(2))
    assert first == again
    assert len({q.text for q in first}) == 40
    assert {q.query.database for q in first} == set(databases)
    assert all(question_set.is_fair(q.query, databases[q.query.database]) for q in first)


def test_training_never_sees_a_held_out_value_or_shape() -> None:
    for question in _training(1500):
        assert not questions.is_held_out_shape(question.query)
        for condition in question.query.filters:
            pool = SCHEMAS[question.query.database].table(condition.table).column(condition.column).pool
            value = condition.values[0]
            if pool and value in POOLS[pool]:  # an invented word may hash either way
                assert not is_held_out(value), f"{value} is asked about in training"


def test_held_out_questions_use_held_out_values_only(databases: dict[str, Database]) -> None:
    for question in question_set.held_out(60, databases):
        for condition in question.query.filters:
            if isinstance(condition.values[0], str):
                assert is_held_out(condition.values[0])


def _pattern(question: questions.Question) -> str:
    """Return the question's words without its values."""
    text = question.text
    for condition in question.query.filters:
        for value in condition.values:
            text = text.replace(str(value), "_")
    return text.replace(str(question.query.limit), "_") if question.query.limit else text


def test_the_reworded_database_is_asked_about_in_other_words_only() -> None:
    trained = {_pattern(q) for q in _training(12_000) if q.query.database == questions.REWORDED_DATABASE}
    held_out = islice(questions.stream(questions.HELD_OUT, "wording"), 800)
    asked = {_pattern(q) for q in held_out if q.query.database == questions.REWORDED_DATABASE}
    assert len(trained) > 500
    assert len(asked) > 100
    assert not trained & asked


def test_a_database_is_read_only_and_answers_errors_as_text(databases: dict[str, Database]) -> None:
    shop = databases["shop"]
    assert "readonly" in str(shop.query("DELETE FROM orders").error)
    assert shop.query("SELECT colour FROM orders").error == "no such column: colour"
    assert shop.query("").rows == ()
    assert shop.query("SELECT COUNT(*) FROM orders").rows == ((600,),)


def test_a_query_that_never_ends_is_stopped(tmp_path: Path) -> None:
    open_all(tmp_path)
    hurried = Database(tmp_path / "shop.sqlite", timeout_s=0.1)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT MAX(i) FROM n"
    assert hurried.query(endless).error == "interrupted"
