"""Texts as tokens of the served model, and back, in the worker, which otherwise sees no text."""

from __future__ import annotations

import hashlib
import json
import threading
from functools import cached_property
from typing import Any

import numpy as np

from agentspec.errors import ConfigError
from agentspec.forest import Tokens

UNKNOWN = "\N{REPLACEMENT CHARACTER}"


class ServedTokenizer:
    """The served model's tokenizer, loaded when it is first needed. Safe from several threads."""

    def __init__(self, model_config: Any) -> None:
        self._model_config = model_config
        self._using = threading.Lock()  # a tokenizer is not

    def encode(self, text: str) -> Tokens:
        """The text as an output: without the tokens that begin or end a prompt.

        Raises:
            ConfigError: this server has no tokenizer.
        """
        with self._using:
            return np.array(self._tokenizer.encode(text, add_special_tokens=False), np.int32)

    def token(self, token_id: int) -> str:
        """The text of one token behind others; special ones by name, U+FFFD what is no whole character.

        Raises:
            ConfigError: this server has no tokenizer.
        """
        with self._using:
            before, text_before = self._before
            try:
                text = str(self._tokenizer.decode([*before, token_id], skip_special_tokens=False))
            except Exception:  # an id beyond the vocabulary, to some tokenizers
                return UNKNOWN
        return text.removeprefix(text_before) or UNKNOWN

    @cached_property
    def vocabulary(self) -> str:
        """What token ids mean here: the same for two servers only if they mean the same."""
        with self._using:
            tokens = json.dumps(sorted(self._tokenizer.get_vocab().items())).encode()
        size = (
            self._model_config.get_vocab_size()
        )  # models of one tokenizer may have tables of different sizes
        return f"sha256:{hashlib.sha256(tokens).hexdigest()}:{size}"

    @cached_property
    def _before(self) -> tuple[list[int], str]:
        """A beginning: many a tokenizer leaves out the space of a text's first token."""
        token_ids = list(self._tokenizer.encode("a", add_special_tokens=False))
        return token_ids, str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    @cached_property
    def _tokenizer(self) -> Any:
        if self._model_config.skip_tokenizer_init:
            raise ConfigError("this server has no tokenizer: it was started with --skip-tokenizer-init")
        from vllm.tokenizers import cached_tokenizer_from_config

        return cached_tokenizer_from_config(self._model_config)
