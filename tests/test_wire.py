from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec import StageKey, wire
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


def test_xargs_carry_the_tags() -> None:
    assert wire.to_xargs(StageKey("acme", ("flow", "é"))) == {
        "agentspec_stage": "flow/é",
        "agentspec_tenant": "acme",
        "agentspec_learn": 1,
    }
    full = wire.to_xargs(StageKey("acme", ("a",)), session="s", max_draft=0, min_match=2, learn=False)
    assert full == {
        "agentspec_stage": "a",
        "agentspec_tenant": "acme",
        "agentspec_session": "s",
        "agentspec_max_draft": 0,
        "agentspec_min_match": 2,
        "agentspec_learn": 0,
    }
    assert all(key.startswith(wire.XARGS_PREFIX) for key in full)
