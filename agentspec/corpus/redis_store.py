"""The corpus of a fleet, in a Redis or Valkey server.

A scope has a stream (the log), a hash of facts, a lease, and one hash per snapshot with its numbered parts.
Atomic changes are Lua scripts. Ages are measured by the server's clock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec

from agentspec.corpus import redis_scripts as scripts
from agentspec.corpus.batch import MOST_BATCH_BYTES, check_size
from agentspec.corpus.redis_files import settle
from agentspec.corpus.settings import without_password
from agentspec.corpus.store import (
    START,
    Cursor,
    Entry,
    Marks,
    Retention,
    Scope,
    ScopeStats,
    Snapshot,
    Unread,
)
from agentspec.errors import ConfigError, CorpusError
from agentspec.extras import needed

with needed("corpus"):
    import redis
    from redis._parsers import _RESP2Parser
    from redis.backoff import NoBackoff
    from redis.retry import Retry

logger = logging.getLogger("agentspec")

CONNECT_TIMEOUT_S = 1.0
CALL_TIMEOUT_S = 2.0
_PREFIX = "agentspec:corpus:"
_SCOPES = f"{_PREFIX}scopes"  # a set of all scopes that have or had outputs, without erased scopes
_UPLOAD_S = 600.0  # an unfinished snapshot expires so long after its last part

_SCOPE_BYTES = 4096  # limit of a name in that set
_MOST_FOREIGN = 1024  # number of places that are remembered for num_foreign
_LONGEST_LEASE_MS = 3_600_000  # no engine takes a longer lease
_PIECE_BYTES = 1 << 20  # bytes of the log that one call rewrites
_PIECE_ENTRIES = 256
_ID = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")
_LATEST_S = 7200.0  # no server assigns an id further in the future
_MOST_ANSWER_BYTES = 16 << 20
_LINE_BYTES = 64  # memory of one line of an answer
_OPTIONS = frozenset(
    (
        *(
            "ssl_ca_certs",
            "ssl_ca_path",
            "ssl_certfile",
            "ssl_keyfile",
            "ssl_check_hostname",
            "ssl_cert_reqs",
        ),
        *("db", "username", "password", "client_name", "socket_keepalive", "health_check_interval"),
    )
)  # options of redis-py in the URL


class RedisStore:
    """A :class:`~agentspec.corpus.store.CorpusStore` in a Redis (6.2 or newer) or Valkey server.

    The first call of a method connects, so the server may start later. A forked process may use the store.

    Args:
        url: ``redis://USER:PASSWORD@HOST:PORT/DB``, ``rediss://`` for TLS, with redis-py's options.
        retention: how much to keep of each scope.
        connect_timeout_s: time-out of a connection.
        call_timeout_s: time-out of each answer.

    Raises:
        ConfigError: the URL is malformed.
    """

    window_s = 0.25  # in a fleet each entry is read by all engines

    def __init__(
        self,
        url: str,
        retention: Retention | None = None,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._shown = without_password(url)
        self._retention = retention or Retention()
        self._most_wait_s = call_timeout_s / 2  # the client would time out in a longer blocking read
        self._closed = threading.Event()
        self._foreign: set[bytes] = set()  # places of values that no engine wrote
        self._check_options(url)
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                socket_connect_timeout=connect_timeout_s,
                socket_timeout=call_timeout_s,
                retry=Retry(NoBackoff(), 0),  # the caller's circuit breaker decides about retries
                protocol=2,  # so that answers have the same form in all versions of redis-py
                parser_class=_BoundedParser,
            )
            self._client.connection_pool.make_connection()  # checks the options without connecting
        except (ValueError, TypeError, redis.RedisError):
            raise self._no_url("its port is no number, or one of its options is out of range") from None

    @property
    def num_foreign(self) -> int:
        """Number of values read so far that no engine wrote."""
        return len(self._foreign)

    def _check_options(self, url: str) -> None:
        options = parse_qsl(url.partition("?")[2].partition("#")[0], keep_blank_values=True)
        unknown = sorted({name for name, _ in options} - _OPTIONS)
        if unknown:
            known = ", ".join(sorted(_OPTIONS))
            raise self._no_url(f"it has the option {unknown[0]!r}, which is none of {known}")

    def _no_url(self, reason: str) -> ConfigError:
        return ConfigError(
            f"{self._shown!r} is no URL of a Redis server: {reason}. Write "
            "redis://USER:PASSWORD@HOST:PORT/DB, with the special characters of a password as %XX"
        )

    # ---- the log ----

    def publish(
        self,
        scope: Scope,
        batch: bytes,
        epoch: int | None = None,
        *,
        key: bytes = b"",
        is_erasure: bool = False,
    ) -> bool:
        """Append a batch to the log, and drop entries beyond the retention."""
        check_size(batch)
        keys = _Keys(scope)
        limits = (self._retention.most_bytes, self._most_age_ms)
        expected = "" if epoch is None else epoch
        self._run(scripts.ADD_SCOPE, [_SCOPES], json.dumps(scope), answer=None)
        names = [keys.log, keys.facts]
        return bool(
            self._run(scripts.PUBLISH, names, batch, expected, *limits, key, int(is_erasure), answer=int)
        )

    def read(self, scope: Scope, after: Cursor, most_bytes: int) -> list[Entry]:
        """Return entries after a cursor, the oldest first."""
        log = _Keys(scope).log
        entries: list[Entry] = []
        num_bytes = 0
        while True:
            begin = f"({after}" if after else "-"
            limits = (min(most_bytes, MOST_BATCH_BYTES), MOST_BATCH_BYTES)
            found = self._run(scripts.READ, [log], begin, *limits, answer=list[tuple[bytes, bytes | int]])
            for cursor, batch in found:
                num_bytes += len(batch) if isinstance(batch, bytes) else 0
                if entries and num_bytes > most_bytes:
                    return entries
                entries.append(Entry(cursor.decode(), _batch(batch)))
            if not found or num_bytes >= most_bytes:
                return entries
            after = entries[-1].cursor

    def wait(self, cursors: dict[Scope, Cursor], timeout_s: float) -> None:
        """Return once one of the scopes has an entry after its cursor, or after the time-out."""
        deadline = time.monotonic() + timeout_s
        streams = {_Keys(scope).log: after or "0-0" for scope, after in cursors.items()}
        if not streams:
            self._closed.wait(timeout_s)
        while streams and not self._closed.is_set() and (left_s := deadline - time.monotonic()) > 0:
            block_ms = max(1, int(min(left_s, self._most_wait_s) * 1000))
            try:
                with self._errors():
                    if self._is_news(self._client.xread(streams, count=1, block=block_ms)):
                        return
            except (_AnswerTooLongError, _NotOursError):  # the next read skips this entry
                self._closed.wait(min(left_s, self.window_s))
                return
            except CorpusError:
                if not self._closed.is_set():
                    raise

    def _is_news(self, found: list[Any]) -> bool:
        """Return True if a readable entry has arrived. Otherwise sleep a moment: unreadable entries stay."""
        latest_ms = (time.time() + _LATEST_S) * 1000
        if not found or any(int(entries[0][0].partition(b"-")[0]) < latest_ms for _, entries in found):
            return bool(found)
        self._closed.wait(self.window_s)
        return False

    def end(self, scope: Scope) -> Cursor:
        """Return the cursor behind the newest entry."""
        newest = self._run(scripts.END, [_Keys(scope).log], answer=bytes | None)
        return newest.decode() if newest else START

    def rewrite(
        self, scope: Scope, entries: Iterable[tuple[Cursor, bytes | None]], fence: int | None = None
    ) -> None:
        """Copy the log with these changes to another stream, and rename it to the log.

        ``XDEL`` would leave an entry's bytes in the stream's memory, and so in the server's files. The server
        frees the old stream as a whole. Until then the log takes twice its memory.
        """
        keys = _Keys(scope)
        copy = f"{keys.log}:{uuid.uuid4().hex}"
        last, num_bytes = "0-0", 0
        try:
            for piece in _pieces(entries):
                while piece:
                    flat = [one for pair in piece for one in pair]
                    names = [keys.log, copy]
                    answer = tuple[bytes, int, int]
                    copied, num_done, more = self._run(
                        scripts.COPY, names, last, MOST_BATCH_BYTES, *flat, answer=answer
                    )
                    last, num_bytes, piece = copied.decode(), num_bytes + more, piece[num_done:]
            self._swap(scope, copy, fence, last, num_bytes)
        except BaseException:
            with contextlib.suppress(CorpusError), self._errors():
                self._client.unlink(copy)
            raise

    def _swap(self, scope: Scope, copy: str, fence: int | None, last: str, num_bytes: int) -> None:
        keys = _Keys(scope)
        expected = "" if fence is None else fence
        state = 0
        while state == 0:
            names = [keys.log, copy, keys.facts]
            copied, num_bytes, state = self._run(
                scripts.SWAP,
                names,
                *(expected, last, num_bytes, MOST_BATCH_BYTES),
                answer=tuple[bytes, int, int],
            )
            last = copied.decode()
        if state < 0:
            raise CorpusError(f"tenant {scope.tenant!r} was changed while its log was rewritten: repeat it")

    def drop_previous(self, scope: Scope) -> None:
        """Remove the snapshot that the present one replaced."""
        keys = _Keys(scope)
        self._run(scripts.DROP_PREVIOUS, [keys.facts], keys.snapshot, answer=None)

    # ---- epochs and snapshots ----

    def marks(self, scope: Scope) -> Marks:
        """Return the numbers of the scope's last erasures."""
        keys = _Keys(scope)
        names, answer = [keys.facts, keys.log, keys.lease], tuple[bytes, bytes, list[bytes]]
        epoch, erasure, foreign = self._run(scripts.MARKS, names, answer=answer)
        for name in foreign:
            self._note_foreign(name.decode())
        return Marks(int(epoch), int(erasure))

    def mark(self, scope: Scope, erasure: int) -> None:
        """Raise the number of the last erasure of a stage or a person to at least this one."""
        self._run(scripts.MARK, [_Keys(scope).facts], erasure, answer=None)

    def erase(self, scope: Scope, epoch: int = 0) -> None:
        """Remove all entries, the snapshots and the wrapped key of the scope, and begin a new epoch."""
        keys = _Keys(scope)
        names = [keys.log, keys.facts, keys.lease]
        try:
            self._run(scripts.ERASE, names, keys.snapshot, epoch, answer=int)
        except CorpusError as error:
            if not isinstance(error.__cause__, redis.exceptions.OutOfMemoryError):
                raise
            self._run(scripts.DROP, names, keys.snapshot, answer=None)  # frees memory
            self._run(scripts.ERASE, names, keys.snapshot, epoch, answer=int)
        if not epoch:
            with self._errors(), contextlib.suppress(redis.exceptions.ResponseError):  # if it is not a set
                self._client.srem(_SCOPES, json.dumps(scope))

    def settle(self, timeout_s: float) -> list[str]:
        """Have the server write its files again without the erased data, and wait."""
        with self._errors():
            return settle(self._client, timeout_s)

    def lease(self, scope: Scope, holder: str, ttl_s: float) -> int | None:
        """Return a fencing number if the holder may write the snapshot now."""
        keys = _Keys(scope)
        ttl_ms = max(1, int(ttl_s * 1000))
        names = [keys.facts, keys.lease]
        arguments = (holder, ttl_ms, _LONGEST_LEASE_MS)
        fence: int | None = self._run(scripts.LEASE, names, *arguments, answer=int | None)
        return fence

    def put_snapshot(self, scope: Scope, fence: int, cursor: Cursor, parts: Iterable[bytes]) -> bool:
        """Upload the parts one by one, then replace the scope's snapshot at once."""
        keys = _Keys(scope)
        snapshot = uuid.uuid4().hex
        key = keys.snapshot + snapshot
        is_put = False
        try:
            sizes = self._upload(key, parts)
            self._run(scripts.ADD_SCOPE, [_SCOPES], json.dumps(scope), answer=None)
            arguments = (keys.snapshot, snapshot, fence, self._most_age_ms, cursor, *sizes)
            is_put = bool(self._run(scripts.PUT_SNAPSHOT, [keys.facts], *arguments, answer=int))
        finally:
            if not is_put:
                with contextlib.suppress(CorpusError), self._errors():
                    self._client.unlink(key)
        return is_put

    def snapshot(self, scope: Scope) -> Snapshot | None:
        """Return the scope's newest valid snapshot, or None."""
        keys = _Keys(scope)
        answer = tuple[bytes, bytes, bytes, bytes] | None
        found = self._run(scripts.SNAPSHOT, [keys.facts, keys.log], keys.snapshot, answer=answer)
        if found is None or not found[1] + found[2]:  # missing or too old
            return None
        try:
            name, cursor, parts, newest_ms = (text.decode("ascii") for text in found)
            if not cursor or (_ID.fullmatch(cursor) and int(cursor.partition("-")[0]) <= int(newest_ms)):
                return Snapshot(cursor, self._parts(keys.snapshot + name, int(parts)))
        except ValueError:
            pass
        self._note_foreign(f"the snapshot of tenant {scope.tenant!r}")
        return None

    def _upload(self, key: str, parts: Iterable[bytes]) -> tuple[int, int]:
        """Write the parts under a key that expires after some minutes. Return their number and bytes."""
        num_parts = num_bytes = 0
        for part in parts:
            check_size(part)
            with self._errors(), self._client.pipeline(transaction=False) as pipeline:
                pipeline.hset(key, str(num_parts), part)
                pipeline.pexpire(key, int(_UPLOAD_S * 1000))
                _answers(pipeline)
            num_parts += 1
            num_bytes += len(part)
        return num_parts, num_bytes

    def _parts(self, key: str, num_parts: int) -> Iterator[bytes | Unread]:
        for number in range(num_parts):
            part = self._run(scripts.PART, [key], number, MOST_BATCH_BYTES, answer=bytes | int | None)
            if part is None:
                raise CorpusError("this snapshot was replaced while it was read: read the new one")
            yield _batch(part)

    # ---- keys, sizes ----

    def wrapped_key(self, scope: Scope, candidate: bytes | None = None) -> bytes | None:
        """Return the scope's wrapped data key. If the scope has none, store the candidate and return it."""
        names, candidates = [_Keys(scope).facts], [] if candidate is None else [candidate]
        wrapped: bytes | None = self._run(scripts.KEY, names, *candidates, answer=bytes | None)
        return wrapped

    def replace_key(self, scope: Scope, before: bytes, wrapped: bytes) -> bool:
        """Replace the scope's wrapped key. Return False if it is not ``before``."""
        return bool(self._run(scripts.REPLACE_KEY, [_Keys(scope).facts], before, wrapped, answer=int))

    def stats(self) -> dict[Scope, ScopeStats]:
        """Return the sizes of all scopes that have outputs."""
        scopes = self.scopes()
        with self._errors(), self._client.pipeline(transaction=False) as pipeline:
            for keys in map(_Keys, scopes):
                pipeline.eval(scripts.STATS, 2, keys.log, keys.facts, keys.snapshot)
            answers = msgspec.convert(_answers(pipeline), list[tuple[int, int, int, int, int]])
        stats = {scope: ScopeStats(*answer) for scope, answer in zip(scopes, answers, strict=True)}
        return {scope: one for scope, one in stats.items() if one.num_entries or one.num_snapshot_bytes}

    def scopes(self) -> list[Scope]:
        """Return the scopes that have or had outputs, without erased scopes."""
        answer = tuple[list[bytes], int]
        names, num_foreign = self._run(scripts.SCOPES, [_SCOPES], _SCOPE_BYTES, answer=answer)
        found = []
        for name in names:
            try:
                found.append(Scope(*msgspec.json.decode(name, type=tuple[str, str])))
            except (msgspec.MsgspecError, ValueError):
                self._note_foreign(f"{name[:40]!r} in the set {_SCOPES}")
        for number in range(num_foreign):
            self._note_foreign(f"long name {number} in the set {_SCOPES}")
        return sorted(found)

    def close(self) -> None:
        """Close the connections, and end all waits."""
        self._closed.set()
        self._client.connection_pool.disconnect(inuse_connections=False)  # calls close their own

    @property
    def _most_age_ms(self) -> int:
        return max(1, int(self._retention.most_age_s * 1000))

    def _run(self, script: str, keys: list[str], *arguments: Any, answer: Any) -> Any:
        """Run a script. Raises CorpusError if its answer is not an instance of ``answer``."""
        with self._errors():
            return msgspec.convert(self._client.eval(script, len(keys), *keys, *arguments), answer)

    def _note_foreign(self, what: str) -> None:
        """Count a place with a value that no engine wrote, once per place. Log the first one."""
        if not self._foreign:
            logger.warning("the corpus at %s holds values that no engine wrote: %s", self._shown, what)
        if len(self._foreign) < _MOST_FOREIGN:
            self._foreign.add(blake2b(what.encode(errors="replace"), digest_size=8).digest())

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        if self._closed.is_set():
            raise CorpusError(f"the corpus at {self._shown} is closed")
        try:
            yield
        except _AnswerTooLong as error:
            raise _AnswerTooLongError(f"the corpus at {self._shown} can't be used now: {error}") from error
        except redis.exceptions.ResponseError as error:
            kind = _NotOursError if "WRONGTYPE" in str(error) else CorpusError
            raise kind(f"the corpus at {self._shown} can't be used now: {_short(error)}") from error
        except redis.RedisError as error:
            raise CorpusError(f"the corpus at {self._shown} can't be used now: {_short(error)}") from error
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise CorpusError(
                f"the corpus at {self._shown} gave an answer of another form: {error}"
            ) from error


class _NotOursError(CorpusError):
    """A key of the corpus holds a value of another type."""


class _AnswerTooLongError(CorpusError):
    """An answer was not read, because it is longer than any answer to the corpus's commands."""


class _AnswerTooLong(redis.ConnectionError):
    """Closes the connection, since the rest of the answer is still in it."""


class _BoundedParser(_RESP2Parser):
    """Checks the length of each value before reading it, so an answer takes at most some MiB of memory."""

    def on_connect(self, connection: Any) -> None:
        """Begin to read from a connection."""
        super().on_connect(connection)  # type: ignore[no-untyped-call]
        buffer: Any = self._buffer
        read, readline, purge = buffer.read, buffer.readline, buffer.purge
        num_bytes = 0

        def add(more: int) -> None:
            nonlocal num_bytes
            num_bytes += more
            if num_bytes > _MOST_ANSWER_BYTES:
                raise _AnswerTooLong(f"an answer has more than {_MOST_ANSWER_BYTES} bytes")

        def bounded_read(length: int, *args: Any, **options: Any) -> Any:
            add(length)
            return read(length, *args, **options)

        def bounded_readline(*args: Any, **options: Any) -> Any:
            add(_LINE_BYTES)
            return readline(*args, **options)

        def bounded_purge() -> None:
            nonlocal num_bytes
            num_bytes = 0
            purge()

        buffer.read, buffer.readline, buffer.purge = bounded_read, bounded_readline, bounded_purge


class _Keys:
    """The names of a scope's keys. In a cluster, the braces place all of them on one server."""

    def __init__(self, scope: Scope) -> None:
        vocabulary = blake2b(scope.vocabulary.encode(), digest_size=8).hexdigest()
        scope_name = f"{_PREFIX}{{{vocabulary}:{quote(scope.tenant, safe='')}}}"
        self.log = f"{scope_name}:log"
        self.facts = f"{scope_name}:facts"
        self.lease = f"{scope_name}:lease"
        self.snapshot = f"{scope_name}:snapshot:"  # prefix; an id follows


def _answers(pipeline: Any) -> list[Any]:
    """Run the pipeline without redis-py's error texts, which quote the commands and so their content."""
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, redis.RedisError):
            raise answer
    return answers


def _pieces(
    entries: Iterable[tuple[Cursor, bytes | None]],
) -> Iterator[list[tuple[Cursor, bytes]]]:
    """Group changes for calls of COPY."""
    piece: list[tuple[Cursor, bytes]] = []
    num_bytes = 0
    for cursor, batch in entries:
        check_size(batch or b"")
        piece.append((cursor, b"" if batch is None else b"+" + batch))
        num_bytes += len(batch or b"")
        if num_bytes >= _PIECE_BYTES or len(piece) >= _PIECE_ENTRIES:
            yield piece
            piece, num_bytes = [], 0
    if piece:
        yield piece


def _batch(found: bytes | int) -> bytes | Unread:
    """Return a batch, or the reason why it was not read."""
    if isinstance(found, bytes):
        return found
    if found < 0:
        return Unread("no engine wrote it")
    return Unread(f"it has {found} bytes, not at most {MOST_BATCH_BYTES}", found)


def _short(error: Exception) -> str:
    """Return an error's text. Of a script's long error, return the part before the position in the script."""
    return str(error).partition(" script: ")[0][:200]
