"""What options are parsed by: each takes the text and raises argparse's error, which names it."""

from __future__ import annotations

import argparse
import math

MAX_PORT = 65535


def count(text: str) -> int:
    """A whole number, at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"a whole number, at least 1, not {text!r}")
    return int(text)


def port(text: str) -> int:
    """A TCP port; 0 = any free one."""
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to {MAX_PORT}, not {text!r}")
    return int(text)


def price(text: str) -> float:
    """A price of a draft token, in accepted tokens."""
    value = number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"a price is a number between 0 and 1, not {text!r}")
    return value


def seconds(text: str) -> float:
    """A time."""
    value = number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a time is a positive number of seconds, not {text!r}")
    return value


def number(text: str) -> float:
    """A number, or NaN, which lies in no range."""
    try:
        return float(text)
    except ValueError:
        return math.nan
