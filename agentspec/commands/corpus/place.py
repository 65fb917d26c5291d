"""The corpus that a command is about: its place, its store and the operator's key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from agentspec.commands.corpus.command import PLACE_VARIABLE
from agentspec.corpus.contents import ScopeContents
from agentspec.corpus.encryption import KEY_VARIABLE, operator_key, stored_key
from agentspec.corpus.sqlite_store import FILE
from agentspec.corpus.store import CorpusStore, Retention, Scope, ScopeStats, open_store, without_password
from agentspec.errors import ConfigError

Advance = Callable[[int], object]


class Place:
    """Where a corpus is. Every use of it may raise CorpusError.

    Args:
        location, snapshots: as for :func:`open_store`.

    Raises:
        ConfigError: none is named, or the operator's key can't be used.
    """

    def __init__(self, location: str | None, snapshots: str | None = None) -> None:
        if not location:
            raise ConfigError(f"no corpus is named: --corpus PLACE, or ${PLACE_VARIABLE}")
        self._location = location
        self._snapshots = snapshots or None
        self.shown = without_password(location)
        self.operator = operator_key() if os.environ.get(KEY_VARIABLE) else None

    @property
    def is_there(self) -> bool:
        """False for a folder without a corpus."""
        return "://" in self._location or (Path(self._location) / FILE).exists()

    @contextmanager
    def reading(self) -> Iterator[CorpusStore]:
        """Open the store for commands that change nothing. Raises ConfigError if there is no corpus."""
        with closing(open_store(self._location, snapshots=self._snapshots, only_reads=True)) as store:
            yield store

    @contextmanager
    def writing(self, retention: Retention) -> Iterator[CorpusStore]:
        """Open the store, and make it if it is not there."""
        with closing(open_store(self._location, retention, snapshots=self._snapshots)) as store:
            yield store

    def contents(self, store: CorpusStore, scope: Scope, advance: Advance) -> ScopeContents:
        """Return what a scope holds. Raises ConfigError or CorpusError if its key can't be used."""
        return ScopeContents(store, scope, stored_key(store, scope, self.operator), advance)


def retention_of(stats: Iterable[ScopeStats]) -> Retention:
    """Return limits that drop nothing that an engine keeps."""
    limits = [one.retention for one in stats if one.retention is not None] or [Retention()]
    return Retention(max(limit.most_bytes for limit in limits), max(limit.most_age_s for limit in limits))


def num_bytes(stats: Iterable[ScopeStats]) -> int:
    """Return the bytes to be read of some scopes."""
    return sum(one.num_bytes + one.num_snapshot_bytes for one in stats)


@contextmanager
def progress(what: str, total: int) -> Iterator[Advance]:
    """Show progress on a terminal's standard error. Yields a function that takes the bytes done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(30), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done: bars.advance(task, done)
