"""Recorded model calls as text and as token ids.

Trace files are gzip'd JSON lines with ``session``, ``prompt`` and ``response``. The tokenizer is Tekken
(131,072 tokens) from the package mistral-common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from agentspec.recorded.calls import read_lines

Encode = Callable[[str], Tokens]


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


def tokenizer() -> Encode:
    """Return a function that encodes text as int32 token ids, without special tokens."""
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    tekken = MistralTokenizer.v3(is_tekken=True).instruct_tokenizer.tokenizer
    return lambda text: np.array(tekken.encode(text, bos=False, eos=False), np.int32)


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
