"""The finding of one check, and a helper to run checks in a new interpreter."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum

ASK_TIMEOUT_S = 180.0


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # works, but more slowly or with less
    PROBLEM = "problem"  # does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: a subject, its state, and the remedy if it is not well."""

    level: Level
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<8} {self.subject}: {self.text}"


def ok(subject: str, text: str) -> Finding:
    """Return a finding without a defect."""
    return Finding(Level.OK, subject, text)


def warning(subject: str, text: str) -> Finding:
    """Return a finding of something that works with limits."""
    return Finding(Level.WARNING, subject, text)


def problem(subject: str, text: str) -> Finding:
    """Return a finding of something that does not work."""
    return Finding(Level.PROBLEM, subject, text)


def ask_python(code: str) -> tuple[bool, str]:
    """Run ``code`` in a new interpreter; return True if it ended well, and the last line of its output.

    Used for code that may crash, or must not stay in this process.
    """
    try:
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer in {ASK_TIMEOUT_S:.0f} s"
    said = (run.stdout if run.returncode == 0 else run.stderr).strip()
    return run.returncode == 0, said.rpartition("\n")[2] or f"ended with status {run.returncode}"
