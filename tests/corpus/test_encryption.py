"""Encrypted batches: another key, tenant or vocabulary, and keys that were thrown away."""

from __future__ import annotations

import base64
import os
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.corpus.batch import decode, encode
from agentspec.corpus.encryption import DataKey, KeyRing, operator_key
from agentspec.corpus.store import Scope, open_store
from agentspec.errors import BatchError, ConfigError, CorpusError
from tests.corpus.support.records import SCOPE, batch, output, shown

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
OTHER = Scope(SCOPE.vocabulary, "globex")
SAMPLE = batch(output(1, 2, 3), output(4, 5))


def keys(store) -> KeyRing:
    return KeyRing(store, KEY)


def test_an_encrypted_batch_comes_back(store):
    key = keys(store).key(SCOPE)
    decoded = decode(encode(SAMPLE, key), "acme", keys(store).key(SCOPE))
    assert list(map(shown, decoded.records)) == list(map(shown, SAMPLE.records))


def test_no_content_is_in_the_clear():
    sample = batch(output(*b"secret", path=("confidential",)))
    key = DataKey(SCOPE, KEY)
    assert encode(sample, key) != encode(sample, key)
    assert b"confidential" in encode(sample)
    assert b"confidential" not in encode(sample, key)
    assert KEY.hex() not in repr(key)
    assert str(KEY) not in repr(key)


@pytest.mark.parametrize(
    "other",
    [
        DataKey(SCOPE, OTHER_KEY),
        DataKey(OTHER, KEY),
        DataKey(Scope("another", SCOPE.tenant), KEY),
        None,
    ],
    ids=["key", "tenant", "vocabulary", "none"],
)
def test_only_the_same_key_and_scope_open_a_batch(other):
    encoded = encode(SAMPLE, DataKey(SCOPE, KEY))
    with pytest.raises(BatchError, match="encrypted"):
        decode(encoded, SCOPE.tenant, other)


def test_other_tenants_data_is_refused_under_this_tenant(store):
    ring = keys(store)
    assert ring.key(SCOPE).secret != ring.key(OTHER).secret
    with pytest.raises(BatchError, match="encrypted with the key"):
        decode(encode(SAMPLE, ring.key(OTHER)), SCOPE.tenant, ring.key(SCOPE))


def test_plain_batches_are_refused_where_there_is_a_key():
    with pytest.raises(BatchError, match="not encrypted"):
        decode(encode(SAMPLE), "acme", DataKey(SCOPE, KEY))


@given(st.data())
def test_any_changed_byte_is_noticed_even_with_a_right_checksum(data):
    key = DataKey(SCOPE, KEY)
    header, payload = bytes(52), key.encrypt(b"payload", bytes(52))
    place = data.draw(st.integers(0, len(payload) - 1))
    changed = (
        payload[:place] + bytes([payload[place] ^ data.draw(st.integers(1, 255))]) + payload[place + 1 :]
    )
    assert key.decrypt(payload, header) == b"payload"
    for wrong in ((changed, header), (payload, header[1:] + b"\1"), (payload[:place], header)):
        with pytest.raises(BatchError):
            key.decrypt(*wrong)


def test_a_thrown_away_key_makes_all_unreadable(store):
    ring = keys(store)
    backup = encode(SAMPLE, ring.key(SCOPE))
    store.erase(SCOPE)
    ring.forget(SCOPE)
    for key in (ring.key(SCOPE), keys(store).key(SCOPE)):
        with pytest.raises(BatchError, match="encrypted with the key"):
            decode(backup, "acme", key)


def test_keys_may_be_in_another_store(store, tmp_path):
    with closing(open_store(str(tmp_path / "keys"))) as other:
        key = KeyRing(other, KEY).key(SCOPE)
        assert keys(store).key(SCOPE) != key
        assert keys(other).key(SCOPE) == key


def test_another_operators_key_is_refused(store):
    keys(store).key(SCOPE)
    with pytest.raises(CorpusError, match="'acme'"):
        KeyRing(store, OTHER_KEY).key(SCOPE)


def test_a_wrapped_key_of_another_scope_or_noise_is_refused(store):
    keys(store).key(SCOPE)
    stolen = store.wrapped_key(SCOPE, b"")
    for wrapped in (stolen, b"", b"noise", bytes(60)):
        store.erase(OTHER)
        store.wrapped_key(OTHER, wrapped)
        with pytest.raises(CorpusError, match="'globex'"):
            keys(store).key(OTHER)


# ---- the operator's key ----


@pytest.mark.parametrize("text", [KEY.hex(), KEY.hex().upper(), base64.b64encode(KEY).decode()])
def test_an_operators_key_in_hex_or_base64(text, tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.write_text(f"{text}\n")
    assert operator_key(file) == KEY
    monkeypatch.setenv("AGENTSPEC_CORPUS_KEY", text)
    assert operator_key() == KEY


def test_an_operators_key_in_base64_for_urls(tmp_path):
    file, key = tmp_path / "key", b"\xff\xfe" * 16
    file.write_text(base64.urlsafe_b64encode(key).decode())
    assert operator_key(file) == key


@pytest.mark.parametrize("text", ["", "hunter2", KEY.hex()[:-2], KEY.hex() + "00", "ü" * 32, "\udcff" * 3])
def test_another_text_is_no_key_and_not_shown(text, tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.write_bytes(text.encode(errors="surrogateescape"))
    monkeypatch.setenv("AGENTSPEC_CORPUS_KEY", text)
    for place in (None, file):
        with pytest.raises(ConfigError, match="32 bytes") as caught:
            operator_key(place)
        assert not text or text not in str(caught.value)


def test_a_missing_key_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=f"{os.sep}missing"):
        operator_key(tmp_path / "missing")
