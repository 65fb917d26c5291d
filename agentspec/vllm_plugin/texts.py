"""Texts as tokens of the served model, in the worker, which otherwise sees no text."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any

import numpy as np

from agentspec.errors import ConfigError
from agentspec.forest import Tokens


class Texts:
    """The served model's tokenizer, loaded when it is first needed. To be used by one thread at a time."""

    def __init__(self, model_config: Any) -> None:
        self._model_config = model_config

    def encode(self, text: str) -> Tokens:
        """The text as an output: without the tokens that begin or end a prompt.

        Raises:
            ConfigError: this server has no tokenizer.
        """
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), np.int32)

    @cached_property
    def vocabulary(self) -> str:
        """What token ids mean here: the same for two servers only if they mean the same."""
        tokens = json.dumps(sorted(self._tokenizer.get_vocab().items())).encode()
        size = (
            self._model_config.get_vocab_size()
        )  # models of one tokenizer may have tables of different sizes
        return f"sha256:{hashlib.sha256(tokens).hexdigest()}:{size}"

    @cached_property
    def _tokenizer(self) -> Any:
        if self._model_config.skip_tokenizer_init:
            raise ConfigError("this server has no tokenizer: it was started with --skip-tokenizer-init")
        from vllm.tokenizers import cached_tokenizer_from_config

        return cached_tokenizer_from_config(self._model_config)
