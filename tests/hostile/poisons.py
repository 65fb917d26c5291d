# ruff: noqa: E501  (one row per line)
"""Values that a program with access to a corpus's store may leave there. To add one, add a row."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import Any

LONG = 5 << 20  # bytes: longer than any batch
HIGHEST = "18446744073709551615-18446744073709551615"  # the last id that a stream can have
LOG, FACTS, LEASE, SCOPES, SNAPSHOT = "LOG", "FACTS", "LEASE", "agentspec:corpus:scopes", "SNAPSHOT"


@dataclass(frozen=True)
class RedisPoison:
    """Commands of a Redis server. LOG, FACTS, LEASE and SNAPSHOT stand for the victim's keys.

    Attributes:
        name: of the row.
        commands: each with its arguments.
        hides_tenants: the list of the tenants is gone with it, until they publish again.
    """

    name: str
    commands: tuple[tuple[Any, ...], ...]
    hides_tenants: bool = False

    def apply(self, client: Any, log: str) -> None:
        """Leave it in the store of the tenant with this log."""
        base = log.removesuffix(":log")
        current = client.hget(f"{base}:facts", "snapshot") or b"none"
        names = {
            LOG: log,
            FACTS: f"{base}:facts",
            LEASE: f"{base}:lease",
            SNAPSHOT: f"{base}:snapshot:{current.decode()}",
        }
        for command in self.commands:
            client.execute_command(
                *(names.get(part, part) if isinstance(part, str) else part for part in command)
            )


@dataclass(frozen=True)
class SqlitePoison:
    """Statements of SQL. ``acme`` is the victim."""

    name: str
    sql: str
    hides_tenants: bool = False

    def apply(self, path: str) -> None:
        """Leave it in the file."""
        with closing(sqlite3.connect(path, timeout=30.0, isolation_level=None)) as file:
            file.executescript(self.sql)


def _wrong_type(name: str, key: str) -> RedisPoison:
    return RedisPoison(name, (("DEL", key), ("RPUSH", key, "x")))


def _facts(field: str, value: Any) -> RedisPoison:
    return RedisPoison(f"facts: {field} is {str(value)[:12]}", (("HSET", FACTS, field, value),))


def _snapshot(field: str, value: Any) -> RedisPoison:
    return RedisPoison(f"snapshot: {field} is {str(value)[:12]}", (("HSET", SNAPSHOT, field, value),))


def _scope(value: Any) -> RedisPoison:
    return RedisPoison(f"scopes: {str(value)[:16]}", (("SADD", SCOPES, value),))


REDIS = [
    # the log
    RedisPoison("log: another field", (("XADD", LOG, "*", "x", "y"),)),
    RedisPoison("log: one field more", (("XADD", LOG, "*", "batch", "x", "more", "y"),)),
    RedisPoison("log: noise", (("XADD", LOG, "*", "batch", b"\xff" * 99),)),
    RedisPoison("log: an empty batch", (("XADD", LOG, "*", "batch", ""),)),
    RedisPoison("log: half a batch", (("XADD", LOG, "*", "batch", b"AgSpecBt\5"),)),
    RedisPoison("log: long entries", (("XADD", LOG, "*", "batch", bytes(LONG)),) * 3),
    RedisPoison("log: a long entry of another form", (("XADD", LOG, "*", "x", bytes(LONG)),)),
    RedisPoison("log: an entry of many fields", (("XADD", LOG, "*", *("x",) * 50_000),)),
    RedisPoison("log: the highest id", (("XADD", LOG, HIGHEST, "x", "y"),)),
    RedisPoison("log: an id of the far future", (("XADD", LOG, "99999999999999-0", "batch", "x"),)),
    _wrong_type("log: a list", LOG),
    # facts
    _wrong_type("facts: a list", FACTS),
    *(_facts("bytes", value) for value in ("abc", "-1", "nan", "1e999", "")),
    *(_facts("epoch", value) for value in ("abc", "-5", "9" * 30, "1.5", bytes(LONG))),
    *(_facts("erasure", value) for value in ("abc", "9" * 30)),
    *(_facts("fence", value) for value in ("abc", "9" * 30)),
    *(_facts("snapshot", value) for value in ("nowhere", "../../x", bytes(LONG))),
    _facts("previous", "nowhere"),
    *(_facts("key", value) for value in (b"noise", bytes(60), bytes(LONG))),
    # the lease
    RedisPoison("lease: for ever", (("SET", LEASE, "x"),)),
    RedisPoison("lease: for years", (("SET", LEASE, "x", "EX", 10**9),)),
    _wrong_type("lease: a list", LEASE),
    # the snapshot
    *(_snapshot("parts", value) for value in ("x", "-1", "1e3", "9" * 12)),
    *(_snapshot("cursor", value) for value in ("abc", "-", "99999999999999-0", HIGHEST, bytes(LONG))),
    *(_snapshot("bytes", value) for value in ("x", "-1")),
    _snapshot("minute", "x"),
    *(_snapshot("0", value) for value in (b"noise", b"", bytes(LONG))),
    _wrong_type("snapshot: a list", SNAPSHOT),
    # the tenants
    *(_scope(value) for value in ("5", '"ab"', "[1, 2]", '["a"]', '["a", "b", "c"]', '{"a": 1}', "[" * 4000, b"\xff\xfe", '["test", "\\ud800"]', bytes(LONG))),
    RedisPoison("scopes: a list", (("DEL", SCOPES), ("RPUSH", SCOPES, "x")), hides_tenants=True),
]  # fmt: skip


def _of_scope(column: str, value: str) -> SqlitePoison:
    return SqlitePoison(
        f"scopes: {column} is {value}", f"update scopes set {column} = {value} where tenant = 'acme'"
    )


def _entry(name: str, columns: str, values: str) -> SqlitePoison:
    return SqlitePoison(
        name, f"insert into entries ({columns}) select {values} from scopes where tenant = 'acme'"
    )


SQLITE = [
    # scopes
    *(_of_scope("epoch", value) for value in ("'abc'", "-1", "9e18", "x'00'", "1.5")),
    *(_of_scope("erasure", value) for value in ("'abc'", "-1")),
    *(_of_scope("fence", value) for value in ("'abc'", "9223372036854775807")),
    *(_of_scope("num_entries", value) for value in ("'abc'", "-5", "1e300")),
    *(_of_scope("num_bytes", value) for value in ("'abc'", "-5")),
    *(_of_scope("lease_end_s", value) for value in ("'abc'", "1e300")),
    _of_scope("holder", "x'ff'"),
    SqlitePoison("scopes: a tenant that is no text", "insert into scopes (vocabulary, tenant, num_entries) values ('test', x'ff', 1)"),
    SqlitePoison("scopes: a tenant of broken text", "insert into scopes (vocabulary, tenant, num_entries) values ('test', cast(x'ff' as text), 1)"),
    SqlitePoison("scopes: a long tenant", "insert into scopes (vocabulary, tenant, num_entries) values ('test', hex(zeroblob(99999)), 1)"),
    # the log
    _entry("log: a text", "scope, minute, num_bytes, batch", "id, 1 << 40, 1, 'x'"),
    _entry("log: a number", "scope, minute, num_bytes, batch", "id, 1 << 40, 'x', 5"),
    _entry("log: noise", "scope, minute, num_bytes, batch", "id, 1 << 40, 1, x'ffff'"),
    _entry("log: a long blob", "scope, minute, num_bytes, batch", f"id, 1 << 40, 1, zeroblob({LONG})"),
    _entry("log: a time that is none", "scope, minute, num_bytes, batch", "id, 'x', 1, x'ff'"),
    _entry("log: the highest id", "id, scope, minute, num_bytes, batch", "9223372036854775807, id, 1 << 40, 1, x'ff'"),
    SqlitePoison("log: numbers that are used up", "update sqlite_sequence set seq = 9223372036854775807"),
    SqlitePoison("log: a number that is none", "update sqlite_sequence set seq = 'x'"),
    # the snapshot
    *(SqlitePoison(f"snapshot: cursor is {value}", f"update snapshots set cursor = {value}") for value in ("'abc'", "x'ff'", "'9223372036854775807'")),
    *(SqlitePoison(f"snapshot: num_parts is {value}", f"update snapshots set num_parts = {value}") for value in ("'x'", "-1", "999999999999")),
    *(SqlitePoison(f"snapshot: a part is {value}", f"update parts set batch = {value}") for value in ("'x'", "5", "x'ff'", f"zeroblob({LONG})")),
]  # fmt: skip
