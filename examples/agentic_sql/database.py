"""The four SQLite databases: generated from a seed, opened read-only, queried with a time limit."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from examples.agentic_sql.schema import SCHEMAS, Column, Schema, Table
from examples.agentic_sql.values import POOLS

Row = tuple[object, ...]
_TYPES = {
    "id": "INTEGER PRIMARY KEY",
    "key": "INTEGER NOT NULL",
    "number": "INTEGER",
    "name": "TEXT",
    "category": "TEXT",
}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Rows, or SQLite's error message."""

    rows: tuple[Row, ...] = ()
    error: str | None = None

    @property
    def preview(self) -> str:
        """At most three rows as text, for the Combine stage."""
        if self.error is not None:
            return f"error: {self.error}"
        if not self.rows:
            return "no rows"
        shown = "; ".join(", ".join(format_value(v) for v in row) for row in self.rows[:3])
        return f"{shown} ({len(self.rows)} rows)" if len(self.rows) > 1 else shown

    def matches(self, other: QueryResult, *, ordered: bool = False) -> bool:
        """Return True if the rows are equal; as a multiset unless ``ordered``, numbers to 4 decimals."""
        if self.error is not None or other.error is not None:
            return False
        mine, theirs = [[_key(row) for row in result.rows] for result in (self, other)]
        return mine == theirs if ordered else sorted(mine) == sorted(theirs)


def format_value(value: object) -> str:
    """Return a value as readable text: 12, 3.25, Lyon, none."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


def _key(row: Row) -> tuple[str, ...]:
    return tuple(f"{v:.4f}" if isinstance(v, (int, float)) else repr(v) for v in row)


class Database:
    """A read-only example database. Every query has its own connection (thread-safe)."""

    def __init__(self, path: Path, *, timeout_s: float = 2.0) -> None:
        self._uri = f"{path.resolve().as_uri()}?mode=ro"
        self._timeout_s = timeout_s

    def query(self, sql: str) -> QueryResult:
        """Run one SELECT. Errors of SQLite are returned as ``error``, not raised."""
        deadline = time.monotonic() + self._timeout_s
        connection = sqlite3.connect(self._uri, uri=True)
        try:
            connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
            return QueryResult(rows=tuple(connection.execute(sql).fetchmany(10_000)))
        except (sqlite3.Error, sqlite3.Warning) as error:
            return QueryResult(error=str(error))
        finally:
            connection.close()


def _value(column: Column, row_id: int, num_parents: dict[str, int], names: list[str], rng: Random) -> object:
    match column.kind:
        case "id":
            return row_id
        case "key":
            return rng.randint(1, num_parents[column.name])
        case "name":
            return names[row_id - 1]
        case "category":
            pool = POOLS[column.pool]
            # a skewed choice: in real data, categories differ in frequency
            return (
                pool[min(int(rng.expovariate(2.5 / len(pool))), len(pool) - 1)]
                if len(pool) > 12
                else rng.choice(pool)
            )
        case _:
            return rng.randint(column.low, column.high)


def _rows(schema: Schema, table: Table, rng: Random) -> list[list[object]]:
    num_parents = {key: schema.table(parent).num_rows for key, parent in table.parents}
    pools = [c.pool for c in table.of_kind("name")]
    names = rng.sample(POOLS[pools[0]], table.num_rows) if pools else []
    return [
        [_value(column, row_id, num_parents, names, rng) for column in table.columns]
        for row_id in range(1, table.num_rows + 1)
    ]


def create(schema: Schema, path: Path, seed: int = 7) -> None:
    """Write one database file; the same seed gives the same rows. An existing file is replaced."""
    rng = Random(f"{schema.name} {seed}")
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    connection = sqlite3.connect(temporary)
    with connection:
        for table in schema.tables:
            columns = ", ".join(f"{c.name} {_TYPES[c.kind]}" for c in table.columns)
            keys = "".join(f", FOREIGN KEY ({key}) REFERENCES {parent}(id)" for key, parent in table.parents)
            connection.execute(f"CREATE TABLE {table.name} ({columns}{keys})")
            marks = ", ".join("?" for _ in table.columns)
            connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", _rows(schema, table, rng))
    connection.close()
    temporary.replace(path)


def open_all(directory: Path) -> dict[str, Database]:
    """Open every example database in ``directory``; create missing ones."""
    directory.mkdir(parents=True, exist_ok=True)
    for schema in SCHEMAS.values():
        if not (directory / f"{schema.name}.sqlite").exists():
            create(schema, directory / f"{schema.name}.sqlite")
    return {name: Database(directory / f"{name}.sqlite") for name in SCHEMAS}
