"""Conversion between texts and tokens of the served model. The rest of the worker sees only tokens."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from agentspec.errors import ConfigError
from agentspec.forest import Tokens

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.sampling_params import SamplingParams

_PIECES_AT_ONCE = 16  # some 0.1 ms: a decode step may wait for the interpreter

UNKNOWN = "\N{REPLACEMENT CHARACTER}"


class ServedTokenizer:
    """The served model's tokenizer, loaded on first use. Thread-safe."""

    def __init__(self, model_config: ModelConfig) -> None:
        self._model_config = model_config
        self._using = threading.Lock()  # tokenizers are not thread-safe

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a text as an output, without special tokens of a prompt's begin or end.

        Raises:
            ConfigError: this server has no tokenizer.
        """
        with self._using:
            return np.array(self._tokenizer.encode(text, add_special_tokens=False), np.int32)

    def token(self, token_id: int) -> str:
        """Return the text of one token: special tokens by name, U+FFFD for a part of a character.

        Raises:
            ConfigError: this server has no tokenizer.
        """
        with self._using:
            before, text_before = self._before
            try:
                text = str(self._tokenizer.decode([*before, token_id], skip_special_tokens=False))
            except Exception:  # some tokenizers raise for an id beyond the vocabulary
                return UNKNOWN
        return text.removeprefix(text_before) or UNKNOWN

    def load(self) -> None:
        """Load the tokenizer, which takes seconds. Raises ConfigError if this server has none."""
        with self._using:
            _ = self._tokenizer

    def pieces(
        self, params: SamplingParams, prompt: Sequence[int], token_ids: Sequence[int]
    ) -> Iterator[str]:
        """Yield the text that each token adds to an output, as vLLM's front end reads it.

        Args:
            params: vLLM's ``SamplingParams`` of the request.
            prompt: its prompt; the text of a first token may depend on it.

        Raises:
            ConfigError: this server has no tokenizer.
        """
        with self._using:
            detokenizer = self._detokenizer(params, prompt)
        for begin in range(0, len(token_ids), _PIECES_AT_ONCE):
            with self._using:
                found = [
                    self._next(detokenizer, token) for token in token_ids[begin : begin + _PIECES_AT_ONCE]
                ]
            yield from found
            time.sleep(0)

    @cached_property
    def vocabulary(self) -> str:
        """Fingerprint of the meaning of token ids: equal for two servers only if each id means the same."""
        with self._using:
            tokens = json.dumps(sorted(self._tokenizer.get_vocab().items())).encode()
        # models with the same tokenizer may have tables of different sizes
        size = self._model_config.get_vocab_size()
        return f"sha256:{hashlib.sha256(tokens).hexdigest()}:{size}"

    def _detokenizer(self, params: SamplingParams, prompt: Sequence[int]) -> Any:
        from vllm.v1.engine.detokenizer import IncrementalDetokenizer

        request = SimpleNamespace(
            request_id="", sampling_params=params, prompt_token_ids=prompt, prompt_embeds=None
        )
        return IncrementalDetokenizer.from_new_request(self._tokenizer, request)

    @staticmethod
    def _next(detokenizer: Any, token_id: int) -> str:
        detokenizer.token_ids.append(token_id)
        return str(detokenizer.decode_next(token_id))

    @cached_property
    def _before(self) -> tuple[list[int], str]:
        """Ids and text of a prefix: many tokenizers omit the space before a text's first token."""
        token_ids = list(self._tokenizer.encode("a", add_special_tokens=False))
        return token_ids, str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    @cached_property
    def _tokenizer(self) -> Any:
        if self._model_config.skip_tokenizer_init:
            raise ConfigError("this server has no tokenizer: it was started with --skip-tokenizer-init")
        from vllm.tokenizers import cached_tokenizer_from_config

        return cached_tokenizer_from_config(self._model_config)
