"""A finished output as engines share it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from agentspec.stages import StageKey

DIGEST_BYTES = 16
MOST_OUTPUT_TOKENS = 1 << 17  # longer outputs are not shared

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Output:
    """One output of a stage.

    Attributes:
        stage: the forest's key, adapter included.
        tokens: int32 ``[n]``, at least one.
        subject: hash of the person whose data it may hold; empty if it has none.
        uses: how often it occurred.
        minute: when it ended, in minutes since 1970.
    """

    stage: StageKey
    tokens: Tokens
    subject: bytes = b""
    uses: int = 1
    minute: int = 0

    @cached_property
    def digest(self) -> bytes:
        """Identity of the content: 16 bytes, equal for equal stages and tokens."""
        content = blake2b(self.stage.name.encode(), digest_size=DIGEST_BYTES)
        content.update(b"\0")
        content.update(np.ascontiguousarray(self.tokens, "<i4").tobytes())
        return content.digest()
