"""Outputs and batches for tests."""

from __future__ import annotations

import numpy as np

from agentspec.corpus.batch import Batch, Output, Record
from agentspec.corpus.store import Scope
from agentspec.stages import StageKey

ORIGIN = bytes(range(16))
SCOPE = Scope("tekken-v3", "acme")


def output(*tokens: int, tenant: str = "acme", path: tuple[str, ...] = ("sql", "extract")) -> Output:
    return Output(StageKey(tenant, path), np.array(tokens, np.int32))


def batch(*records: Record, first: int = 0) -> Batch:
    return Batch(ORIGIN, first, records)


def shown(record: Record) -> object:
    """Return something that is equal for equal records."""
    if isinstance(record, Output):
        return (
            record.stage,
            record.tokens.tolist(),
            record.subject,
            record.uses,
            record.minute,
            record.session,
        )
    return record
