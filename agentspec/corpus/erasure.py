"""An erasure: which records a tombstone covers."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from agentspec.corpus.batch import Count, ForgetStage, ForgetSubject, ModelUpdate, Part, Record
from agentspec.corpus.output import DIGEST_BYTES, Output

Tombstone = ForgetStage | ForgetSubject

# takes the place of an erased record, so that the others keep their numbers; its digest is never known
PLACEHOLDER = Count(bytes(DIGEST_BYTES), ("erased",))


@dataclass(slots=True)
class Erasure:
    """A tombstone, with the digests of the covered outputs found so far.

    A stage is forgotten with all stages below it. Equal outputs of other subjects are not covered, but all
    counts of a covered output are.

    Attributes:
        tombstone: names the stage or the subject.
        digests: of the outputs covered.
        is_complete: False if some covered outputs may not be known. Every count is covered then.
    """

    tombstone: Tombstone
    digests: set[bytes] = field(default_factory=set)
    is_complete: bool = True

    def covers(self, record: Record) -> bool:
        """Return True if the record is to be forgotten. Notes its digest."""
        if isinstance(record, Part):
            return names(self.tombstone, record.path, record.subject)
        if isinstance(record, ModelUpdate):
            return isinstance(self.tombstone, ForgetSubject) or _is_below(self.tombstone, record.path)
        if isinstance(record, Output):
            is_covered = covers(self.tombstone, record)
        elif isinstance(record, Count) and record != PLACEHOLDER:
            is_known = record.digest in self.digests or _is_below(self.tombstone, record.path)
            is_covered = is_known or not self.is_complete
        else:
            return False
        if is_covered:
            self.digests.add(record.digest)
        return is_covered


def repeated(tombstone: Tombstone) -> Tombstone:
    """Return the tombstone of an engine that repeats this erasure."""
    return msgspec.structs.replace(tombstone, is_repeated=True)


def covers(tombstone: Tombstone, output: Output) -> bool:
    """Return True if the tombstone names the output's stage or its subject."""
    return names(tombstone, output.stage.path, output.subject)


def names(tombstone: Tombstone, path: tuple[str, ...], subject: bytes) -> bool:
    """Return True if the tombstone names the stage of this path, or this subject."""
    if isinstance(tombstone, ForgetSubject):
        return subject == tombstone.subject
    return _is_below(tombstone, path)


def _is_below(tombstone: Tombstone, path: tuple[str, ...]) -> bool:
    return isinstance(tombstone, ForgetStage) and path[: len(tombstone.path)] == tombstone.path
