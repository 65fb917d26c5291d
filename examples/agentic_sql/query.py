"""A question's meaning, and its gold forms: SQL in three styles, features, context.

A :class:`Query` is the meaning of a question. The expected outputs of all stages are derived from it, so
training targets and the gold answer always agree.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from examples.agentic_sql.schema import SCHEMAS, Schema

Kind = Literal[
    "count",
    "list",
    "distinct",
    "average",
    "total",
    "highest",
    "lowest",
    "top",
    "bottom",
    "count_by",
    "average_by",
    "most",
]
Style = Literal["join", "alias", "nested"]
Op = Literal["=", ">", "<", "between"]

_AGGREGATES = {"average": "AVG", "total": "SUM", "highest": "MAX", "lowest": "MIN", "average_by": "AVG"}


@dataclass(frozen=True, slots=True)
class Filter:
    """``table.column op value``; two values for ``between``."""

    table: str
    column: str
    op: Op
    values: tuple[str | int, ...]

    def sql(self, prefix: str) -> str:
        """Return the condition, with ``prefix`` for the table."""
        literals = [f"'{v}'" if isinstance(v, str) else str(v) for v in self.values]
        name = f"{prefix}.{self.column}" if prefix else self.column
        if self.op == "between":
            return f"{name} BETWEEN {literals[0]} AND {literals[1]}"
        return f"{name} {self.op} {literals[0]}"


@dataclass(frozen=True, slots=True)
class Query:
    """A question about ``table``; columns are ``(table, column)`` pairs.

    ``column`` is listed or aggregated, ``group`` is the grouping, ``order`` is the ranking column.
    """

    database: str
    kind: Kind
    table: str
    filters: tuple[Filter, ...] = ()
    column: tuple[str, str] | None = None
    group: tuple[str, str] | None = None
    order: tuple[str, str] | None = None
    limit: int | None = None

    @property
    def schema(self) -> Schema:
        """The database's schema."""
        return SCHEMAS[self.database]

    @property
    def tables(self) -> list[str]:
        """The tables needed: the main one, then its parents in schema order."""
        used = {f.table for f in self.filters} | {c[0] for c in (self.column, self.group, self.order) if c}
        return [self.table, *(t.name for t in self.schema.tables if t.name in used and t.name != self.table)]

    @property
    def shape(self) -> str:
        """The query without its values: the unit of the train / held-out split."""
        conditions = ",".join(sorted(f"{f.table}.{f.column}{f.op}" for f in self.filters))
        return f"{self.database}|{self.kind}|{self.table}|{self.column}|{self.group}|{conditions}"

    @property
    def is_ordered(self) -> bool:
        """True if the order of the rows matters."""
        return self.kind in ("top", "bottom")

    def sql(self, style: Style = "join") -> str:
        """Return the gold SQL. All styles return the same rows."""
        if style == "nested" and self._can_nest:
            return self._nested_sql()
        names = (
            {t: f"T{i}" for i, t in enumerate(self.tables, 1)}
            if style == "alias"
            else {t: t for t in self.tables}
        )
        text = f"SELECT {self._selection(names)} FROM {self._source(names, style)}"
        if self.filters:
            text += " WHERE " + " AND ".join(f.sql(names[f.table]) for f in self.filters)
        return text + self._tail(names)

    @property
    def _can_nest(self) -> bool:
        """True if other tables only filter, so that a sub-query can replace the join."""
        return all(c is None or c[0] == self.table for c in (self.column, self.group, self.order))

    def _selection(self, names: dict[str, str]) -> str:
        if self.kind == "count":
            return "COUNT(*)"
        if self.kind == "count_by" or self.kind == "most":
            group = _name(self.group, names)
            return f"{group}, COUNT(*)" if self.kind == "count_by" else group
        column = _name(self.column, names)
        if self.kind == "average_by":
            return f"{_name(self.group, names)}, AVG({column})"
        if self.kind == "distinct":
            return f"DISTINCT {column}"
        return f"{_AGGREGATES[self.kind]}({column})" if self.kind in _AGGREGATES else column

    def _source(self, names: dict[str, str], style: Style) -> str:
        def item(table: str) -> str:
            return f"{table} AS {names[table]}" if style == "alias" else table

        text = item(self.table)
        for parent in self.tables[1:]:
            child_side, parent_side = self.schema.key(self.table, parent).split(" = ")
            left = f"{names[self.table]}.{child_side.split('.')[1]}"
            right = f"{names[parent]}.{parent_side.split('.')[1]}"
            text += f" JOIN {item(parent)} ON {left} = {right}"
        return text

    def _tail(self, names: dict[str, str]) -> str:
        text = f" GROUP BY {_name(self.group, names)}" if self.group else ""
        if self.kind == "most":
            return text + " ORDER BY COUNT(*) DESC LIMIT 1"
        if self.order:
            direction = "DESC" if self.kind == "top" else "ASC"
            text += f" ORDER BY {_name(self.order, names)} {direction} LIMIT {self.limit}"
        return text

    def _nested_sql(self) -> str:
        bare = {self.table: ""}
        conditions = [f.sql("") for f in self.filters if f.table == self.table]
        for parent in self.tables[1:]:
            key = self.schema.key(self.table, parent).split(" = ")[0].split(".")[1]
            inner = " AND ".join(f.sql("") for f in self.filters if f.table == parent)
            conditions.append(f"{key} IN (SELECT id FROM {parent} WHERE {inner})")
        where = " WHERE " + " AND ".join(conditions) if conditions else ""
        return f"SELECT {self._selection(bare)} FROM {self.table}{where}{self._tail(bare)}"

    # expected outputs of the stages

    def classification(self) -> str:
        """Return the Classify stage's JSON."""
        return json.dumps({"database": self.database, "kind": self.kind, "tables": self.tables})

    def features(self) -> str:
        """Return the Extract stage's JSON."""
        return json.dumps(
            {
                "kind": self.kind,
                "table": self.table,
                "column": _dotted(self.column),
                "filters": [
                    {
                        "column": f"{f.table}.{f.column}",
                        "op": f.op,
                        "value": f.values[0] if len(f.values) == 1 else list(f.values),
                    }
                    for f in self.filters
                ],
                "group_by": _dotted(self.group),
                "order_by": _dotted(self.order),
                "limit": self.limit,
            }
        )

    def context(self, example_sql: str) -> str:
        """Return the Enrich stage's notes: tables, joins, conditions, result, and the example to follow."""
        names = {t: t for t in self.tables}
        joins = [self.schema.key(self.table, parent) for parent in self.tables[1:]]
        tail = self._tail(names).strip()
        return "\n".join(
            [
                "Tables: " + "; ".join(self.schema.table(t).signature for t in self.tables),
                "Joins: " + ("; ".join(joins) or "none"),
                "Conditions: " + (" AND ".join(f.sql(f.table) for f in self.filters) or "none"),
                f"Result: {self._selection(names)}{' ' + tail if tail else ''}",
                f"Example: {example_sql}",
            ]
        )

    def answer(self, preview: str) -> str:
        """Return the Combine stage's answer in words, with the rows of its prompt."""
        if preview == "no rows":
            return f"No {self.table} match."
        match self.kind:
            case "count":
                return f"There are {preview} {self.table}."
            case "average" | "total" | "highest" | "lowest":
                return f"The {self.kind} {_dotted(self.column)} is {preview}."
            case "count_by" | "average_by":
                return f"By {_dotted(self.group)}: {preview}."
            case "most":
                return f"The {_dotted(self.group)} with the most {self.table} is {preview}."
            case _:
                return f"The {_dotted(self.column)} of these {self.table}: {preview}."


def _name(column: tuple[str, str] | None, names: dict[str, str]) -> str:
    assert column is not None
    prefix = names[column[0]]
    return f"{prefix}.{column[1]}" if prefix else column[1]


def _dotted(column: tuple[str, str] | None) -> str | None:
    return ".".join(column) if column else None
