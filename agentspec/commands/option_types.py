"""Types of command line options. Each parses a text and raises argparse's error, which names the text."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from difflib import get_close_matches

MAX_PORT = 65535


def count(text: str) -> int:
    """Parse a whole number, at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"a whole number, at least 1, not {text!r}")
    return int(text)


def port(text: str) -> int:
    """Parse a TCP port; 0 = any free one."""
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to {MAX_PORT}, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Parse a positive number of seconds."""
    value = number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a time is a positive number of seconds, not {text!r}")
    return value


def number(text: str) -> float:
    """Parse a number; NaN if it is not one, which lies in no range."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def flag_of(option: str) -> str:
    """Return ``--max-draft`` for ``max_draft``."""
    return "--" + option.replace("_", "-")


def unrecognized(arguments: Sequence[str], flags: Sequence[str]) -> argparse.ArgumentError:
    """Return the error for unrecognized arguments, with the closest of ``flags`` for each."""
    given = {one.partition("=")[0] for one in arguments if one.startswith("--")}
    near = {flag: get_close_matches(flag, flags, 1, cutoff=0.7) for flag in sorted(given)}
    hints = [f"; did you mean {found[0]} for {flag}?" for flag, found in near.items() if found]
    return argparse.ArgumentError(None, f"unrecognized arguments: {' '.join(arguments)}{''.join(hints)}")
