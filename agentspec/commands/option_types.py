"""Types of command line options. Each parses a text and raises argparse's error, which names the text."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from agentspec.corpus.reach import parse_reaches
from agentspec.errors import ConfigError

MAX_PORT = 65535
DEVICES = re.compile(r"(cpu|cuda|mps|xpu)(:[0-9]+)?")


def count(text: str) -> int:
    """Parse a whole number, at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"a whole number, at least 1, not {text!r}")
    return int(text)


def between(least: int, most: int) -> Callable[[str], int]:
    """Return the type of a whole number from ``least`` to ``most``."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def device(text: str) -> str:
    """Parse a torch device: name and number."""
    if not DEVICES.fullmatch(text):
        raise argparse.ArgumentTypeError(f"a device is cpu, cuda or cuda:N, not {text!r}")
    return text


def port(text: str) -> int:
    """Parse a TCP port; 0 = any free one."""
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to {MAX_PORT}, not {text!r}")
    return int(text)


def price(text: str) -> float:
    """Parse the cost of a draft token, in accepted tokens."""
    value = number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"a price is a number between 0 and 1, not {text!r}")
    return value


def reaches(text: str) -> dict[str, str]:
    """Parse stages with how far their outputs travel, as ``a=none,b/c=host``."""
    try:
        return parse_reaches(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
