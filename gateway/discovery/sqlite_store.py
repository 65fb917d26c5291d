"""The file of discovered stages: an SQLite database, so that several gateways can share it safely.

The file contains keyed digests, stages, counts, and templates (masked text, optional). It contains no
prompts and no clients' keys. If the file can't be written, for example on a full disk, the store logs this
once. The clusters then stay in memory, and are saved when a write succeeds again.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.gateway.discovery.cluster import Cluster, Member
from agentspec.gateway.discovery.clusters import Clusters
from agentspec.gateway.discovery.frames import Frame
from agentspec.gateway.discovery.stored import StoredTenant, changed_in, note_saved
from agentspec.gateway.discovery.templates import Template
from agentspec.stages import StageKey

VERSION = 1
BUSY_TIMEOUT_S = 2.0
REFUSED = ""  # in the place of a cluster's id, for refused templates
_TABLES = """
create table if not exists facts (name text primary key, value) without rowid;
create table if not exists clusters (
    tenant text, id text, own_stage text, stage text, is_named int, is_pinned int, is_settled int, text text,
    num_requests int, last_seen_s real, primary key (tenant, id)) without rowid;
create table if not exists members (
    tenant text, digest blob, cluster text, is_system int, num_requests int, num_openings int,
    primary key (tenant, digest)) without rowid;
create table if not exists templates (
    tenant text, cluster text, shape blob, runs text, num_words int, least_share real,
    primary key (tenant, cluster, shape, runs)) without rowid;
create index if not exists members_by_cluster on members (tenant, cluster);
"""
# transient errors
_PASSING = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_READONLY")

logger = logging.getLogger("agentspec.gateway")


class SqliteDiscoveryStore:
    """A :class:`~agentspec.gateway.discovery.stored.DiscoveryStore` in a file. Without a path it stores
    nothing.

    Raises:
        ConfigError: the file has another format or can't be opened.
    """

    def __init__(self, path: Path | None, *, keeps_text: bool = True) -> None:
        self.key: bytes | None = None
        self.has_lost = False  # an open file does not lose its content
        self._path = path
        self._keeps_text = keeps_text
        self._has_failed = self._is_open = False
        self._seen_version = -1
        self._file: sqlite3.Connection | None = None
        if path is not None:
            self._open(path)

    def begin(self) -> None:
        """Begin a transaction. Until it ends, other writers wait."""
        if self._file is None or self._is_open:
            return
        try:
            self._file.execute("begin immediate")
            self._is_open = True
        except sqlite3.Error as error:
            self._fail(error)

    def news(self) -> dict[str, StoredTenant] | None:
        """Read the whole file, by tenant; None if no other process wrote to it since the last call."""
        if self._file is None or not self._is_open:
            return None
        try:
            (version,) = self._file.execute("pragma data_version").fetchone()
            if version == self._seen_version:
                return None
            kept = self._read(self._file)
            self._seen_version = version
            return kept
        except (sqlite3.Error, ValueError) as error:
            self.rollback()
            self._fail(error)
            return None

    def commit(self, tenants: Sequence[Clusters], *, with_counts: bool = True) -> None:
        """Write changes and end the transaction. If that fails, the changes stay marked as unsaved."""
        if self._file is None or not self._is_open:
            return
        changed = [changed_in(clusters, with_counts) for clusters in tenants]
        try:
            for clusters, those in zip(tenants, changed, strict=True):
                self._write(self._file, clusters, those)
            self._file.execute("commit")
        except sqlite3.Error as error:
            self.rollback()
            self._fail(error)
            return
        self._is_open = False
        for clusters, those in zip(tenants, changed, strict=True):
            note_saved(clusters, those)
        if self._has_failed:
            self._has_failed = False
            logger.warning("discovered stages are saved to %s again", self._path)

    def rollback(self) -> None:
        """End the transaction without changes."""
        if self._file is not None and self._is_open:
            self._is_open = False
            try:
                self._file.execute("rollback")
            except sqlite3.Error:  # SQLite has rolled back already
                return

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: Path) -> None:
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"discovery file {str(path)!r}: there is no such folder")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # texts of prompts are private
            file = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self.key = _prepared(file)
            self._file = file
        except sqlite3.Error as error:
            if not error.sqlite_errorname.startswith(_PASSING):
                raise ConfigError(
                    f"discovery file {str(path)!r}: {error}; move it away to begin anew"
                ) from error
            self._fail(error)
        except OSError as error:
            raise ConfigError(f"discovery file {str(path)!r}: {error.strerror}") from error

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning("discovered stages can't be saved to %s for now: %s", self._path, error)

    def _read(self, file: sqlite3.Connection) -> dict[str, StoredTenant]:
        tenants: dict[str, StoredTenant] = {}
        rows = file.execute(
            "select tenant, id, own_stage, stage, is_named, is_pinned, is_settled,"
            " text, num_requests, last_seen_s from clusters"
        )
        for tenant, cluster_id, own, stage, named, pinned, edited, text, num_requests, last_seen_s in rows:
            cluster = Cluster(
                cluster_id,
                StageKey.parse(own, tenant),
                StageKey.parse(stage, tenant),
                is_named=bool(named),
                is_pinned=bool(pinned),
                is_user_edited=bool(edited),
                text=text,
                num_requests=num_requests,
                last_seen_s=last_seen_s,
                num_saved=num_requests,
                is_saved=True,
            )
            tenants.setdefault(tenant, StoredTenant()).clusters[cluster_id] = cluster
        self._read_members(file, tenants)
        self._read_templates(file, tenants)
        return tenants

    def _read_members(self, file: sqlite3.Connection, tenants: dict[str, StoredTenant]) -> None:
        for tenant, digest, cluster_id, is_system, *counts in file.execute(
            "select tenant, digest, cluster, is_system, num_requests, num_openings from members"
        ):
            kept = tenants.get(tenant)
            cluster = kept.clusters.get(cluster_id) if kept else None
            if cluster is not None:
                cluster.members[digest] = Member(digest, bool(is_system), cluster, *counts)

    def _read_templates(self, file: sqlite3.Connection, tenants: dict[str, StoredTenant]) -> None:
        for tenant, cluster_id, shape, runs, num_words, least_share in file.execute(
            "select tenant, cluster, shape, runs, num_words, least_share from templates"
        ):
            kept = tenants.setdefault(tenant, StoredTenant())
            template = Template(tuple(json.loads(runs)), num_words, least_share)
            if cluster_id == REFUSED:
                kept.refused.append((shape, template))
            elif cluster_id in kept.clusters:
                kept.clusters[cluster_id].frames.append(Frame.restored(shape, template))

    def _write(self, file: sqlite3.Connection, clusters: Clusters, changed: Mapping[Cluster, int]) -> None:
        tenant = clusters.tenant
        for cluster_id in clusters.gone:
            file.execute("delete from clusters where tenant = ? and id = ?", (tenant, cluster_id))
            file.execute("delete from members where tenant = ? and cluster = ?", (tenant, cluster_id))
            file.execute("delete from templates where tenant = ? and cluster = ?", (tenant, cluster_id))
        for cluster, num_requests in changed.items():
            self._write_cluster(file, tenant, cluster, num_requests - cluster.num_saved)
        self._write_templates(file, tenant, REFUSED, clusters.refused)

    def _write_cluster(self, file: sqlite3.Connection, tenant: str, cluster: Cluster, num_more: int) -> None:
        file.execute(
            "insert into clusters values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do update set"
            " own_stage = excluded.own_stage, stage = excluded.stage, is_named = excluded.is_named,"
            " is_pinned = excluded.is_pinned, is_settled = excluded.is_settled, text = excluded.text,"
            " num_requests = num_requests + excluded.num_requests,"
            " last_seen_s = max(last_seen_s, excluded.last_seen_s)",
            (
                tenant,
                cluster.id,
                cluster.own_stage.name,
                cluster.stage.name,
                cluster.is_named,
                cluster.is_pinned,
                cluster.is_user_edited,
                cluster.text if self._keeps_text and cluster.is_text_kept else "",
                num_more,
                cluster.last_seen_s,
            ),
        )
        file.execute("delete from members where tenant = ? and cluster = ?", (tenant, cluster.id))
        rows = [
            (tenant, one.digest, cluster.id, one.is_system, one.num_requests, one.num_openings)
            for one in cluster.members.values()
        ]
        file.executemany("insert or replace into members values (?, ?, ?, ?, ?, ?)", rows)
        self._write_templates(file, tenant, cluster.id, cluster.templates if cluster.is_text_kept else [])

    def _write_templates(
        self, file: sqlite3.Connection, tenant: str, cluster_id: str, templates: list[tuple[bytes, Template]]
    ) -> None:
        file.execute("delete from templates where tenant = ? and cluster = ?", (tenant, cluster_id))
        if self._keeps_text:
            rows = [
                (tenant, cluster_id, shape, json.dumps(one.runs), one.num_words, one.least_share)
                for shape, one in templates
            ]
            file.executemany("insert or replace into templates values (?, ?, ?, ?, ?, ?)", rows)


def _prepared(file: sqlite3.Connection) -> bytes:
    """Create missing tables and return the file's key. Raises ConfigError if the version differs."""
    file.execute("pragma journal_mode = wal")
    file.execute("pragma synchronous = normal")
    file.executescript(f"begin immediate; {_TABLES} commit;")
    file.execute("insert or ignore into facts values ('version', ?)", (VERSION,))
    file.execute("insert or ignore into facts values ('key', ?)", (os.urandom(32),))
    facts = dict(file.execute("select name, value from facts"))
    if facts["version"] != VERSION:
        raise ConfigError(
            f"the discovery file has version {facts['version']!r}, not {VERSION}; move it away to begin anew"
        )
    return bytes(facts["key"])
