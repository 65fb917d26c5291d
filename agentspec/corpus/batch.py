"""The batch: what one engine learned within a moment, and its checked format.

Owns the format and the reasons for refusal. Knows nothing of the store that keeps the bytes. A batch is

    header     magic, version, codec, id of the key, origin, first, number of records, size of the payload
    checksum   CRC-32 of all the rest
    payload    the records as MessagePack, compressed by Zstandard, and encrypted if there is a key

All is little-endian. Sizes are checked before memory is taken, so hostile data costs a bounded amount.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np

from agentspec.corpus.output import (
    DIGEST_BYTES,
    MOST_OUTPUT_TOKENS,
    MOST_SUBJECT_BYTES,
    Output,
    Tokens,
    check_uses,
)
from agentspec.corpus.store import Unread
from agentspec.errors import BatchError, ConfigError, CorpusError, UnknownKeyError
from agentspec.extras import needed
from agentspec.stages import MAX_SEGMENTS, StageKey

if TYPE_CHECKING:
    from agentspec.corpus.encryption import DataKey

with needed("corpus"):
    import zstandard

ORIGIN_BYTES = 16
MOST_BATCH_BYTES = 4 << 20
MOST_RECORDS = 1 << 16
MOST_PAYLOAD_BYTES = 16 << 20  # before compression
_MOST_SEQUENCE = 1 << 62
_SPLIT_BYTES = 2 << 20  # fits a batch even if nothing can be compressed
_RECORD_BYTES = 256  # more than a record takes without its tokens and path

_VERSION = 5  # written for batches with updates of models
_WITHOUT_UPDATES = 4  # for those with sessions
_WITHOUT_SESSIONS = 3  # for those with parts
_WITHOUT_PARTS = 2  # 1: tombstones did not say if they repeat an erasure
_PLAIN, _ENCRYPTED = 0, 1
_HEADER = struct.Struct("<8sHBx8s16sQII")  # see above
_CHECKSUM = struct.Struct("<I")
_MAGIC = b"AgSpecBt"
_MOST_UPDATE_BYTES = 1 << 16
_TOKEN_BYTES = 4
_LEVEL = 3

Path = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_SEGMENTS)]  # of a stage


class Count(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A known output occurred again.

    Attributes:
        digest: of the output, 16 bytes.
        path: of its stage.
        uses: how often it occurred.
    """

    digest: bytes
    path: Path
    uses: int = 1

    def __post_init__(self) -> None:
        if len(self.digest) != DIGEST_BYTES:
            raise ConfigError(f"a digest has {DIGEST_BYTES} bytes, not {len(self.digest)}")
        _check_path(self.path)
        check_uses(self.uses)


class ForgetStage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """All earlier outputs of this stage are to be forgotten.

    Attributes:
        path: of the stage.
        is_repeated: an engine repeats an erasure, since records from before it came later. It is no new one.
    """

    path: Path
    is_repeated: bool = False

    def __post_init__(self) -> None:
        _check_path(self.path)


class ForgetSubject(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """All earlier outputs with this person's data are to be forgotten.

    Attributes:
        subject: hash of the person.
        is_repeated: as of :class:`ForgetStage`.
    """

    subject: bytes
    is_repeated: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.subject) <= MOST_SUBJECT_BYTES:
            raise ConfigError(f"a subject has 1 to {MOST_SUBJECT_BYTES} bytes, not {len(self.subject)}")


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """Tokens of an output that is being written. Its end replaces them: nothing keeps them.

    Attributes:
        path: of its stage.
        number: of the output, among those of this origin.
        begin: the place of the first token in the output.
        tokens: little-endian int32; none if the output is over.
        subject: hash of the person whose data it may hold.
    """

    path: Path
    number: int
    begin: int
    tokens: bytes
    subject: bytes = b""

    def __post_init__(self) -> None:
        _check_path(self.path)
        if not (0 <= self.number <= _MOST_SEQUENCE and 0 <= self.begin <= MOST_OUTPUT_TOKENS):
            raise ConfigError(f"an output has no number {self.number} or no place {self.begin}")
        if len(self.tokens) % _TOKEN_BYTES or len(self.tokens) > _TOKEN_BYTES * MOST_OUTPUT_TOKENS:
            raise ConfigError(f"a part has up to {MOST_OUTPUT_TOKENS} int32, not {len(self.tokens)} bytes")
        if len(self.subject) > MOST_SUBJECT_BYTES:
            raise ConfigError(f"a subject has at most {MOST_SUBJECT_BYTES} bytes, not {len(self.subject)}")

    @property
    def is_first(self) -> bool:
        """True if the output begins with it."""
        return self.begin == 0 and len(self.tokens) > 0

    @property
    def end(self) -> int:
        """The place behind its last token in the output."""
        return self.begin + len(self.tokens) // _TOKEN_BYTES

    @property
    def token_ids(self) -> Tokens:
        """The tokens as int32 ``[n]``."""
        return _tokens(self.tokens)


class ModelUpdate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """What an engine's acceptance model of a stage has learned. It holds no text, and nothing keeps it.

    Attributes:
        path: of the stage.
        update: as of :meth:`agentspec.Forest.take_model_updates`.
    """

    path: Path
    update: bytes

    def __post_init__(self) -> None:
        _check_path(self.path)
        if len(self.update) > _MOST_UPDATE_BYTES:
            size = len(self.update)
            raise ConfigError(f"an update of a model has up to {_MOST_UPDATE_BYTES} bytes, not {size}")


Record = Output | Count | ForgetStage | ForgetSubject | Part | ModelUpdate
PASSING = Part, ModelUpdate  # records that are of use when they are sent, and are not kept


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one engine, in their order.

    Attributes:
        origin: 16 random bytes per engine process.
        first: sequence number of the first record; the others follow. Each origin counts from 0.
        records: all of one tenant.
    """

    origin: bytes
    first: int
    records: tuple[Record, ...]

    def __post_init__(self) -> None:
        if len(self.origin) != ORIGIN_BYTES:
            raise ConfigError(f"an origin has {ORIGIN_BYTES} bytes, not {len(self.origin)}")
        if not 0 <= self.first <= _MOST_SEQUENCE:
            raise ConfigError(f"sequence numbers are 0 to {_MOST_SEQUENCE}, not {self.first}")


# ---- writing ----


def check_size(encoded: bytes) -> None:
    """Raise CorpusError if an encoded batch is too large for a store."""
    if len(encoded) > MOST_BATCH_BYTES:
        raise CorpusError(f"a batch has at most {MOST_BATCH_BYTES} bytes, not {len(encoded)}")


def encode(batch: Batch, key: DataKey | None = None) -> bytes:
    """Return the batch as bytes, encrypted if there is a key.

    Raises:
        BatchError: it is too large. :func:`split` cuts records to fit.
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
        _version(batch),
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


def _version(batch: Batch) -> int:
    """Return the oldest format that has all of its records: engines of earlier versions can read that."""
    if any(isinstance(record, ModelUpdate) for record in batch.records):
        return _VERSION
    if any(isinstance(record, Output) and record.session for record in batch.records):
        return _WITHOUT_UPDATES
    if any(isinstance(record, Part) for record in batch.records):
        return _WITHOUT_SESSIONS
    return _WITHOUT_PARTS


def num_content_bytes(record: Record) -> int:
    """Return the bytes of a record's tokens, or of its update."""
    if isinstance(record, Output):
        return record.tokens.nbytes
    if isinstance(record, ModelUpdate):
        return len(record.update)
    return len(record.tokens) if isinstance(record, Part) else 0


def split(records: Iterable[Record]) -> Iterator[tuple[Record, ...]]:
    """Yield the records, in their order, in groups that each fit one batch."""
    group: list[Record] = []
    size = 0
    for record in records:
        more = _RECORD_BYTES + num_content_bytes(record)
        if group and (size + more > _SPLIT_BYTES or len(group) == MOST_RECORDS):
            yield tuple(group)
            group, size = [], 0
        group.append(record)
        size += more
    if group:
        yield tuple(group)


# ---- reading ----


def decode(data: bytes | Unread, tenant: str, key: DataKey | None = None) -> Batch:
    """Return the batch of these bytes.

    Args:
        data: from a store, so anything.
        tenant: owner of the scope that it was read from.
        key: the tenant's; with a key, batches that are not encrypted are refused.

    Raises:
        BatchError: it is damaged, too large, too new, or encrypted with another key.
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
    """Return True if an engine may have written this: it may hold outputs, even if it can't be used."""
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
    """Return header and payload of a batch that is whole."""
    begin = _HEADER.size + _CHECKSUM.size
    if not begin <= len(data) <= MOST_BATCH_BYTES:
        raise _unusable(f"it has {len(data)} bytes, not {begin} to {MOST_BATCH_BYTES}")
    header = _Header(*_HEADER.unpack_from(data))
    if header.magic != _MAGIC:
        raise _unusable("it does not begin as one")
    if header.version > _VERSION:
        raise _unusable(
            f"it has the format {header.version}, but this version of AgentSpec reads format {_VERSION}: "
            "use a newer one"
        )
    payload = data[begin:]
    if header.num_bytes != len(payload):
        raise _unusable(f"its payload has {len(payload)} bytes, not {header.num_bytes}")
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    if checksum != _checksum(data[: _HEADER.size], payload):
        raise _unusable("its checksum is wrong")
    if header.version == 0 or header.codec > _ENCRYPTED:
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


# ---- records ----


class _Output(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=0):
    """An output in the payload. Its tokens are little-endian int32: narrower forms save 3 to 14 %."""

    path: Path
    tokens: bytes
    subject: bytes
    uses: int
    minute: int


class _SessionOutput(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=5):
    """An output of a session in the payload."""

    path: Path
    tokens: bytes
    subject: bytes
    uses: int
    minute: int
    session: bytes


_Packed = _Output | _SessionOutput | Count | ForgetStage | ForgetSubject | Part | ModelUpdate
_Records = Annotated[list[_Packed], msgspec.Meta(max_length=MOST_RECORDS)]
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Records)


def _packed(record: Record) -> _Packed:
    if not isinstance(record, Output):
        return record
    tokens = record.tokens.astype("<i4", copy=False).tobytes()
    members = record.stage.path, tokens, record.subject, record.uses, record.minute
    return _SessionOutput(*members, record.session) if record.session else _Output(*members)


def _unpacked(payload: bytes, tenant: str) -> tuple[Record, ...]:
    """Return the records. Raises ValueError or MsgspecError if one is invalid."""
    stages: dict[Path, StageKey] = {}
    records: list[Record] = []
    for record in _DECODER.decode(payload):
        if isinstance(record, _Output | _SessionOutput):
            stage = stages.get(record.path) or stages.setdefault(record.path, StageKey(tenant, record.path))
            session = record.session if isinstance(record, _SessionOutput) else b""
            tokens = _tokens(record.tokens)
            records.append(Output(stage, tokens, record.subject, record.uses, record.minute, session))
        else:
            records.append(record)
    return tuple(records)


def _tokens(data: bytes) -> Tokens:
    tokens: Tokens = np.frombuffer(data, "<i4").astype(np.int32, copy=False)
    return tokens


def _check_path(path: Path) -> None:
    StageKey("any", path)  # raises StageError
