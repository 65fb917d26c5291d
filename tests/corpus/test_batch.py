"""The format of a batch: what comes back, and that hostile bytes raise BatchError and nothing else."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from contextlib import suppress

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agentspec.corpus import batch as batch_module
from agentspec.corpus.batch import (
    MOST_BATCH_BYTES,
    MOST_OUTPUT_TOKENS,
    MOST_PAYLOAD_BYTES,
    MOST_RECORDS,
    Batch,
    Erased,
    ForgetStage,
    ForgetSubject,
    Output,
    Record,
    decode,
    encode,
    split,
)
from agentspec.errors import BatchError, ConfigError, StageError, TokenError
from agentspec.forest.file import MOST_USES
from agentspec.stages import StageKey
from tests.corpus.support.records import ORIGIN, batch, output, shown

HEADER_BYTES = 56
SAMPLE = batch(output(1, 2, 3), Erased(), ForgetStage(("a", "b")), ForgetSubject(b"someone"), first=7)

segments = st.text("abcxyzäö_ -", min_size=1, max_size=12).filter(lambda text: text == text.strip())
paths = st.lists(segments, min_size=1, max_size=8).map(tuple)
uses = st.integers(1, MOST_USES)
tokens = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40).map(lambda ids: np.array(ids, np.int32))
outputs = st.builds(
    Output,
    st.builds(StageKey, st.just("acme"), paths),
    tokens,
    st.binary(max_size=32),
    uses,
    st.integers(0, 2**32 - 1),
    st.sampled_from([b"", b"8 bytes."]),
)
records = st.one_of(
    outputs,
    st.builds(Erased),
    st.builds(ForgetStage, paths, st.booleans()),
    st.builds(ForgetSubject, st.binary(min_size=1, max_size=32), st.booleans()),
)
batches = st.builds(
    Batch,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**62),
    st.lists(records, max_size=8).map(tuple),
)


def sealed(payload: bytes, num_records: int = 1, version: int = 1, codec: int = 0) -> bytes:
    """Return a batch with any payload, header and the right checksum."""
    begin = struct.pack(
        "<8sHBx8s16sQII", b"AgSpecBt", version, codec, bytes(8), ORIGIN, 0, num_records, len(payload)
    )
    return begin + struct.pack("<I", zlib.crc32(begin + payload)) + payload


def compressed(value: object) -> bytes:
    return zstandard.compress(msgspec.msgpack.encode(value))


# ---- round trip ----


@given(batches)
def test_any_batch_comes_back(original):
    decoded = decode(encode(original), "acme")
    assert (decoded.origin, decoded.first) == (original.origin, original.first)
    assert list(map(shown, decoded.records)) == list(map(shown, original.records))


def test_a_session_is_a_hash_of_eight_bytes():
    with pytest.raises(ConfigError, match="8 bytes, not 3"):
        replace(output(1, 2), session=b"run")
    with pytest.raises(BatchError, match="8 bytes, not 3"):
        decode(sealed(compressed([[0, ["sql"], b"\1\0\0\0", b"", 1, 0, b"run"]])), "acme")


def test_outputs_belong_to_the_tenant_of_their_scope():
    (decoded,) = decode(encode(batch(output(1, 2, tenant="acme"))), "other").records
    assert decoded.stage == StageKey("other", ("sql", "extract"))


def test_a_decoded_output_has_its_digest():
    (decoded,) = decode(encode(batch(output(5, 6))), "acme").records
    assert decoded.digest == output(5, 6).digest != output(5, 7).digest


def test_the_longest_output_fits():
    longest = np.random.default_rng(0).integers(0, 2**31, MOST_OUTPUT_TOKENS).astype(np.int32)
    (decoded,) = decode(encode(batch(output(*longest))), "acme").records
    assert np.array_equal(decoded.tokens, longest)


def test_views_and_foreign_strides_are_encoded_by_value():
    view = Output(StageKey("acme", ("a",)), np.arange(10, dtype=np.int32)[::3])
    (decoded,) = decode(encode(batch(view)), "acme").records
    assert decoded.tokens.tolist() == [0, 3, 6, 9]
    assert decoded.digest == view.digest


# ---- limits of what is made ----


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: output(), TokenError),
        (lambda: output(3, -1), TokenError),
        (lambda: Output(StageKey("t", ("a",)), np.array([1.0])), TokenError),
        (lambda: Output(StageKey("t", ("a",)), np.ones((2, 2), np.int32)), TokenError),
        (lambda: output(*range(MOST_OUTPUT_TOKENS + 1)), TokenError),
        (lambda: Output(StageKey("t", ("a",)), np.array([1], np.int32), uses=0), ConfigError),
        (lambda: Output(StageKey("t", ("a",)), np.array([1], np.int32), minute=-1), ConfigError),
        (lambda: Output(StageKey("t", ("a",)), np.array([1], np.int32), bytes(33)), ConfigError),
        (lambda: ForgetStage(("a/b",)), StageError),
        (lambda: ForgetSubject(b""), ConfigError),
        (lambda: Batch(b"short", 0, ()), ConfigError),
        (lambda: Batch(ORIGIN, -1, ()), ConfigError),
    ],
)
def test_invalid_records_can_not_be_made(make, error):
    with pytest.raises(error):
        make()


def test_too_many_records_are_refused_and_split():
    many: list[Record] = [ForgetSubject(b"x")] * (MOST_RECORDS + 1)
    with pytest.raises(BatchError, match="split"):
        encode(batch(*many))
    groups = list(split(many))
    assert sum(map(len, groups)) == len(many)
    assert all(decode(encode(batch(*group)), "acme").records == group for group in groups)


def test_split_outputs_fit_even_if_they_can_not_be_compressed():
    drawn = np.random.default_rng(1)
    many = [output(*drawn.integers(0, 2**31, 60_000)) for _ in range(40)]
    with pytest.raises(BatchError, match=str(MOST_BATCH_BYTES)):
        encode(batch(*many))
    groups = list(split(many))
    assert [one for group in groups for one in group] == many
    assert all(len(encode(batch(*group))) <= MOST_BATCH_BYTES for group in groups)


def test_nothing_splits_into_nothing():
    assert list(split([])) == []


# ---- damage ----


@given(batches, st.data())
def test_any_changed_byte_is_noticed(original, data):
    encoded = bytearray(encode(original))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BatchError):
        decode(bytes(encoded), "acme")


def test_each_changed_byte_is_noticed():
    encoded = encode(SAMPLE)
    for place in range(len(encoded)):
        with pytest.raises(BatchError):
            decode(encoded[:place] + bytes([encoded[place] ^ 1]) + encoded[place + 1 :], "acme")


@given(batches, st.data())
def test_any_cut_and_any_appendix_is_noticed(original, data):
    encoded = encode(original)
    with pytest.raises(BatchError):
        decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))], "acme")
    with pytest.raises(BatchError):
        decode(encoded + data.draw(st.binary(min_size=1)), "acme")


@given(st.binary(max_size=300))
def test_noise_is_refused(noise):
    with pytest.raises(BatchError):
        decode(noise, "acme")


# ---- hostile bytes with a right checksum ----


@given(st.binary(max_size=300))
def test_any_compressed_payload_is_refused_or_valid(payload):
    with suppress(BatchError):
        decode(sealed(zstandard.compress(payload)), "acme")


@given(st.binary(max_size=300))
def test_any_payload_is_refused(payload):
    with pytest.raises(BatchError):
        decode(sealed(payload), "acme")


@settings(max_examples=300)
@given(batches, st.data())
def test_a_changed_message_is_refused_or_valid(original, data):
    """Any byte of the records may change: the result is refused, or holds valid records alone."""
    sent = encode(original)
    payload = bytearray(zstandard.decompress(sent[HEADER_BYTES:]))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode(sealed(zstandard.compress(payload), len(original.records)), "acme")
    except BatchError:
        return
    encode(decoded)


GOOD = [0, ["a"], b"\1\0\0\0", b"", 1, 0, b""]


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        "records",
        GOOD,
        [GOOD[:-1]],
        [[*GOOD, 1]],
        [[9, *GOOD[1:]]],
        [[0, [], *GOOD[2:]]],
        [[0, ["a"] * 9, *GOOD[2:]]],
        [[0, ["x" * 300], *GOOD[2:]]],
        [[0, ["a/b"], *GOOD[2:]]],
        [[0, ["a\n"], *GOOD[2:]]],
        [[0, ["a"], b"", b"", 1, 0, b""]],
        [[0, ["a"], b"\1\0\0", b"", 1, 0, b""]],
        [[0, ["a"], b"\1\0\0\x80", b"", 1, 0, b""]],
        [[0, ["a"], bytes(4 * MOST_OUTPUT_TOKENS + 4), b"", 1, 0, b""]],
        [[0, ["a"], b"\1\0\0\0", bytes(33), 1, 0, b""]],
        [[0, ["a"], b"\1\0\0\0", b"", 0, 0, b""]],
        [[0, ["a"], b"\1\0\0\0", b"", MOST_USES + 1, 0]],
        [[0, ["a"], b"\1\0\0\0", b"", True, 0, b""]],
        [[0, ["a"], b"\1\0\0\0", b"", 1, -1, b""]],
        [[0, ["a"], b"\1\0\0\0", b"", 1, 2**63, b""]],
        [[1, [], False]],
        [[1, ["a/b"], False]],
        [[1, ["a"], 1]],
        [[2, b"", False]],
        [[2, bytes(33), False]],
        [[3, 1]],
        [[4]],
        [GOOD, GOOD],
        [],
    ],
)
def test_wrong_records_are_refused(value):
    assert shown(decode(sealed(compressed([GOOD])), "acme").records[0]) == shown(output(1, path=("a",)))
    with pytest.raises(BatchError):
        decode(sealed(compressed(value)), "acme")


def test_deep_nesting_is_refused():
    with pytest.raises(BatchError):
        decode(sealed(zstandard.compress(b"\x91" * 100_000 + b"\xc0")), "acme")
    with pytest.raises(BatchError):
        decode(sealed(zstandard.compress(b"\x91\x97\x00" + b"\x91" * 100_000)), "acme")


def bomb(size: int) -> bytes:
    """Return zeros that expand to ``size`` bytes and say so."""
    return zstandard.ZstdCompressor(level=19).compress(bytes(size))


def unsized(size: int) -> bytes:
    """Return zeros that do not say to how many bytes they expand."""
    writer = zstandard.ZstdCompressor(write_content_size=False)
    return writer.compress(bytes(size))


@pytest.mark.parametrize(
    "payload",
    [
        bomb(MOST_PAYLOAD_BYTES + 1),
        bomb(200 << 20),
        unsized(1000),
        unsized(200 << 20),
        zstandard.compress(b"\xdd\xff\xff\xff\xff"),  # an array of 2**32 - 1
        zstandard.compress(b"\x91\x97\x00\x91\xa1a\xc6\xff\xff\xff\xff"),  # tokens of 4 GiB
        zstandard.compress(b"\x91\x93\x01\xdd\xff\xff\xff\xff"),  # a path of 2**32 - 1 segments
        zstandard.compress(b"\xdd\x00\xff\xff\xff" + b"\x90" * (MOST_PAYLOAD_BYTES - 5)),
        zstandard.compress(b"\x91\x92\x01\xdd\x00\xff\xff\xf0" + b"\xa0" * (MOST_PAYLOAD_BYTES - 16)),
        zstandard.compress(b"\xdd\x00\xff\xff\xff" + b"\x92\x01\x91\xa1a" * 3_000_000),
    ],
)
def test_a_bomb_takes_no_memory(payload):
    data = sealed(payload)
    tracemalloc.start()
    try:
        with pytest.raises(BatchError):
            decode(data, "acme")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * MOST_PAYLOAD_BYTES


def test_a_batch_that_is_too_large_is_not_read():
    with pytest.raises(BatchError, match=str(MOST_BATCH_BYTES)):
        decode(bytes(MOST_BATCH_BYTES + 1), "acme")


def test_another_format_and_an_unknown_codec_are_refused():
    for version in (0, 2, 255):
        with pytest.raises(BatchError, match=f"it has the format {version}, not 1"):
            decode(sealed(compressed([GOOD]), version=version), "acme")
    with pytest.raises(BatchError, match="header"):
        decode(sealed(compressed([GOOD]), codec=2), "acme")


def test_the_header_is_as_long_as_the_tests_say():
    assert batch_module._HEADER.size + 4 == HEADER_BYTES
