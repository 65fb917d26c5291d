from __future__ import annotations

import pytest

from agentspec.gateway.discovery.masking import MAX_WORD_CHARS, masked
from agentspec.role_names import mask_ids


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("call 3f2504e0-4f89-11d3-9a0c-0305e82c3301, now", "call <id>, now"),
        ("agent-7f3a9c2b1d (01ARZ3NDEKTSV4RRFFQ69G5FAV)", "agent-<id> (<id>)"),
        ("at 12:30 on Monday, 2024-05-06T12:00:00Z", "at #:# on <day>, #-#-#T#:#:#Z"),
        ("the 3rd of May 2024", "the #rd of <day> #"),
        ("order 123456789012 of 12", "order <id> of #"),
        ("see /home/ann/x.py, ~/notes and src/main.py", "see <path>, <path> and <path>"),
        ("C:\\temp\\x or \\\\host\\share", "<path> or <path>"),
        ("mail ann@example.org, or https://example.org/a?b=c.", "mail <email>, or <url>."),
        ("use T1, T2", "use T#, T#"),
        ("  white \n\t space ", "white \n space"),
        ("one\n \n\n two\r\nthree\n", "one \n\n two \n three"),
        ("x" * (MAX_WORD_CHARS + 1), "<data>"),
    ],
)
def test_what_changes_is_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "You are the 'planner' and/or the \"coder\" (TCP/IP).",
        "Answer in JSON: {key: value}, one of <yes> or <no>!",
        "interaction_decoder deadbeef face",
        "你是一个智能体，负责根据用户的问题",
        "",
    ],
)
def test_what_stays(text: str) -> None:
    assert masked(text) == text


def test_masking_again_changes_nothing() -> None:
    text = masked("on Monday at 12:30 mail ann@example.org 3f2504e0-4f89-11d3-9a0c-0305e82c3301 /etc/hosts")
    assert masked(text) == text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("planner", "planner"),
        ("gpt4turbo", "gpt4turbo"),
        ("agent_5f2b9c1d7e", "agent_<id>"),
        ("20241231235959", "<id>"),
        ("sql_2", "sql_2"),
    ],
)
def test_ids_in_names(name: str, expected: str) -> None:
    assert mask_ids(name) == expected


@pytest.mark.parametrize(
    "piece", ["a", "1", "a-", "ab1", "/", "a/", "\\", "@.", "deadbeef-", "f" * 8 + "-", "<", "a1 "]
)
def test_time_is_linear_in_the_text(piece: str) -> None:
    """A backtracking pattern would take minutes for a megabyte."""
    text = (piece * (1 << 20))[: 1 << 20]
    assert len(masked(text)) <= len(text) + 8
