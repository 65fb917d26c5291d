"""Folders of recorded model calls: gzip'd JSON lines with ``session``, ``prompt`` and ``response``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from agentspec.recorded.calls import read_lines
from agentspec.replay.calls import Encode


def files(directory: Path) -> list[Path]:
    """Return the trace files of a folder, by name.

    Raises:
        ConfigError: the folder has no trace files.
    """
    paths = sorted(directory.glob("*.jsonl.gz"))
    if not paths:
        raise ConfigError(f"no traces (*.jsonl.gz) in {str(directory)!r}")
    return paths


def calls(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the model calls of one file, in order. Raises ConfigError for a file that is damaged."""
    for _, call in read_lines(path):
        yield call


def encoded(texts: Iterable[str], encode: Encode, num_tokens: int) -> list[Tokens]:
    """Encode texts until they have ``num_tokens`` tokens, or all if they have fewer."""
    documents, left = [], num_tokens
    for text in texts:
        if left <= 0:
            break
        document = encode(text)
        if len(document):
            documents.append(document)
            left -= len(document)
    return documents
