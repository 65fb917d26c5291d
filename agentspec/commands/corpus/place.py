"""The corpus that a command is about: its location, its content, and tenants and stages by their names."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from agentspec.commands.corpus.command import PLACE_VARIABLE
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.encryption import KeyRing, no_operator_key, operator_key
from agentspec.corpus.settings import KEY_VARIABLE, is_redis, without_password
from agentspec.corpus.snapshots import SnapshotContent, entries
from agentspec.corpus.sqlite_store import FILE
from agentspec.corpus.store import CorpusStore, Retention, Scope, open_store
from agentspec.errors import ConfigError
from agentspec.stages import DEFAULT_STAGE, StageKey
from agentspec.vllm_plugin.lora import NO_WORKFLOW, adapted

StagePath = tuple[str, ...]


class Place:
    """Where a corpus is. Every use of it may raise CorpusError.

    Args:
        location: as for :func:`open_store`.

    Raises:
        ConfigError: none is named, or the operator's key can't be used.
    """

    def __init__(self, location: str | None) -> None:
        if not location:
            raise ConfigError(f"no corpus is named: --corpus PLACE, or ${PLACE_VARIABLE}")
        self._location = location
        self.shown = without_password(location)
        self.operator = operator_key() if os.environ.get(KEY_VARIABLE) else None

    @property
    def is_there(self) -> bool:
        """False for a folder without a corpus."""
        return is_redis(self._location) or (Path(self._location) / FILE).exists()

    @contextmanager
    def reading(self) -> Iterator[CorpusStore]:
        """Open the store for commands that change nothing. Raises ConfigError if there is no corpus."""
        with closing(open_store(self._location, only_reads=True)) as store:
            yield store

    @contextmanager
    def writing(self, retention: Retention | None = None) -> Iterator[CorpusStore]:
        """Open the store, and make it if it is not there."""
        with closing(open_store(self._location, retention)) as store:
            yield store

    def log(self, store: CorpusStore, scope: Scope) -> BatchLog:
        """Return the log of a scope. Raises ConfigError or CorpusError if its key can't be used."""
        keys = None
        if store.wrapped_key(scope) is not None:
            if self.operator is None:
                raise no_operator_key(scope)
            keys = KeyRing(store, self.operator)
            keys.key(scope)
        return BatchLog(store, scope.vocabulary, keys)


class Contents(NamedTuple):
    """What a scope holds: its distinct outputs, and how many batches can't be used."""

    outputs: SnapshotContent
    num_damaged: int


def contents(log: BatchLog, tenant: str) -> Contents:
    """Read a tenant's snapshot and log, up to its present end."""
    outputs = SnapshotContent(math.inf, int(time.time() // 60), math.inf)
    num_damaged = 0
    snapshot = log.snapshot(tenant)
    for batch in snapshot.batches if snapshot else ():
        if batch is None:
            num_damaged += 1
        else:
            outputs.add(batch, is_snapshot=True)
    later = {one.cursor for one in log.read(tenant, snapshot.cursor, 1)} if snapshot else set()
    is_merged, end = snapshot is not None, log.end(tenant)
    for logged in entries(log, tenant):
        is_merged = is_merged and logged.cursor not in later
        if logged.batch is None:
            num_damaged += 1
        else:
            outputs.add(logged.batch, is_merged=is_merged)
        if logged.cursor == end:
            break
    return Contents(outputs, num_damaged)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """Show progress on a terminal's standard error. Yields a function that takes how much more is done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(30), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done: bars.advance(task, done)


# ---- names: vLLM's forest has names of its own for some tenants and stages ----


def known_scopes(tenant: str | None, scopes: Iterable[Scope], place: str) -> list[Scope]:
    """Return the scopes of a tenant, one per vocabulary and adapter; None = all tenants'.

    Raises:
        ConfigError: the tenant has none. It names the tenants that have.
    """
    scopes = sorted(scopes)
    if tenant is None:
        return scopes
    begin = adapted(StageKey(tenant, (DEFAULT_STAGE,)), "").tenant  # of the tenant's adapters
    begins = (begin, ascii(begin).removesuffix("'"))
    found = [scope for scope in scopes if scope.tenant == tenant or scope.tenant.startswith(begins)]
    if not found:
        tenants = ", ".join(sorted({scope.tenant for scope in scopes})) or "none"
        raise ConfigError(f"tenant {tenant!r} has no outputs in {place!r}; tenants that have: {tenants}")
    return found


def stage_paths(stage: str) -> list[StagePath]:
    """Return the paths of a stage: that of the embedded engine, and that of vLLM. Raises StageError."""
    key = StageKey.parse(stage)
    return list(dict.fromkeys([key.path, adapted(key, None).path]))


def stage_name(path: StagePath) -> str:
    """Return the stage's name as clients send it."""
    return "/".join(path[1:] if path[0] == NO_WORKFLOW and len(path) > 1 else path)
