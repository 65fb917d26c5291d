"""The file of a saved forest: its format and its integrity checks.

Owns the format, the replacement of an older forest (and of no other file), and the reasons for refusal.
Handles outputs as arrays, models as bytes, and trees by name only. After a preamble (magic, version) follow
chunks, each with a checksum:

    HEAD   the vocabulary
    MODL   the state of one stage's model
    OUTS   some outputs of one tree, oldest first; a tree may have several of these in sequence
    DONE   the totals, at the end: a truncated file has none

A chunk is a header (kind, sizes, CRC-32 of all the rest), names as JSON, and arrays. All is little-endian.
Writer and reader hold one chunk at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import logging
import os
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ForestFileError, UnusableForestError
from agentspec.stages import StageKey

Loaded = TypeVar("Loaded")
logger = logging.getLogger("agentspec")

_MAGIC = b"AgentSpec forest"
_VERSION = 1
_PREAMBLE = struct.Struct("<16sI")  # magic, version
_HEADER = struct.Struct("<4sIQ")  # kind, bytes of the names, bytes of the arrays
_CHECKSUM = struct.Struct("<I")
MOST_USES = 65_535  # of one output, the native core's limit too

TreeName = tuple[str, tuple[str, ...]]  # tenant, path; the path () is the tenant's own tree


@dataclass(frozen=True, slots=True)
class SavedForest:
    """The amount saved or loaded.

    Attributes:
        num_trees: trees with outputs.
        num_outputs: outputs, counted once per occurrence and per tree.
        num_tokens: their tokens, counted in the same way.
        num_bytes: size of the file.
    """

    num_trees: int = 0
    num_outputs: int = 0
    num_tokens: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SavedModel:
    """The learned rule's state for one stage, in the native core's format."""

    name: TreeName
    state: bytes


@dataclass(frozen=True, slots=True, eq=False)
class SavedOutputs:
    """Some outputs of one tree, end to end, the oldest first.

    Attributes:
        name: tree of the outputs.
        token_ids: int32 ``[sum of sizes]``.
        sizes: uint32 ``[n]``, tokens of each output.
        uses: uint32 ``[n]``, number of equal outputs that each stands for.
    """

    name: TreeName
    token_ids: NDArray[np.int32]
    sizes: NDArray[np.uint32]
    uses: NDArray[np.uint32]

    def __iter__(self) -> Iterator[tuple[NDArray[np.int32], int]]:
        """Yield each output's tokens and uses."""
        ends = np.cumsum(self.sizes, dtype=np.int64)
        for begin, end, uses in zip(ends - self.sizes, ends, self.uses, strict=True):
            yield self.token_ids[begin:end], int(uses)


class Totals:
    """A counter of saved or loaded outputs."""

    def __init__(self) -> None:
        self._trees: set[TreeName] = set()
        self._num_outputs = self._num_tokens = 0

    def add(self, outputs: SavedOutputs) -> None:
        """Count some outputs of a tree."""
        self._trees.add(outputs.name)
        self._num_outputs += int(outputs.uses.sum(dtype=np.int64))
        self._num_tokens += int(np.dot(outputs.sizes.astype(np.int64), outputs.uses))

    def saved(self, num_bytes: int) -> SavedForest:
        """Return the counts, for a file of ``num_bytes`` bytes."""
        return SavedForest(len(self._trees), self._num_outputs, self._num_tokens, num_bytes)


# ---- writing ----


class ForestWriter:
    """A writer that adds chunks to a file opened by :func:`writing`."""

    def __init__(self, file: BinaryIO, vocabulary: str) -> None:
        self._file = file
        self._totals = Totals()
        file.write(_PREAMBLE.pack(_MAGIC, _VERSION))
        self._write(b"HEAD", {"vocabulary": vocabulary})

    def add_model(self, model: SavedModel) -> None:
        """Add the state of one stage's model."""
        self._write(b"MODL", _named(model.name), model.state)

    def add_outputs(self, outputs: SavedOutputs) -> None:
        """Add the next outputs of a tree."""
        arrays = (outputs.sizes.astype("<u4"), outputs.uses.astype("<u4"), outputs.token_ids.astype("<i4"))
        names = _named(outputs.name) | {"num_outputs": len(outputs.sizes)}
        self._write(b"OUTS", names, b"".join(array.tobytes() for array in arrays))
        self._totals.add(outputs)

    def finish(self) -> SavedForest:
        """Write the totals and return them. Nothing may follow."""
        self._write(b"DONE", asdict(self._totals.saved(self._file.tell())))
        return self._totals.saved(self._file.tell())

    def _write(self, kind: bytes, names: dict[str, Any], arrays: bytes = b"") -> None:
        encoded = json.dumps(names).encode()
        header = _HEADER.pack(kind, len(encoded), len(arrays))
        self._file.write(header + _CHECKSUM.pack(_checksum(header, encoded, arrays)) + encoded)
        self._file.write(arrays)


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], vocabulary: str) -> Iterator[ForestWriter]:
    """Yield a writer for a file that replaces ``path`` once it is complete and on disk.

    Only its owner may read the file. The writer writes to ``path`` + ``.saving`` in the same folder: an old
    file stays whole until then. The next save overwrites the ``.saving`` file of a killed process. A file
    that does not begin as a forest stays unchanged.

    Raises:
        ForestFileError: the system refuses, another save to the same place is running, or one of the two
            files is not a forest.
    """
    path = Path(path)
    beside = _beside(path)
    try:
        _check_is_forest(path)
        with _locked(beside) as file:
            try:
                yield ForestWriter(file, vocabulary)
                file.flush()
                os.fsync(file.fileno())
                _check_is_forest(path)  # again: saving takes a while
                os.replace(beside, path)
            except BaseException:
                beside.unlink()
                raise
            _sync_folder(path.parent)
    except BlockingIOError:
        raise ForestFileError(f"a forest is being saved to {str(path)!r} already: wait for its end") from None
    except OSError as error:
        raise ForestFileError(f"can't save the forest to {str(path)!r}: {error.strerror}") from error


def check_place(path: str | os.PathLike[str]) -> None:
    """Make and remove the file that saving to ``path`` would write first.

    Raises:
        ForestFileError: the system refuses it, or ``path`` is not a forest and would not be overwritten.
    """
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise ForestFileError(f"forest file {str(path)!r}: there is no such folder")
    try:
        _check_is_forest(path, may_be_cut=True)
        with _locked(_beside(path)):
            _beside(path).unlink()
    except BlockingIOError:
        pass  # another process is saving there, so it can be done
    except OSError as error:
        raise ForestFileError(f"can't save the forest to {str(path)!r}: {error.strerror}") from error


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".saving")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Yield an empty file that only the caller writes to. Raises BlockingIOError if another process does."""
    # no truncation before the lock; non-blocking: a pipe is refused, not waited for
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            if not path.exists() or not os.path.samestat(os.stat(path), os.fstat(descriptor)):
                raise BlockingIOError  # it belongs to another process, which has just renamed it
            if not _is_regular(descriptor) or not _MAGIC.startswith(os.pread(descriptor, len(_MAGIC), 0)):
                raise _not_a_forest(path)  # after a crash the file may hold part of the magic
            os.fchmod(descriptor, 0o600)
            file.truncate(0)
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process forked meanwhile has the file open, too


def _check_is_forest(path: Path, *, may_be_cut: bool = False) -> None:
    """Raise ForestFileError if the file exists and is not a forest. Raises OSError if it can't be read.

    ``may_be_cut``: accept an empty file, or one that ends within a forest's first bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        begin = os.pread(descriptor, len(_MAGIC), 0)
        is_forest = _MAGIC.startswith(begin) if may_be_cut else begin == _MAGIC
        if not _is_regular(descriptor) or not is_forest:
            raise _not_a_forest(path)
    finally:
        os.close(descriptor)


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _not_a_forest(path: Path) -> ForestFileError:
    return ForestFileError(f"{str(path)!r} is no forest file and stays as it is: name another file")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- reading ----


class ForestReader:
    """The models and outputs of a file, in its order. Each iteration reads the file once more.

    An iteration that reaches the end has verified that the file is whole and valid. Otherwise
    it raises ForestFileError.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, file: BinaryIO, vocabulary: str) -> None:
        self.path = path
        self._file = file
        self._check_version()
        kind, names, _ = self._chunk()
        if kind != b"HEAD" or not isinstance(names.get("vocabulary"), str):
            raise self._broken("it does not begin as one")
        if names["vocabulary"] != vocabulary:
            raise UnusableForestError(
                f"{str(path)!r} holds token ids of the vocabulary {names['vocabulary']!r}, "
                f"not of {vocabulary!r}: name another file"
            )
        self._begin = file.tell()

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return os.fstat(self._file.fileno()).st_size

    def __iter__(self) -> Iterator[SavedModel | SavedOutputs]:
        self._file.seek(self._begin)
        totals, end = Totals(), self._begin
        while (chunk := self._chunk())[0] != b"DONE":
            item = self._item(*chunk)
            if isinstance(item, SavedOutputs):
                totals.add(item)
            yield item
            end = self._file.tell()
        if chunk[1] != asdict(totals.saved(end)) or self._file.tell() != self.num_bytes:
            raise self._broken("it does not end as one")

    def _check_version(self) -> None:
        if not _MAGIC.startswith(self._file.read(len(_MAGIC))):
            raise _not_a_forest(self.path)
        self._file.seek(0)
        version: int = _PREAMBLE.unpack(self._read(_PREAMBLE.size))[1]
        if version != _VERSION:
            raise UnusableForestError(
                f"{str(self.path)!r} has the format {version}, but this version of AgentSpec reads the "
                f"format {_VERSION}: name another file"
            )

    def _chunk(self) -> tuple[bytes, dict[str, Any], bytes]:
        header = self._read(_HEADER.size)
        kind, num_names, num_arrays = _HEADER.unpack(header)
        (checksum,) = _CHECKSUM.unpack(self._read(_CHECKSUM.size))
        encoded, arrays = self._read(num_names), self._read(num_arrays)
        if checksum != _checksum(header, encoded, arrays):
            raise self._broken(f"the checksum before byte {self._file.tell()} is wrong")
        return kind, _decoded(encoded), arrays

    def _read(self, size: int) -> bytes:
        """Read ``size`` bytes. Checks ``size`` first: a wrong one could request any amount of memory."""
        if size > self.num_bytes - self._file.tell():
            raise self._broken("it is cut off")
        return self._file.read(size)

    def _item(self, kind: bytes, names: dict[str, Any], arrays: bytes) -> SavedModel | SavedOutputs:
        try:
            if kind == b"MODL":
                return SavedModel(_name(names), arrays)
            if kind == b"OUTS":
                return _outputs(names, arrays)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._broken(f"in a chunk of the kind {kind!r}: {error}") from error
        raise self._broken(f"it holds something of the kind {kind!r}")

    def _broken(self, reason: str) -> UnusableForestError:
        return UnusableForestError(f"{str(self.path)!r} is no whole forest file, {reason}")


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], vocabulary: str) -> Iterator[ForestReader]:
    """Open a saved file.

    Raises:
        ForestFileError: it can't be read, or is not a forest.
        UnusableForestError: it is damaged, or of another format or vocabulary.
    """
    path = Path(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is refused, not waited for
        with os.fdopen(descriptor, "rb") as file:
            if not _is_regular(descriptor):
                raise _not_a_forest(path)
            yield ForestReader(path, file, vocabulary)
    except OSError as error:
        raise ForestFileError(f"can't load a forest from {str(path)!r}: {error.strerror}") from error


def restored(path: Path, load: Callable[[], Loaded], *, is_strict: bool = False) -> Loaded | None:
    """Return the result of ``load``, which reads the forest at ``path``; None if there is no usable one.

    An unusable file is moved aside, and both names are logged: its content can be learned again.

    Raises:
        ForestFileError: it can't be read, is not a forest, can't be moved, or is unusable and ``is_strict``.
    """
    if not path.exists():
        return None
    try:
        return load()
    except UnusableForestError as error:
        if is_strict:
            raise
        aside = moved_aside(path)
        logger.warning("nothing was loaded from %s: %s. It is now %s, for a look", path, error, aside)
        return None


def moved_aside(path: Path) -> Path:
    """Rename the file to a name with the time in it, and return that name. Overwrites no other file.

    Raises:
        ForestFileError: the system refuses.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in itertools.count():
        aside = path.with_name(f"{path.name}.damaged-{stamp}" + (f"-{number}" if number else ""))
        try:
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # reserves the name
            os.replace(path, aside)
        except FileExistsError:
            continue
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise ForestFileError(f"can't move {str(path)!r} aside: {error.strerror}") from error
        return aside
    raise AssertionError("itertools.count has no end")


# ---- chunks ----


def _checksum(*parts: bytes) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _named(name: TreeName) -> dict[str, Any]:
    return {"tenant": name[0], "path": name[1]}


def _decoded(encoded: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        names = json.loads(encoded)
        if isinstance(names, dict):
            return names
    return {}  # any lookup in it fails


def _name(names: dict[str, Any]) -> TreeName:
    """Return the name of a tree. Raises ValueError if it is invalid."""
    tenant, path = names["tenant"], tuple(names["path"])
    StageKey(tenant, path or ("any",))  # for the tenant's own tree, checks the tenant only
    return tenant, path


def _outputs(names: dict[str, Any], arrays: bytes) -> SavedOutputs:
    """Return the saved outputs. Raises ValueError if they are invalid."""
    number = names["num_outputs"]
    sizes, uses = np.frombuffer(arrays, "<u4", 2 * number).reshape(2, number).astype(np.uint32, copy=False)
    token_ids = np.frombuffer(arrays, "<i4", offset=8 * number).astype(np.int32, copy=False)
    if not (sizes.all() and sizes.sum(dtype=np.int64) == len(token_ids)):
        raise ValueError("sizes of outputs that are not those of its tokens")
    if uses.min() < 1 or uses.max() > MOST_USES:
        raise ValueError(f"an output that occurred {uses.max()} or {uses.min()} times")
    if token_ids.min() < 0:
        raise ValueError(f"the token id {token_ids.min()}")
    return SavedOutputs(_name(names), token_ids, sizes, uses)
