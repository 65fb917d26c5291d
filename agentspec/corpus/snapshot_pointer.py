"""The pointer to a snapshot in an object store: what the corpus's own store keeps in place of the parts."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from agentspec.corpus.batch import MOST_BATCH_BYTES
from agentspec.errors import SnapshotError

PIECE_BYTES = 8 << 20  # of parts in one object, and one part more
_MAGIC = b"AgSpecPt"
_VERSION = 1

_Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_BATCH_BYTES)]
_Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class SnapshotPointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names the objects of a snapshot, and the sizes of its parts. It holds no content.

    Attributes:
        place: URL of the object store's folder.
        id: of the snapshot; a new one each time, so that no object is ever replaced.
        pieces: per object the sizes of the parts in it, in their order.
    """

    place: str
    id: _Id
    pieces: tuple[tuple[_Size, ...], ...] = ()

    @classmethod
    def new(cls, place: str) -> SnapshotPointer:
        """Return a pointer to a snapshot without parts."""
        return cls(place, uuid.uuid4().hex)

    def with_piece(self, parts: Iterable[bytes]) -> SnapshotPointer:
        """Return a pointer to one object more, of these parts."""
        return msgspec.structs.replace(self, pieces=(*self.pieces, tuple(map(len, parts))))

    def names(self) -> Iterator[str]:
        """Yield the names of the objects, below the folder of the scope."""
        return (f"{self.id}/{number:06}" for number in range(len(self.pieces)))

    def encode(self) -> bytes:
        """Return the pointer as the only part of a snapshot."""
        return _MAGIC + _VERSION.to_bytes(2, "little") + msgspec.json.encode(self)

    @classmethod
    def decode(cls, part: bytes) -> SnapshotPointer | None:
        """Return the pointer of :meth:`encode`, or None if it is damaged.

        Raises:
            SnapshotError: a newer version of AgentSpec wrote it.
        """
        start = len(_MAGIC) + 2
        version = int.from_bytes(part[len(_MAGIC) : start], "little")
        if not part.startswith(_MAGIC) or len(part) < start:
            return None
        if version > _VERSION:
            raise SnapshotError(
                f"the snapshot has the format {version}, but this version of AgentSpec reads format "
                f"{_VERSION}: use a newer one"
            )
        try:
            pointer = msgspec.json.decode(part[start:], type=cls)
        except msgspec.DecodeError:
            return None
        is_bounded = all(sum(sizes) <= PIECE_BYTES + MOST_BATCH_BYTES for sizes in pointer.pieces)
        return pointer if is_bounded else None
