"""A folder of an object store: S3, Google Cloud Storage, Azure, or a local disk."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from agentspec.corpus.circuit_breaker import CircuitBreaker
from agentspec.corpus.store import check_snapshots
from agentspec.errors import ConfigError, SnapshotError
from agentspec.extras import needed

with needed("object-store"):
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CONNECT_TIMEOUT_S = 1.0
CALL_TIMEOUT_S = 10.0  # of one attempt
_RETRY_S = 5.0  # no attempt begins later
_NUM_RETRIES = 2
_HTTP_VARIABLES = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP")  # obstore's own, which options given to it override


class StoredObject(NamedTuple):
    """An object of a folder.

    Attributes:
        name: below the folder.
        num_bytes: its size.
        modified_s: seconds since 1970 at which it was written.
    """

    name: str
    num_bytes: int
    modified_s: float


class ObjectFolder:
    """Objects below a URL. Thread-safe; each call is bounded in time, on a network at least.

    An object is written whole or not at all. After a failure calls are refused for some seconds, so that a
    store that is away costs no time. Every call may raise SnapshotError.

    Args:
        url: as for :func:`~agentspec.corpus.store.check_snapshots`. Credentials are the environment's.
        only_reads: a local folder that is missing is an error. Otherwise it is made.
        clock: monotonic seconds.

    Attributes:
        most_call_s: longest time of a call on a network.

    Raises:
        ConfigError: the URL or the environment names no folder.
    """

    most_call_s = _RETRY_S + CALL_TIMEOUT_S

    def __init__(
        self, url: str, *, only_reads: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_snapshots(url)
        self.url = url.rstrip("/")
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._breaker = CircuitBreaker(f"the use of {self.url}", clock)
        try:
            self._objects = _opened(url, only_reads=only_reads)
        except (BaseError, OSError, ValueError) as error:
            raise ConfigError(f"snapshots can't be kept in {url!r}: {_reason(error)}") from error

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        with self._call():
            obstore.put(self._objects, name, content, use_multipart=False)

    def get(self, name: str, most_bytes: int) -> bytes | None:
        """Return the first bytes of an object, or None if there is none."""
        if most_bytes == 0:
            return b""
        with self._call(), suppress(FileNotFoundError):
            return bytes(obstore.get_range(self._objects, name, start=0, end=most_bytes))
        return None

    def list(self, below: str = "") -> Iterable[StoredObject]:
        """Return the objects below a name."""
        with self._call():
            return [
                StoredObject(found["path"], found["size"], found["last_modified"].timestamp())
                for found in obstore.list(self._objects, below or None).collect()
            ]

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects. Those that are not there are passed over."""
        for name in names:
            with self._call(), suppress(FileNotFoundError):
                obstore.delete(self._objects, name)

    def delete_unfinished(self, below: str) -> None:
        """Delete what a writer that was killed left on a local disk, where no list shows it."""
        if _is_local(self.url):
            with self._call():
                for path in (_local(self.url) / below).rglob("*#*"):
                    path.unlink(missing_ok=True)

    @contextmanager
    def _call(self) -> Iterator[None]:
        if os.getpid() != self._process:  # its threads are gone, and a call would never end
            raise SnapshotError(f"{self.url} can't be used after a fork: open the corpus in the new process")
        with self._lock:
            if self._breaker.wait_s > 0:
                raise SnapshotError(f"the use of {self.url} pauses after a failure")
        try:
            yield
        except (BaseError, OSError) as error:
            failure = SnapshotError(f"{self.url} can't be used now: {_reason(error)}")
            with self._lock:
                self._breaker.fail(failure)
            raise failure from error
        with self._lock:
            self._breaker.succeed()


def _opened(url: str, *, only_reads: bool) -> ObjectStore:
    if _is_local(url):
        folder = _local(url)
        if not only_reads:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LocalStore(folder, automatic_cleanup=True)
    return from_url(
        url,
        client_options={
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
            "timeout": timedelta(seconds=CALL_TIMEOUT_S),
            "allow_http": any(os.environ.get(name, "").lower() == "true" for name in _HTTP_VARIABLES),
        },
        retry_config={"max_retries": _NUM_RETRIES, "retry_timeout": timedelta(seconds=_RETRY_S)},
    )


def _is_local(url: str) -> bool:
    return url.startswith("file:")


def _local(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _reason(error: Exception) -> str:
    """Return the first line of an error, without the options of URLs: they may be credentials."""
    return re.sub(r"\?\S+", "", str(error).partition("\n")[0])
