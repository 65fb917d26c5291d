"""The file of exported outputs: its format and its checks.

Owns the format and the reasons for refusal. Knows nothing of the store that the outputs are from. After a
preamble (magic, version) follow chunks, each with its kind, its size and a CRC-32 of all three:

    HEAD   when it was written, as JSON
    SCOP   a vocabulary, a tenant and the wrapped key of the batches that follow, as JSON
    OUTS   an encoded batch of outputs, as in a store (``batch``)
    DONE   the totals, as JSON, at the end: a truncated file has none

All is little-endian. Writer and reader hold one chunk at a time. Sizes are checked before memory is taken.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

import msgspec

from agentspec.corpus.batch import MOST_BATCH_BYTES, ORIGIN_BYTES, Batch, decode, encode, split
from agentspec.corpus.output import Output
from agentspec.corpus.store import Scope
from agentspec.errors import AgentSpecError, ExportFileError

if TYPE_CHECKING:
    from agentspec.corpus.encryption import DataKey, OperatorKey

_MAGIC = b"AgSpecEx"
_VERSION = 1
_PREAMBLE = struct.Struct("<8sI")  # magic, version
_CHUNK = struct.Struct("<4sI")  # kind, bytes
_CHECKSUM = struct.Struct("<I")
_HEAD, _SCOPE, _OUTPUTS, _DONE = b"HEAD", b"SCOP", b"OUTS", b"DONE"
_MOST_CHUNK_BYTES = MOST_BATCH_BYTES

Content = TypeVar("Content", bound=msgspec.Struct)


class Totals(msgspec.Struct, forbid_unknown_fields=True):
    """What a file holds."""

    num_scopes: int = 0
    num_outputs: int = 0
    num_tokens: int = 0


class ExportedScope(NamedTuple):
    """The owner of the batches that follow, and their wrapped key; None if they are not encrypted."""

    scope: Scope
    wrapped_key: bytes | None


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    minute: int


class _Scope(msgspec.Struct, forbid_unknown_fields=True):
    vocabulary: str
    tenant: str
    key: bytes | None  # base64 in JSON


# ---- writing ----


class ExportWriter:
    """Adds outputs, scope by scope, to a file opened by :func:`writing`."""

    def __init__(self, file: BinaryIO, minute: int) -> None:
        self._file = file
        self.totals = Totals()
        file.write(_PREAMBLE.pack(_MAGIC, _VERSION))
        self._add(_HEAD, msgspec.json.encode(_Head(minute)))

    def add(
        self,
        scope: Scope,
        outputs: Iterable[Output],
        key: DataKey | None = None,
        operator: OperatorKey | None = None,
    ) -> None:
        """Add the outputs of one scope; with a key, encrypted by it. ``operator`` wraps the key."""
        wrapped = operator.wrap(key) if key and operator else None
        first = 0
        for records in split(outputs):
            if first == 0:
                self._add(_SCOPE, msgspec.json.encode(_Scope(*scope, wrapped)))
                self.totals.num_scopes += 1
            self._add(_OUTPUTS, encode(Batch(bytes(ORIGIN_BYTES), first, records), key))
            first += len(records)
            self.totals.num_outputs += len(records)
            self.totals.num_tokens += sum(
                len(record.tokens) for record in records if isinstance(record, Output)
            )

    def finish(self) -> None:
        """Write the totals. Nothing may follow."""
        self._add(_DONE, msgspec.json.encode(self.totals))

    def _add(self, kind: bytes, content: bytes) -> None:
        begin = _CHUNK.pack(kind, len(content))
        self._file.write(begin + _CHECKSUM.pack(zlib.crc32(content, zlib.crc32(begin))) + content)


@contextlib.contextmanager
def writing(path: Path, minute: int) -> Iterator[ExportWriter]:
    """Open a new file, which only its owner may read. It has its name once the block ends without an error.

    Raises:
        ExportFileError: there is one of this name, or it can't be written.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        if path.exists():
            raise ExportFileError(f"{str(path)!r} is there already and stays as it is: name another file")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            writer = ExportWriter(file, minute)
            yield writer
            writer.finish()
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, path)
    except OSError as error:
        raise ExportFileError(f"can't export to {str(path)!r}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


# ---- reading ----


class ExportReader:
    """The batches of a file, in its order. Each iteration reads the file once more.

    An iteration that reaches the end has verified that the file is whole. Otherwise it raises
    ExportFileError.

    Attributes:
        minute: when it was written, in minutes since 1970.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._check_preamble()
        kind, content = self._chunk()
        if kind != _HEAD:
            raise self._broken("it does not begin as one")
        self.minute = self._parsed(content, _Head).minute
        self._begin = file.tell()

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return os.fstat(self._file.fileno()).st_size

    def scopes(self) -> list[ExportedScope]:
        """Return the scopes of the file. Reads the whole file and checks its checksums."""
        found = [self._scope(content) for kind, content in self._chunks() if kind == _SCOPE]
        if len({one.scope for one in found}) < len(found):
            raise self._broken("it holds a tenant twice")
        return found

    def batches(
        self, keys: Mapping[Scope, DataKey | None], advance: Callable[[int], object] = lambda num_bytes: None
    ) -> Iterator[tuple[Scope, Batch]]:
        """Yield each batch and its owner.

        Args:
            keys: of the scopes with a wrapped key.
            advance: called with the size of each batch that was read.
        """
        totals, scope = Totals(), None
        for kind, content in self._chunks():
            if kind == _SCOPE:
                scope = self._scope(content).scope
                totals.num_scopes += 1
            elif kind == _OUTPUTS and scope is not None:
                batch = self._batch(content, scope, keys)
                totals.num_outputs += len(batch.records)
                totals.num_tokens += sum(
                    len(record.tokens) for record in batch.records if isinstance(record, Output)
                )
                advance(len(content))
                yield scope, batch
            elif kind == _DONE:
                if self._parsed(content, Totals) != totals:
                    raise self._broken("its totals are wrong")
            else:
                raise self._broken(f"it holds something of the kind {kind!r}")

    def _chunks(self) -> Iterator[tuple[bytes, bytes]]:
        self._file.seek(self._begin)
        kind = b""
        while kind != _DONE:
            kind, content = self._chunk()
            yield kind, content
        if self._file.tell() != self.num_bytes:
            raise self._broken("it does not end as one")

    def _check_preamble(self) -> None:
        begin = self._file.read(_PREAMBLE.size)
        if begin[: len(_MAGIC)] != _MAGIC:
            raise ExportFileError(f"{str(self._path)!r} is no file of exported outputs: name another file")
        if len(begin) < _PREAMBLE.size:
            raise self._broken("it is cut off")
        _, version = _PREAMBLE.unpack(begin)
        if version > _VERSION:
            raise ExportFileError(
                f"{str(self._path)!r} has the format {version}, but this version of AgentSpec reads format "
                f"{_VERSION}: use a newer one"
            )
        if version == 0:
            raise self._broken("it does not begin as one")

    def _chunk(self) -> tuple[bytes, bytes]:
        begin = self._read(_CHUNK.size)
        kind, size = _CHUNK.unpack(begin)
        (checksum,) = _CHECKSUM.unpack(self._read(_CHECKSUM.size))
        at = self._file.tell()
        content = self._read(size)
        if checksum != zlib.crc32(content, zlib.crc32(begin)):
            raise self._broken(f"the checksum of the chunk at byte {at} is wrong")
        return kind, content

    def _read(self, size: int) -> bytes:
        """Read ``size`` bytes. Checks ``size`` first: a wrong one could request any amount of memory."""
        if size > min(_MOST_CHUNK_BYTES, self.num_bytes - self._file.tell()):
            raise self._broken("it is cut off, or a size in it is wrong")
        return self._file.read(size)

    def _scope(self, content: bytes) -> ExportedScope:
        parsed = self._parsed(content, _Scope)
        return ExportedScope(Scope(parsed.vocabulary, parsed.tenant), parsed.key)

    def _batch(self, content: bytes, scope: Scope, keys: Mapping[Scope, DataKey | None]) -> Batch:
        try:
            batch = decode(content, scope.tenant, keys.get(scope))
        except AgentSpecError as error:
            raise self._broken(f"at tenant {scope.tenant!r}: {error}") from error
        if not all(isinstance(record, Output) for record in batch.records):
            raise self._broken(f"at tenant {scope.tenant!r} it holds something else than outputs")
        return batch

    def _parsed(self, content: bytes, form: type[Content]) -> Content:
        try:
            return msgspec.json.decode(content, type=form)
        except msgspec.MsgspecError as error:
            raise self._broken(str(error)) from error

    def _broken(self, reason: str) -> ExportFileError:
        return ExportFileError(f"{str(self._path)!r} is no whole file of exported outputs: {reason}")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[ExportReader]:
    """Open an exported file.

    Raises:
        ExportFileError: it can't be read, is damaged, or is of a newer version.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is refused, not waited for
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ExportFileError(f"{str(path)!r} is no file: name another one")
            yield ExportReader(path, file)
    except OSError as error:
        raise ExportFileError(f"can't import {str(path)!r}: {error.strerror}") from error
