"""The four databases as data: tables, columns, their names in questions, and keys.

Defines the vocabulary of the domain. ``database`` fills the tables, ``questions`` asks about them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

ColumnKind = Literal["id", "key", "name", "category", "number"]


@dataclass(frozen=True)
class Column:
    """A column; ``noun`` is its name in questions, ``far_noun`` its name in questions about a child table.

    ``phrases`` are idiomatic filters (``{v}`` = the value). The first half is everyday wording, the second
    half is the held-out wording (see ``questions``). ``pool`` names the values.
    """

    name: str
    kind: ColumnKind
    noun: str = ""
    far_noun: str = ""
    pool: str = ""
    phrases: tuple[str, ...] = ()
    far_phrases: tuple[str, ...] = ()
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Table:
    """A table; ``plural`` is the name of its rows in questions, ``parents`` maps key column -> table."""

    name: str
    plural: str
    columns: tuple[Column, ...]
    num_rows: int
    parents: tuple[tuple[str, str], ...] = ()

    def column(self, name: str) -> Column:
        """Return the column of this name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def of_kind(self, *kinds: ColumnKind) -> list[Column]:
        """Return the columns of these kinds, in order."""
        return [c for c in self.columns if c.kind in kinds]

    @property
    def signature(self) -> str:
        """The table as shown in prompts: ``orders(id, customer_id, ...)``."""
        return f"{self.name}({', '.join(c.name for c in self.columns)})"


@dataclass(frozen=True)
class Schema:
    """One database: its tables, parents before children."""

    name: str
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """Return the table of this name. Raises KeyError."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Table]:
        return {t.name: t for t in self.tables}

    def key(self, child: str, parent: str) -> str:
        """Return the join condition from child to parent: ``orders.customer_id = customers.id``."""
        for column, table in self.table(child).parents:
            if table == parent:
                return f"{child}.{column} = {parent}.id"
        raise KeyError((child, parent))

    @property
    def keys(self) -> list[str]:
        """Every join condition of the database."""
        return [self.key(t.name, parent) for t in self.tables for _, parent in t.parents]

    @property
    def summary(self) -> str:
        """The database and its tables: ``shop: customers, products, orders``."""
        return f"{self.name}: {', '.join(t.name for t in self.tables)}"

    @property
    def text(self) -> str:
        """Tables and keys as shown in prompts."""
        return "\n".join([*(t.signature for t in self.tables), "Keys: " + "; ".join(self.keys)])


def _id() -> Column:
    return Column("id", "id")


def _key(name: str) -> Column:
    return Column(name, "key")


def _name(far: str, noun: str = "name", column: str = "name", pool: str = "person") -> Column:
    return Column(column, "name", noun, far, pool)


def _category(
    name: str, noun: str, far: str, pool: str, near: tuple[str, str], away: tuple[str, str]
) -> Column:
    return Column(name, "category", noun, far, pool, near, away)


def _number(name: str, noun: str, far: str, low: int, high: int) -> Column:
    return Column(name, "number", noun, far, low=low, high=high)


SHOP = Schema(
    "shop",
    (
        Table(
            "customers",
            "customers",
            (
                _id(),
                _name("customer name"),
                _category(
                    "city",
                    "city",
                    "customer city",
                    "city",
                    ("from {v}", "based in {v}"),
                    ("placed by customers from {v}", "bought by people in {v}"),
                ),
                _category(
                    "segment",
                    "segment",
                    "customer segment",
                    "segment",
                    ("in the {v} segment", "belonging to segment {v}"),
                    ("of the {v} customer segment", "bought by segment {v}"),
                ),
                _number("age", "age", "customer age", 18, 80),
            ),
            120,
        ),
        Table(
            "products",
            "products",
            (
                _id(),
                _name("product name", pool="thing"),
                _category(
                    "category",
                    "category",
                    "product category",
                    "category",
                    ("in the {v} category", "filed under {v}"),
                    ("for {v} products", "of goods filed under {v}"),
                ),
                _category(
                    "brand",
                    "brand",
                    "product brand",
                    "brand",
                    ("made by {v}", "of brand {v}"),
                    ("of products made by {v}", "for goods of brand {v}"),
                ),
                _number("price", "price", "product price", 5, 500),
            ),
            60,
        ),
        Table(
            "orders",
            "orders",
            (
                _id(),
                _key("customer_id"),
                _key("product_id"),
                _number("quantity", "quantity", "", 1, 20),
                _number("amount", "amount", "", 10, 900),
                _category("status", "status", "", "status", ("marked {v}", "in state {v}"), ("", "")),
                _number("year", "year", "", 2015, 2024),
            ),
            600,
            (("customer_id", "customers"), ("product_id", "products")),
        ),
    ),
)

CLINIC = Schema(
    "clinic",
    (
        Table(
            "doctors",
            "doctors",
            (
                _id(),
                _name("doctor name"),
                _category(
                    "specialty",
                    "specialty",
                    "doctor specialty",
                    "specialty",
                    ("specialized in {v}", "practicing {v}"),
                    ("to doctors specialized in {v}", "handled by {v} practitioners"),
                ),
                _category(
                    "city",
                    "city",
                    "doctor city",
                    "city",
                    ("from {v}", "based in {v}"),
                    ("to doctors from {v}", "handled by doctors in {v}"),
                ),
                _number("salary", "salary", "doctor salary", 60, 300),
            ),
            40,
        ),
        Table(
            "patients",
            "patients",
            (
                _id(),
                _name("patient name"),
                _category(
                    "insurance",
                    "insurance",
                    "patient insurance",
                    "brand",
                    ("insured by {v}", "covered through {v}"),
                    ("of patients insured by {v}", "by people covered through {v}"),
                ),
                _number("age", "age", "patient age", 1, 95),
                _number("weight", "weight", "patient weight", 40, 130),
            ),
            150,
        ),
        Table(
            "visits",
            "visits",
            (
                _id(),
                _key("doctor_id"),
                _key("patient_id"),
                _category("reason", "reason", "", "reason", ("because of {v}", "caused by {v}"), ("", "")),
                _number("cost", "cost", "", 20, 800),
                _number("duration", "duration", "", 5, 90),
                _number("year", "year", "", 2015, 2024),
            ),
            600,
            (("doctor_id", "doctors"), ("patient_id", "patients")),
        ),
    ),
)

CAMPUS = Schema(
    "campus",
    (
        Table(
            "students",
            "students",
            (
                _id(),
                _name("student name"),
                _category(
                    "major",
                    "major",
                    "student major",
                    "subject",
                    ("majoring in {v}", "studying {v}"),
                    ("of students majoring in {v}", "by people studying {v}"),
                ),
                _category(
                    "country",
                    "country",
                    "student country",
                    "country",
                    ("from {v}", "coming from {v}"),
                    ("of students from {v}", "by students coming from {v}"),
                ),
                _number("age", "age", "student age", 17, 40),
            ),
            150,
        ),
        Table(
            "courses",
            "courses",
            (
                _id(),
                _name("course title", "title", "title", "title"),
                _category(
                    "department",
                    "department",
                    "course department",
                    "subject",
                    ("in the {v} department", "offered by {v}"),
                    ("in courses of the {v} department", "for classes offered by {v}"),
                ),
                _category(
                    "level",
                    "level",
                    "course level",
                    "level",
                    ("at {v} level", "of level {v}"),
                    ("in courses at {v} level", "for classes of level {v}"),
                ),
                _number("credits", "credits", "course credits", 1, 12),
            ),
            50,
        ),
        Table(
            "enrollments",
            "enrollments",
            (
                _id(),
                _key("student_id"),
                _key("course_id"),
                _category("term", "term", "", "term", ("in the {v} term", "during {v}"), ("", "")),
                _number("score", "score", "", 30, 100),
                _number("absences", "absences", "", 0, 25),
                _number("year", "year", "", 2015, 2024),
            ),
            600,
            (("student_id", "students"), ("course_id", "courses")),
        ),
    ),
)

AIRLINE = Schema(
    "airline",
    (
        Table(
            "planes",
            "planes",
            (
                _id(),
                _name("plane model", "model", "model", "thing"),
                _category(
                    "maker",
                    "maker",
                    "plane maker",
                    "brand",
                    ("built by {v}", "coming from {v}"),
                    ("on planes built by {v}", "with aircraft of {v}"),
                ),
                _number("seats", "seats", "plane seats", 50, 400),
                _number("built", "build year", "plane build year", 1990, 2022),
            ),
            40,
        ),
        Table(
            "routes",
            "routes",
            (
                _id(),
                _category(
                    "origin",
                    "origin",
                    "route origin",
                    "city",
                    ("from {v}", "starting in {v}"),
                    ("leaving from {v}", "that start in {v}"),
                ),
                _category(
                    "destination",
                    "destination",
                    "route destination",
                    "city",
                    ("to {v}", "ending in {v}"),
                    ("going to {v}", "that end in {v}"),
                ),
                _number("distance", "distance", "route distance", 200, 9000),
            ),
            60,
        ),
        Table(
            "flights",
            "flights",
            (
                _id(),
                _key("plane_id"),
                _key("route_id"),
                _category("season", "season", "", "term", ("in the {v} season", "during {v}"), ("", "")),
                _number("fare", "fare", "", 40, 1200),
                _number("delay", "delay", "", 0, 240),
                _number("year", "year", "", 2015, 2024),
            ),
            600,
            (("plane_id", "planes"), ("route_id", "routes")),
        ),
    ),
)

SCHEMAS: dict[str, Schema] = {s.name: s for s in (SHOP, CLINIC, CAMPUS, AIRLINE)}
