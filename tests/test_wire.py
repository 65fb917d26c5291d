from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec import wire
from agentspec.errors import StageError


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_a_stage_survives_its_encoding(path: str) -> None:
    encoded = wire.encode_stage(path)
    assert encoded.isascii()
    assert encoded == encoded.strip()
    assert wire.decode_stage(encoded) == path


def test_slashes_stay_readable() -> None:
    assert wire.encode_stage("flow/café one") == "flow/caf%C3%A9%20one"
    assert wire.decode_stage("flow%2Fx") == "flow/x"


@pytest.mark.parametrize(
    ("value", "reason"), [("%ff", "UTF-8"), ("é", "percent-encoded"), ("a" * 256, "255")]
)
def test_what_is_no_encoded_stage(value: str, reason: str) -> None:
    with pytest.raises(StageError, match=reason):
        wire.decode_stage(value)


def test_header_names_are_lower_case_as_asgi_has_them() -> None:
    headers = [value for name, value in vars(wire).items() if name.endswith("_HEADER")]
    assert len(headers) >= 7
    assert all(header == header.lower() for header in headers)
