"""A finished output as engines share it."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError, TokenError
from agentspec.forest.file import MOST_USES
from agentspec.forest.sessions import SESSION_BYTES
from agentspec.stages import StageKey

DIGEST_BYTES = 16
MOST_OUTPUT_TOKENS = 1 << 17  # longer outputs are not shared
MOST_SUBJECT_BYTES = 32
MOST_MINUTES = 1 << 32
_LITTLE_ENDIAN = np.dtype("<i4")

Tokens = NDArray[np.int32]


class Output(msgspec.Struct, frozen=True, eq=False, gc=False):  # no cycles: garbage collections leave it out
    """One output of a stage. Valid by construction.

    Attributes:
        stage: the forest's key, adapter included.
        tokens: int32 ``[n]``, at least one.
        subject: hash of the person that its data may be of; empty if it has none.
        uses: how often it occurred.
        minute: when it ended, in minutes since 1970.
        session: hash of the run that it belongs to (:func:`agentspec.forest.sessions.session_hash`); empty if
            it is not known.
        digest: identity of the content: 16 bytes, equal for equal stages and tokens.

    Raises:
        TokenError: the tokens have another dtype or shape, a negative id, or are none or too many.
        ConfigError: another attribute is out of range.
    """

    stage: StageKey
    tokens: Tokens
    subject: bytes = b""
    uses: int = 1
    minute: int = 0
    session: bytes = b""
    digest: bytes = b""  # computed: a given one is replaced

    def __post_init__(self) -> None:
        tokens = self.tokens
        if tokens.dtype != np.int32 or tokens.ndim != 1 or not 1 <= len(tokens) <= MOST_OUTPUT_TOKENS:
            raise TokenError(
                f"an output has 1 to {MOST_OUTPUT_TOKENS} tokens of int32, not {tokens.dtype}{tokens.shape}"
            )
        if (smallest := int(tokens[tokens.argmin()])) < 0:  # a third of min()'s time
            raise TokenError(f"an output has no negative token ids, but {smallest}")
        if len(self.subject) > MOST_SUBJECT_BYTES:
            raise ConfigError(f"a subject has at most {MOST_SUBJECT_BYTES} bytes, not {len(self.subject)}")
        check_uses(self.uses)
        if not 0 <= self.minute < MOST_MINUTES:
            raise ConfigError(f"minutes since 1970 are 0 to {MOST_MINUTES - 1}, not {self.minute!r}")
        check_session(self.session)
        msgspec.structs.force_setattr(self, "digest", _digest(self.stage, tokens))


def _digest(stage: StageKey, tokens: Tokens) -> bytes:
    content = blake2b(b"%b\0" % stage.name.encode(), digest_size=DIGEST_BYTES)
    content.update(np.ascontiguousarray(tokens, _LITTLE_ENDIAN).data)
    return content.digest()


def check_session(session: bytes) -> None:
    """Raise ConfigError if this is no hash of a session."""
    if session and len(session) != SESSION_BYTES:
        raise ConfigError(f"a session's hash has {SESSION_BYTES} bytes, not {len(session)}")


def check_uses(uses: int) -> None:
    """Raise ConfigError if an output can't have occurred so often."""
    if not 1 <= uses <= MOST_USES:
        raise ConfigError(f"an output has 1 to {MOST_USES} uses, not {uses!r}")
