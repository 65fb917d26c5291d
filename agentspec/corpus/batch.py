"""The batch: outputs and erasures that one engine publishes together, and the binary format of a batch.

This module owns the format and the reasons for refusing a batch. It does not know the store. A batch is

    header     magic, version, codec, id of the key, origin, first, number of records, size of the payload
    checksum   CRC-32 of header and payload
    payload    the records as MessagePack, compressed by Zstandard, and encrypted if the tenant has a key

All integers are little-endian. Sizes are checked before memory is allocated, so a hostile batch costs at most
a fixed amount of memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentspec.corpus.store import Unread
from agentspec.errors import BatchError, ConfigError, CorpusError, TokenError, UnknownKeyError
from agentspec.extras import needed
from agentspec.forest.file import MOST_USES
from agentspec.forest.sessions import SESSION_BYTES
from agentspec.stages import MAX_SEGMENTS, StageKey

if TYPE_CHECKING:
    from agentspec.corpus.encryption import DataKey

with needed("corpus"):
    import zstandard

ORIGIN_BYTES = 16
MOST_OUTPUT_TOKENS = 1 << 17  # longer outputs are not shared
MOST_SUBJECT_BYTES = 32
MOST_BATCH_BYTES = 4 << 20
MOST_RECORDS = 1 << 16
MOST_PAYLOAD_BYTES = 16 << 20  # before compression
_MOST_MINUTES = 1 << 32
_MOST_SEQUENCE = 1 << 62
_SPLIT_BYTES = 2 << 20  # a group of records of this size fits one batch even if it can't be compressed
_RECORD_BYTES = 256  # upper bound of a record's size without its tokens and path

_VERSION = 1
_PLAIN, _ENCRYPTED = 0, 1
_HEADER = struct.Struct("<8sHBx8s16sQII")  # the fields are listed in the module's docstring
_CHECKSUM = struct.Struct("<I")
_MAGIC = b"AgSpecBt"
_LEVEL = 3

Tokens = NDArray[np.int32]
Path = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_SEGMENTS)]  # path of a stage


# ---- records ----


class Output(msgspec.Struct, frozen=True, eq=False, gc=False):  # gc=False: has no reference cycles
    """One output of a stage. The constructor checks all values.

    Attributes:
        stage: key of the stage in the forest, adapter included.
        tokens: int32 ``[n]``, at least one.
        subject: hash of the person that the output may be about; empty without one.
        uses: number of times that the output occurred.
        minute: end of the output, in minutes since 1970.
        session: hash of the output's session (:func:`agentspec.forest.sessions.session_hash`); empty if
            unknown.

    Raises:
        TokenError: ``tokens`` has another dtype or shape, a negative id, no token or too many.
        ConfigError: another attribute is out of range.
    """

    stage: StageKey
    tokens: Tokens
    subject: bytes = b""
    uses: int = 1
    minute: int = 0
    session: bytes = b""

    def __post_init__(self) -> None:
        tokens = self.tokens
        if tokens.dtype != np.int32 or tokens.ndim != 1 or not 1 <= len(tokens) <= MOST_OUTPUT_TOKENS:
            raise TokenError(
                f"an output has 1 to {MOST_OUTPUT_TOKENS} tokens of int32, not {tokens.dtype}{tokens.shape}"
            )
        if (smallest := int(tokens[tokens.argmin()])) < 0:  # argmin() takes a third of the time of min()
            raise TokenError(f"an output has no negative token ids, but {smallest}")
        if len(self.subject) > MOST_SUBJECT_BYTES:
            raise ConfigError(f"a subject has at most {MOST_SUBJECT_BYTES} bytes, not {len(self.subject)}")
        if not 1 <= self.uses <= MOST_USES:
            raise ConfigError(f"an output has 1 to {MOST_USES} uses, not {self.uses!r}")
        if not 0 <= self.minute < _MOST_MINUTES:
            raise ConfigError(f"minutes since 1970 are 0 to {_MOST_MINUTES - 1}, not {self.minute!r}")
        if self.session and len(self.session) != SESSION_BYTES:
            raise ConfigError(f"a session's hash has {SESSION_BYTES} bytes, not {len(self.session)}")

    @property
    def digest(self) -> bytes:
        """Hash of stage and tokens: 16 bytes, equal for equal stages and tokens. O(tokens)."""
        content = blake2b(b"%b\0" % self.stage.name.encode(), digest_size=16)
        content.update(np.ascontiguousarray(self.tokens, "<i4").data)
        return content.digest()


class ForgetStage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A tombstone: erases all earlier outputs of one stage and of all stages below that stage.

    Attributes:
        path: path of the stage.
        is_repeated: True if an engine publishes a known erasure again, because older outputs appeared
            in the log behind the first tombstone.
    """

    path: Path
    is_repeated: bool = False

    def __post_init__(self) -> None:
        StageKey("any", self.path)  # raises StageError


class ForgetSubject(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """A tombstone: erases all earlier outputs that contain one person's data.

    Attributes:
        subject: hash of the person.
        is_repeated: as in :class:`ForgetStage`.
    """

    subject: bytes
    is_repeated: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.subject) <= MOST_SUBJECT_BYTES:
            raise ConfigError(f"a subject has 1 to {MOST_SUBJECT_BYTES} bytes, not {len(self.subject)}")


class Erased(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Replaces an erased output in a batch, so that the later records keep their sequence numbers."""


Tombstone = ForgetStage | ForgetSubject
Record = Output | Tombstone | Erased


def repeated(tombstone: Tombstone) -> Tombstone:
    """Return the tombstone with ``is_repeated`` set, for an engine that publishes the erasure again."""
    return msgspec.structs.replace(tombstone, is_repeated=True)


def covers(tombstone: Tombstone, path: tuple[str, ...], subject: bytes) -> bool:
    """Return True if the tombstone erases outputs of this stage path and this subject."""
    if isinstance(tombstone, ForgetSubject):
        return subject == tombstone.subject
    return path[: len(tombstone.path)] == tombstone.path


def is_covered(record: Record, tombstone: Tombstone) -> bool:
    """Return True if the record is an output that the tombstone erases."""
    return isinstance(record, Output) and covers(tombstone, record.stage.path, record.subject)


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of one engine.

    Attributes:
        origin: 16 random bytes that identify the engine process.
        first: sequence number of the first record; the others follow. Each origin counts from 0.
        records: outputs and tombstones of one tenant, in the order of their numbers.
    """

    origin: bytes
    first: int
    records: tuple[Record, ...]

    def __post_init__(self) -> None:
        if len(self.origin) != ORIGIN_BYTES:
            raise ConfigError(f"an origin has {ORIGIN_BYTES} bytes, not {len(self.origin)}")
        if not 0 <= self.first <= _MOST_SEQUENCE:
            raise ConfigError(f"sequence numbers are 0 to {_MOST_SEQUENCE}, not {self.first}")

    @property
    def outputs(self) -> Iterator[Output]:
        """The outputs among the records."""
        return (record for record in self.records if isinstance(record, Output))

    def without(self, tombstone: Tombstone) -> Batch:
        """Return the batch with :class:`Erased` for each output that the tombstone covers."""
        if not any(is_covered(record, tombstone) for record in self.records):
            return self
        records = (Erased() if is_covered(record, tombstone) else record for record in self.records)
        return Batch(self.origin, self.first, tuple(records))


# ---- writing ----


def check_size(encoded: bytes) -> None:
    """Raise CorpusError if an encoded batch is too large for a store."""
    if len(encoded) > MOST_BATCH_BYTES:
        raise CorpusError(f"a batch has at most {MOST_BATCH_BYTES} bytes, not {len(encoded)}")


def encode(batch: Batch, key: DataKey | None = None) -> bytes:
    """Return the batch as bytes, encrypted if there is a key.

    Raises:
        BatchError: the batch is too large. :func:`split` cuts records to fit.
    """
    payload = _ENCODER.encode([_packed(record) for record in batch.records])
    if len(batch.records) > MOST_RECORDS or len(payload) > MOST_PAYLOAD_BYTES:
        raise BatchError(
            f"a batch has at most {MOST_RECORDS} records and {MOST_PAYLOAD_BYTES} bytes before compression, "
            f"not {len(batch.records)} and {len(payload)}: use split()"
        )
    payload = zstandard.ZstdCompressor(level=_LEVEL).compress(payload)
    header = _Header(
        _MAGIC,
        _VERSION,
        _ENCRYPTED if key else _PLAIN,
        key.id if key else bytes(8),
        batch.origin,
        batch.first,
        len(batch.records),
        len(payload) + (key.overhead if key else 0),
    )
    begin = _HEADER.pack(*header)
    if key:
        payload = key.encrypt(payload, begin)
    data = begin + _CHECKSUM.pack(_checksum(begin, payload)) + payload
    if len(data) > MOST_BATCH_BYTES:
        raise BatchError(f"a batch has at most {MOST_BATCH_BYTES} bytes, not {len(data)}: use split()")
    return data


def num_token_bytes(record: Record) -> int:
    """Return the number of bytes of a record's tokens."""
    return record.tokens.nbytes if isinstance(record, Output) else 0


def split(records: Iterable[Record]) -> Iterator[tuple[Record, ...]]:
    """Group the records, in their order, so that each group fits one batch."""
    group: list[Record] = []
    size = 0
    for record in records:
        more = _RECORD_BYTES + num_token_bytes(record)
        if group and (size + more > _SPLIT_BYTES or len(group) == MOST_RECORDS):
            yield tuple(group)
            group, size = [], 0
        group.append(record)
        size += more
    if group:
        yield tuple(group)


# ---- reading ----


def decode(data: bytes | Unread, tenant: str, key: DataKey | None = None) -> Batch:
    """Return the batch that these bytes encode.

    Args:
        data: bytes from a store. Other programs may have written them.
        tenant: owner of the scope that the bytes were read from.
        key: the tenant's data key. With a key, unencrypted batches are refused.

    Raises:
        BatchError: the data is damaged, too large, of another format, or encrypted with another key.
    """
    if isinstance(data, Unread):
        raise _unusable(data.reason)
    header, payload = _checked(data)
    if key:
        payload = _decrypted(payload, header, data[: _HEADER.size], key)
    elif header.codec != _PLAIN:
        raise _unusable("it is encrypted, and its key is not known here")
    try:
        batch = Batch(header.origin, header.first, _unpacked(_decompressed(payload), tenant))
    except (msgspec.MsgspecError, zstandard.ZstdError, ValueError) as error:
        raise _unusable(str(error)) from error
    if len(batch.records) != header.num_records:
        raise _unusable(f"it holds {len(batch.records)} records, not {header.num_records}")
    return batch


def is_batch(data: bytes | Unread) -> bool:
    """Return True if an engine may have written the data, so that it may hold outputs."""
    return isinstance(data, bytes) and data.startswith(_MAGIC)


class _Header(NamedTuple):
    magic: bytes
    version: int
    codec: int
    key_id: bytes
    origin: bytes
    first: int
    num_records: int
    num_bytes: int  # of the payload


def _checked(data: bytes) -> tuple[_Header, bytes]:
    """Return header and payload of a batch after checking size, format and checksum."""
    begin = _HEADER.size + _CHECKSUM.size
    if not begin <= len(data) <= MOST_BATCH_BYTES:
        raise _unusable(f"it has {len(data)} bytes, not {begin} to {MOST_BATCH_BYTES}")
    header = _Header(*_HEADER.unpack_from(data))
    if header.magic != _MAGIC:
        raise _unusable("it does not begin as one")
    if header.version != _VERSION:
        raise _unusable(f"it has the format {header.version}, not {_VERSION}")
    payload = data[begin:]
    if header.num_bytes != len(payload):
        raise _unusable(f"its payload has {len(payload)} bytes, not {header.num_bytes}")
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    if checksum != _checksum(data[: _HEADER.size], payload):
        raise _unusable("its checksum is wrong")
    if header.codec > _ENCRYPTED:
        raise _unusable(f"its header is wrong: {header!r}")
    return header, payload


def _decrypted(payload: bytes, header: _Header, begin: bytes, key: DataKey) -> bytes:
    if header.codec != _ENCRYPTED:
        raise _unusable("it is not encrypted, but this tenant's batches are")
    named = key.named(header.key_id)
    if named is None:
        raise UnknownKeyError(
            "this batch can't be used: it is encrypted with the key "
            f"{header.key_id.hex()}, not {key.id.hex()}"
        )
    return named.decrypt(payload, begin)


def _decompressed(payload: bytes) -> bytes:
    size = zstandard.frame_content_size(payload)
    if not 0 <= size <= MOST_PAYLOAD_BYTES:
        raise ValueError(f"its records have {size} bytes, not 0 to {MOST_PAYLOAD_BYTES}")
    return zstandard.ZstdDecompressor().decompress(payload, size, allow_extra_data=False)


def _unusable(reason: str) -> BatchError:
    return BatchError(f"this batch can't be used: {reason}")


def _checksum(*parts: bytes) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


class _Output(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=0):
    """An output in the payload. Tokens are little-endian int32; shorter integers would save 3 to 14 %."""

    path: Path
    tokens: bytes
    subject: bytes
    uses: int
    minute: int
    session: bytes


_Packed = _Output | ForgetStage | ForgetSubject | Erased
_Records = Annotated[list[_Packed], msgspec.Meta(max_length=MOST_RECORDS)]
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Records)


def _packed(record: Record) -> _Packed:
    if not isinstance(record, Output):
        return record
    tokens = record.tokens.astype("<i4", copy=False).tobytes()
    return _Output(record.stage.path, tokens, record.subject, record.uses, record.minute, record.session)


def _unpacked(payload: bytes, tenant: str) -> tuple[Record, ...]:
    """Return the records of a payload. Raises ValueError or MsgspecError if one is invalid."""
    stages: dict[Path, StageKey] = {}
    records: list[Record] = []
    for record in _DECODER.decode(payload):
        if isinstance(record, _Output):
            stage = stages.get(record.path) or stages.setdefault(record.path, StageKey(tenant, record.path))
            tokens = np.frombuffer(record.tokens, "<i4").astype(np.int32, copy=False)
            records.append(Output(stage, tokens, record.subject, record.uses, record.minute, record.session))
        else:
            records.append(record)
    return tuple(records)
