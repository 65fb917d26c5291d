from __future__ import annotations

import pytest

from agentspec import StageKey
from agentspec.errors import StageError


def test_a_path_as_text_and_back() -> None:
    key = StageKey.parse("agentic_sql/extract", "acme")
    assert key == StageKey("acme", ("agentic_sql", "extract"))
    assert key.name == "agentic_sql/extract"
    assert str(key) == "acme:agentic_sql/extract"
    assert hash(key) == hash(StageKey("acme", ("agentic_sql", "extract")))


def test_the_same_path_of_another_tenant_is_another_stage() -> None:
    assert StageKey.parse("a", "acme") != StageKey.parse("a", "bolt")


def test_parents_nearest_first() -> None:
    assert [parent.name for parent in StageKey.parse("a/b/c").parents] == ["a/b", "a"]
    assert StageKey.parse("a").parents == ()


@pytest.mark.parametrize("path", ["x", "a b", "café/日本", "/".join("abcdefgh"), "x" * 255])
def test_good_paths(path: str) -> None:
    assert StageKey.parse(path).name == path


@pytest.mark.parametrize(
    "path", ["", "/", "a/", "/a", "a//b", " a", "a\t", "a\nb", "a\0b", "/".join("abcdefghi"), "x" * 256]
)
def test_bad_paths(path: str) -> None:
    with pytest.raises(StageError):
        StageKey.parse(path)


def test_a_segment_holds_no_slash() -> None:
    with pytest.raises(StageError, match="a/b"):
        StageKey("acme", ("a/b",))
    with pytest.raises(StageError, match="segments"):
        StageKey("acme", ())


@pytest.mark.parametrize("tenant", ["", "a\nb"])
def test_bad_tenants(tenant: str) -> None:
    with pytest.raises(StageError, match="tenant"):
        StageKey(tenant, ("a",))
