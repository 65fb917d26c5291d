"""What xgrammar leaves no choice about: a walk along the masks of the next tokens.

xgrammar names a dictated text (``find_jump_forward_string``), but without any limit: under some grammars that
call does not return. A mask takes microseconds in most grammars, and a walk ends after some tokens and some
time. Where the text is dictated, the tokens that a mask allows are beginnings of one another. The longest is
the one that a model is likely to write. Does not import vLLM.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

_WORD_BITS = 32
_MOST_WORDS = 16  # of a mask with allowed tokens; more leave a choice
_MOST_S = 0.002


class MaskWalk:
    """Walks along the grammars of a server. They share a vocabulary, which a thread reads first.

    Args:
        masked: any of them, an ``XgrammarGrammar`` of vLLM's.
        clock: seconds.
    """

    def __init__(self, masked: Any, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._texts: Sequence[bytes] = ()
        self._reads = threading.Thread(target=self._read, args=(masked.ctx.tokenizer_info,), daemon=True)
        self._reads.start()
        self._words = np.zeros((1, -(-masked.vocab_size // _WORD_BITS)), np.int32)
        self._mask = torch.from_numpy(self._words)  # the same memory

    def _read(self, vocabulary: Any) -> None:
        self._texts = vocabulary.decoded_vocab  # 0.3 s for 131,000 tokens

    def wait(self) -> MaskWalk:
        """Wait until the vocabulary is read. Until then nothing is dictated."""
        self._reads.join()
        return self

    def tokens(self, masked: Any, request_id: str, most: int) -> list[int]:
        """Return at most ``most`` tokens that the grammar dictates from its state on. Leaves no trace.

        After 2 ms it takes no further step.
        """
        if not self._texts:
            return []
        found: list[int] = []
        end_s = self._clock() + _MOST_S
        try:
            while len(found) < most and not masked.is_terminated() and self._clock() < end_s:
                token = self._only(masked)
                if token is None or not masked.accept_tokens(request_id, [token]):
                    break
                found.append(token)
        finally:
            if found:
                masked.rollback(len(found))
        return found

    def _only(self, masked: Any) -> int | None:
        """Return the longest allowed token if the others are beginnings of it."""
        masked.fill_bitmask(self._mask, 0)
        if not 0 < np.count_nonzero(self._words) <= _MOST_WORDS:
            return None
        words = np.flatnonzero(self._words)
        bits = np.unpackbits(self._words[0, words, None].view(np.uint8), axis=1, bitorder="little")
        rows, columns = np.nonzero(bits)
        tokens = words[rows] * _WORD_BITS + columns
        allowed = tokens[tokens < len(self._texts)].tolist()  # bits beyond the vocabulary are set
        if not allowed:
            return None
        # of tokens with the same text the last one: single bytes, which no model writes, are often the first
        longest: int = max(allowed, key=lambda token: (len(self._texts[token]), token))
        text = self._texts[longest]
        return longest if all(text.startswith(self._texts[token]) for token in allowed) else None
