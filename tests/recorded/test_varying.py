from __future__ import annotations

import pytest

from agentspec.recorded.varying import mask_varying


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("in /tmp/tmpx8_k2a9b/src/a.py", "in /tmp/tmpqq1rst0z/src/a.py"),
        ("/tmp/pytest-of-me/x", "/tmp/pytest-of-you/x"),
        ("agent-3f2504e0-4f89-11d3-9a0c-0305e82c3301", "agent-11111111-2222-3333-4444-555555555555"),
        ("commit b191c5a0e2", "commit 5810600fee"),
        ("<object at 0x7f5b4e942150>", "<object at 0x7f5b4e942990>"),
        ("3 passed in 0.31s", "3 passed in 12.07s"),
        ("real 0m0.312s", "real 1m2.001s"),
        ("Today is Sunday, November 22, 2026.", "Today is Monday, March 3, 2025."),
        ("-rw-r--r-- 1 me 12 Nov 22 16:20 a", "-rw-r--r-- 1 me 12 Jan 2 06:20 a"),
        ("Sun Nov 22 16:20:57 UTC 2026", "Thu Sep  3 06:20:07 UTC 2026"),
        ("on Tues, 3 September 2026", "on Friday, 22 Nov 2026"),
        ("2026-11-22T16:20:57Z up", "2026-11-23 01:02:03.123 up"),
        ("[1] 4711\nstarted, pid 4711", "[1] 32\nstarted, pid 32"),
        ("a  \nb\t\r\nc", "a\nb\nc"),
    ],
)
def test_what_varies(one: str, other: str) -> None:
    assert one != other
    assert mask_varying(one) == mask_varying(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 3 + 4?", "What is 3 + 5?"),
        ("2 failed, 1 passed", "1 failed, 2 passed"),
        ("call 123456789", "call 987654321"),
        ("line 17: error", "line 18: error"),
        ("cat /tmp/run/a.py", "cat /tmp/run/b.py"),
        ("cat /tmp/a.py", "cat /tmp/b.py"),
        ("cat src/main.py", "cat src/test.py"),
        ("x = 0.5", "x = 0.25"),
        ("python3.11", "python3.12"),
        ("wait 5 seconds", "wait 6 seconds"),
        ("Decision 4", "Decision 5"),
        ("run Marathon 42", "run Junction 42"),
        ("5 Mayors", "6 Mayors"),
        ("a\n\nb", "a\nb"),
        ("  a", "a"),
    ],
)
def test_what_is_said(one: str, other: str) -> None:
    assert mask_varying(one) != mask_varying(other)
