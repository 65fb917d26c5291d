"""Data keys: one per scope. The operator's key wraps (encrypts) a data key before a store keeps it.

A batch can't be read without its data key. Erasing the key therefore also erases the batches in backups, if
the backups hold no wrapped keys: keep wrapped keys in another store, or leave them out of backups.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

from agentspec.corpus.settings import KEY_VARIABLE
from agentspec.corpus.store import CorpusStore, Scope
from agentspec.errors import BatchError, ConfigError, CorpusError, DataKeyError
from agentspec.extras import needed

with needed("corpus"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_NONCE_BYTES, _TAG_BYTES = 12, 16
WRAPPED_BYTES = _NONCE_BYTES + KEY_BYTES + _TAG_BYTES
_MOST_FORMER = 8  # former keys that the store keeps for one scope, for batches not yet encrypted anew


@dataclass(frozen=True, slots=True)
class DataKey:
    """The key of one scope's batches.

    Each batch is encrypted with a key derived from this one and the batch's header, so random nonces suffice.

    Attributes:
        scope: owner of the batches.
        secret: 32 bytes.
        wrapped: the encrypted form of this key in the store.
        former: keys that this one replaces while an erasure runs. They decrypt batches, and encrypt none.
    """

    scope: Scope
    secret: bytes = field(repr=False)
    wrapped: bytes = field(default=b"", repr=False, compare=False)
    former: tuple[DataKey, ...] = field(default=(), repr=False, compare=False)

    overhead = _NONCE_BYTES + _TAG_BYTES  # bytes that encryption adds

    @property
    def id(self) -> bytes:
        """A public identifier of the key: 8 bytes, from which the key can't be computed."""
        return blake2b(key=self.secret, digest_size=8, person=b"agentspec key id").digest()

    def named(self, name: bytes) -> DataKey | None:
        """Return the key with this id, among this key and its former ones; None if there is none."""
        return next((key for key in (self, *self.former) if key.id == name), None)

    def encrypt(self, payload: bytes, header: bytes) -> bytes:
        """Return nonce, encrypted payload and tag. The tag authenticates the header as well."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher(header).encrypt(nonce, payload, self._associated(header))

    def decrypt(self, encrypted: bytes, header: bytes) -> bytes:
        """Return the payload. Raises BatchError if key, scope or header differ from those of encryption."""
        nonce, rest = encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:]
        try:
            return self._cipher(header).decrypt(nonce, rest, self._associated(header))
        except (InvalidTag, ValueError):
            raise BatchError(
                f"this batch can't be used: it was not encrypted for tenant {self.scope.tenant!r}"
            ) from None

    def _cipher(self, header: bytes) -> AESGCM:
        return AESGCM(blake2b(header, key=self.secret, digest_size=32, person=b"agentspec batch").digest())

    def _associated(self, header: bytes) -> bytes:
        return json.dumps(self.scope).encode() + header


class OperatorKey:
    """The key that wraps data keys.

    Args:
        secret: 32 bytes, see :func:`operator_key`.
    """

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(secret)

    def wrap(self, key: DataKey) -> bytes:
        """Return the encrypted form of a data key."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, key.secret, json.dumps(key.scope).encode())

    def unwrap(self, scope: Scope, wrapped: bytes) -> DataKey:
        """Return a scope's data key with its former keys.

        Raises:
            DataKeyError: another operator's key wrapped the data key, or its bytes are damaged.
        """
        pieces = [wrapped[at : at + WRAPPED_BYTES] for at in range(0, len(wrapped), WRAPPED_BYTES)]
        try:
            former = tuple(self._unwrapped(scope, piece) for piece in pieces[1 : 1 + _MOST_FORMER])
            return replace(self._unwrapped(scope, pieces[0] if pieces else b""), former=former)
        except (InvalidTag, ValueError):
            raise DataKeyError(
                f"the operator's key does not open the data key of tenant {scope.tenant!r}: configure "
                "the one that wrapped it, or erase this tenant's corpus"
            ) from None

    def _unwrapped(self, scope: Scope, wrapped: bytes) -> DataKey:
        nonce, rest = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        return DataKey(scope, self._cipher.decrypt(nonce, rest, json.dumps(scope).encode()), wrapped)


class KeyRing:
    """The data keys of a store's scopes. Thread-safe.

    Args:
        store: keeps the wrapped keys; may differ from the store of the batches.
        operator_key: 32 bytes, see :func:`operator_key`.
    """

    def __init__(self, store: CorpusStore, operator_key: bytes) -> None:
        self._store = store
        self._operator = OperatorKey(operator_key)
        self._lock = threading.Lock()
        self._keys: dict[Scope, DataKey] = {}

    def key(self, scope: Scope) -> DataKey:
        """Return the scope's key. The first call for a new scope creates one.

        Raises:
            CorpusError: the store can't be read, or the key was wrapped by another operator's key.
        """
        with self._lock:  # held during the call of the store: forget() must not run in between
            if scope not in self._keys:
                self._keys[scope] = self._looked_up(scope)
            return self._keys[scope]

    def refresh(self, scope: Scope) -> bool:
        """Read the scope's key from the store again. Return True if it has changed.

        If the store has lost the key, this method writes it back.
        """
        with self._lock:
            before = self._keys.pop(scope, None)
            self._keys[scope] = key = self._looked_up(scope, before)
            return before is None or (key, key.former) != (before, before.former)

    def change(self, scope: Scope) -> None:
        """Replace the scope's key by a new one. The store keeps the replaced key among the former ones.

        Raises:
            CorpusError: another process changed the key at the same time.
        """
        with self._lock:
            new = self._operator.wrap(new_key(scope))
            wrapped = self._store.wrapped_key(scope, new) or b""
            former = wrapped[: _MOST_FORMER * WRAPPED_BYTES]
            if wrapped != new:
                self._replace(scope, wrapped, new + former)

    def drop_former(self, scope: Scope) -> None:
        """Remove the former keys from the store, once no batch needs them. Raises like ``change``."""
        with self._lock:
            wrapped = self._store.wrapped_key(scope) or b""
            self._replace(scope, wrapped, wrapped[:WRAPPED_BYTES])

    def _replace(self, scope: Scope, before: bytes, wrapped: bytes) -> None:
        key = self._operator.unwrap(scope, wrapped)
        if not self._store.replace_key(scope, before, wrapped):
            raise CorpusError(f"the data key of tenant {scope.tenant!r} was changed meanwhile: repeat it")
        self._keys[scope] = key

    def _looked_up(self, scope: Scope, before: DataKey | None = None) -> DataKey:
        candidate = before.wrapped if before else self._operator.wrap(new_key(scope))
        wrapped = self._store.wrapped_key(scope, candidate)
        assert wrapped is not None  # not None, since the call passed a candidate
        return self._operator.unwrap(scope, wrapped)

    def forget(self, scope: Scope) -> None:
        """Drop the cached key of an erased scope, so that the next call reads the store again."""
        with self._lock:
            self._keys.pop(scope, None)


def new_key(scope: Scope) -> DataKey:
    """Return a random key."""
    return DataKey(scope, os.urandom(KEY_BYTES))


def no_operator_key(scope: Scope) -> ConfigError:
    """Return the error for an encrypted scope if no operator's key is configured."""
    return ConfigError(
        f"the outputs of tenant {scope.tenant!r} are encrypted: set ${KEY_VARIABLE} to the operator's key"
    )


def operator_key(file: Path | None = None) -> bytes:
    """Return the operator's key: 32 bytes, in base64 or hex, from a file or from ``$AGENTSPEC_CORPUS_KEY``.

    Raises:
        ConfigError: the file can't be read, or holds no valid key. The message never quotes it.
    """
    if file is None:
        text, place = os.environ.get(KEY_VARIABLE, ""), f"${KEY_VARIABLE}"
    else:
        text, place = _text(file), repr(str(file))
    for decoded in (bytes.fromhex, _from_base64):
        try:
            key = decoded(text.strip())
        except ValueError:
            continue
        if len(key) == KEY_BYTES:
            return key
    raise ConfigError(
        f"{place} holds no key of {KEY_BYTES} bytes in base64 or hex: make one with 'openssl rand -base64 32'"
    )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except UnicodeDecodeError:
        return ""
    except OSError as error:
        raise ConfigError(f"the corpus key can't be read from {str(file)!r}: {error.strerror}") from error


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, altchars=b"-_" if set(text) & set("-_") else None, validate=True)
