"""What xgrammar leaves no choice about: a walk along the masks of the next tokens.

xgrammar names a dictated text (``find_jump_forward_string``), but without any limit: under some grammars that
call does not return. A mask takes microseconds, and a walk has as many steps as a draft has tokens. Where the
text is dictated, the tokens that a mask allows are beginnings of one another. The longest is the one that a
model is likely to write. Does not import vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

_WORD_BITS = 32
_MOST_WORDS = 16  # of a mask with allowed tokens; more leave a choice


class MaskWalk:
    """Walks along the grammars of a server. They share a vocabulary.

    Args:
        grammar: any of them, an ``XgrammarGrammar`` of vLLM's.
    """

    def __init__(self, grammar: Any) -> None:
        self._texts: Sequence[bytes] = grammar.ctx.tokenizer_info.decoded_vocab  # 0.3 s for 131,000 tokens
        self._words = np.zeros((1, -(-grammar.vocab_size // _WORD_BITS)), np.int32)
        self._mask = torch.from_numpy(self._words)  # the same memory

    def tokens(self, grammar: Any, request_id: str, most: int) -> list[int]:
        """Return at most ``most`` tokens that the grammar dictates from its state on. Leaves no trace."""
        found: list[int] = []
        try:
            while len(found) < most and not grammar.is_terminated():
                token = self._only(grammar)
                if token is None or not grammar.accept_tokens(request_id, [token]):
                    break
                found.append(token)
        finally:
            if found:
                grammar.rollback(len(found))
        return found

    def _only(self, grammar: Any) -> int | None:
        """Return the longest allowed token if the others are beginnings of it."""
        grammar.fill_bitmask(self._mask, 0)
        words = np.flatnonzero(self._words[0])
        if not 0 < len(words) <= _MOST_WORDS:
            return None
        bits = np.unpackbits(self._words[0, words, None].view(np.uint8), axis=1, bitorder="little")
        rows, columns = np.nonzero(bits)
        allowed = (words[rows] * _WORD_BITS + columns).tolist()
        if allowed[-1] >= len(self._texts):
            return None
        longest: int = max(allowed, key=lambda token: len(self._texts[token]))
        text = self._texts[longest]
        return longest if all(text.startswith(self._texts[token]) for token in allowed) else None
