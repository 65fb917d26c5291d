"""Questions in words, drawn at random from the schemas, split into train and held-out.

Held-out questions differ from training in three ways:
- **values**: text values are never those of training (``values.is_held_out``);
- **combinations**: half of them have a shape of query (kind, columns, conditions) that training never sees
  (a hash of ``Query.shape``);
- **wording**: for one database (``airline``) training uses only the everyday phrases, and held-out questions
  use only the other phrases. Training sees those only with the other databases.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import get_args

from examples.agentic_sql.query import Filter, Kind, Op, Query
from examples.agentic_sql.schema import SCHEMAS, Column, Schema, Table
from examples.agentic_sql.values import invent, pool_values

REWORDED_DATABASE = "airline"
Wording = tuple[int, ...]  # allowed halves of the phrases: 0 = everyday, 1 = other
_KINDS: tuple[Kind, ...] = get_args(Kind)

# kind -> (everyday, other); {t} rows, {f} conditions, {c} column, {g} group, {m} ranking column, {n} limit
_TEMPLATES: dict[Kind, tuple[tuple[str, str], tuple[str, str]]] = {
    "count": (
        ("How many {t}{f} are there?", "Count the {t}{f}."),
        ("What is the number of {t}{f}?", "Give me the total count of {t}{f}."),
    ),
    "list": (
        ("List the {c} of all {t}{f}.", "Show the {c} of {t}{f}."),
        ("What {c} do the {t}{f} have?", "Give me the {c} of every one of the {t}{f}."),
    ),
    "distinct": (
        ("List the different values of {c} for {t}{f}.", "Show each distinct {c} of {t}{f}."),
        ("What unique values of {c} do {t}{f} have?", "Give me every separate {c} among the {t}{f}."),
    ),
    "average": (
        ("What is the average {c} of {t}{f}?", "Find the mean {c} of {t}{f}."),
        ("Compute the average {c} across {t}{f}.", "On average, what {c} do {t}{f} have?"),
    ),
    "total": (
        ("What is the total {c} of {t}{f}?", "Add up the {c} of {t}{f}."),
        ("Compute the sum of {c} across {t}{f}.", "What {c} do {t}{f} have all together?"),
    ),
    "highest": (
        ("What is the highest {c} of {t}{f}?", "Find the maximum {c} of {t}{f}."),
        ("Compute the largest {c} across {t}{f}.", "How high does the {c} of {t}{f} go?"),
    ),
    "lowest": (
        ("What is the lowest {c} of {t}{f}?", "Find the minimum {c} of {t}{f}."),
        ("Compute the smallest {c} across {t}{f}.", "How low does the {c} of {t}{f} go?"),
    ),
    "top": (
        (
            "Show the {c} of the {n} {t}{f} with the highest {m}.",
            "List the {c} of the top {n} {t}{f} by {m}.",
        ),
        (
            "Rank the {t}{f} by {m} from the top and give the {c} of the first {n}.",
            "Give me the {c} of the {n} {t}{f} that lead in {m}.",
        ),
    ),
    "bottom": (
        (
            "Show the {c} of the {n} {t}{f} with the lowest {m}.",
            "List the {c} of the bottom {n} {t}{f} by {m}.",
        ),
        (
            "Rank the {t}{f} by {m} from the bottom and give the {c} of the first {n}.",
            "Give me the {c} of the {n} {t}{f} that come last in {m}.",
        ),
    ),
    "count_by": (
        ("How many {t}{f} are there for each {g}?", "Count the {t}{f} per {g}."),
        ("Break down the number of {t}{f} by {g}.", "For every {g}, give me the count of {t}{f}."),
    ),
    "average_by": (
        ("What is the average {c} of {t}{f} for each {g}?", "Find the mean {c} of {t}{f} per {g}."),
        ("Break down the average {c} of {t}{f} by {g}.", "For every {g}, compute the average {c} of {t}{f}."),
    ),
    "most": (
        ("Which {g} has the most {t}{f}?", "Find the {g} with the largest number of {t}{f}."),
        ("What {g} shows up most often among {t}{f}?", "Name the {g} that counts the most {t}{f}."),
    ),
}
_TEXT_PHRASES = (("with {c} {v}", "whose {c} is {v}"), ("where the {c} is {v}", "having {v} as {c}"))
_NUMBER_PHRASES: dict[Op, tuple[tuple[str, str], tuple[str, str]]] = {
    "=": (("with {c} {v}", "whose {c} is {v}"), ("where the {c} is {v}", "having {v} as {c}")),
    ">": (
        ("with {c} above {v}", "with {c} over {v}"),
        ("with {c} greater than {v}", "whose {c} exceeds {v}"),
    ),
    "<": (
        ("with {c} below {v}", "with {c} under {v}"),
        ("with {c} less than {v}", "whose {c} stays beneath {v}"),
    ),
    "between": (
        ("with {c} between {v} and {w}", "whose {c} is between {v} and {w}"),
        ("with {c} from {v} to {w}", "whose {c} lies within {v} and {w}"),
    ),
}


@dataclass(frozen=True, slots=True)
class Question:
    """A question in words and its meaning."""

    text: str
    query: Query


@dataclass(frozen=True, slots=True)
class Source:
    """Constraints for drawing questions: wording, values, shapes of query."""

    wording: Callable[[str], Wording]
    value: Callable[[Column, Random], str]
    allows: Callable[[Query, Random], bool]


def is_held_out_shape(query: Query) -> bool:
    """Return True if training excludes this shape (about one shape in five)."""
    return zlib.crc32(query.shape.encode()) % 5 == 0


def _training_value(column: Column, rng: Random) -> str:
    if rng.random() < 0.5:
        return " ".join(invent(rng) for _ in range(rng.choice((1, 1, 1, 2))))
    return rng.choice(pool_values(column.pool, held_out=False))


TRAINING = Source(
    wording=lambda database: (0,) if database == REWORDED_DATABASE else (0, 1),
    value=_training_value,
    allows=lambda query, rng: not is_held_out_shape(query),
)
BANK = Source(
    wording=lambda database: (0,),
    value=lambda column, rng: rng.choice(pool_values(column.pool, held_out=False)),
    allows=TRAINING.allows,
)
HELD_OUT = Source(
    wording=lambda database: (1,) if database == REWORDED_DATABASE else (0, 1),
    value=lambda column, rng: rng.choice(pool_values(column.pool, held_out=True)),
    allows=lambda query, rng: is_held_out_shape(query) or rng.random() < 0.15,  # about half and half
)


def draw(source: Source, rng: Random, database: str | None = None) -> Question:
    """Return one random question."""
    while True:
        schema = SCHEMAS[database or rng.choice(tuple(SCHEMAS))]
        kind = rng.choice(_KINDS)
        query, nouns = _draw_query(schema, kind, source, rng)
        if source.allows(query, rng):
            wording = source.wording(schema.name)
            return Question(_text(query, nouns, wording, rng), query)


def stream(source: Source, seed: int | str) -> Iterator[Question]:
    """Yield an endless stream of questions; the same seed gives the same ones."""
    rng = Random(f"questions {seed}")
    while True:
        yield draw(source, rng)


def _draw_query(schema: Schema, kind: Kind, source: Source, rng: Random) -> tuple[Query, dict[str, str]]:
    table = schema.tables[2] if rng.random() < 0.6 else rng.choice(schema.tables)
    own, near = (
        table.of_kind("name", "category", "number"),
        [table, *(schema.table(p) for _, p in table.parents)],
    )
    numbers = [c for c in table.of_kind("number") if c.name != "year"]  # no averages or ranks of years
    column = group = order = None
    if kind in ("list", "top", "bottom"):
        column = rng.choice(own)
    elif kind == "distinct":
        column = rng.choice(table.of_kind("category"))
    elif kind in ("average", "total", "highest", "lowest", "average_by"):
        column = rng.choice(numbers)
    if kind in ("top", "bottom"):
        order = rng.choice([n for n in numbers if n is not column] or numbers)
    grouped = rng.choice(near) if kind in ("count_by", "average_by", "most") else None
    if grouped is not None:
        group = rng.choice(grouped.of_kind("category"))
    taken = {c.name for c in (column, order) if c} | ({group.name} if group else set())
    filters = _draw_filters(table, near, taken, source, rng)
    nouns = {
        "c": column.noun if column else "",
        "m": order.noun if order else "",
        "g": _noun(group, grouped is table) if group else "",
    }
    query = Query(
        schema.name,
        kind,
        table.name,
        filters,
        column=(table.name, column.name) if column else None,
        group=(grouped.name, group.name) if grouped and group else None,
        order=(table.name, order.name) if order else None,
        limit=rng.randint(2, 9) if order else None,
    )
    return query, nouns


def _draw_filters(
    table: Table, near: list[Table], taken: set[str], source: Source, rng: Random
) -> tuple[Filter, ...]:
    options = [(t, c) for t in near for c in t.of_kind("category", "number") if c.name not in taken]
    num_filters = min(rng.choice((0, 1, 1, 1, 2, 2)), len(options))
    chosen = rng.sample(options, num_filters)
    return tuple(_draw_filter(t, c, source, rng) for t, c in chosen)


def _draw_filter(table: Table, column: Column, source: Source, rng: Random) -> Filter:
    if column.kind == "category":
        return Filter(table.name, column.name, "=", (source.value(column, rng),))
    op: Op = (
        rng.choice(("=", ">", "<", "between")) if column.name == "year" else rng.choice((">", "<", "between"))
    )
    low, high = sorted(rng.sample(range(column.low, column.high + 1), 2))
    return Filter(table.name, column.name, op, (low, high) if op == "between" else (rng.choice((low, high)),))


def _noun(column: Column, is_near: bool) -> str:
    return column.noun if is_near else column.far_noun


def _text(query: Query, nouns: dict[str, str], wording: Wording, rng: Random) -> str:
    phrases = [_filter_text(query, f, wording, rng) for f in query.filters]
    conditions = " " + " and ".join(phrases) if phrases else ""
    template = rng.choice(_TEMPLATES[query.kind][rng.choice(wording)])
    plural = query.schema.table(query.table).plural
    text = template.format(t=plural, f=conditions, n=query.limit, **nouns)
    return text[0].upper() + text[1:]


def _filter_text(query: Query, condition: Filter, wording: Wording, rng: Random) -> str:
    column = query.schema.table(condition.table).column(condition.column)
    is_near = condition.table == query.table
    half = rng.choice(wording)
    special = column.phrases if is_near else column.far_phrases
    if condition.op == "=" and special and special[half] and rng.random() < 0.5:
        return special[half].format(v=condition.values[0])
    phrases = _TEXT_PHRASES if isinstance(condition.values[0], str) else _NUMBER_PHRASES[condition.op]
    phrase = rng.choice(phrases[half])
    return phrase.format(c=_noun(column, is_near), v=condition.values[0], w=condition.values[-1])
