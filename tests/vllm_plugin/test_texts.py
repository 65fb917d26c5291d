from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.vllm_plugin.texts import ServedTokenizer

PIECES = {1: "a", 2: "\N{LOWER ONE EIGHTH BLOCK}users", 3: "x", 4: "\N{LOWER ONE EIGHTH BLOCK}", 5: "</s>"}


class SpaceEater:
    """A tokenizer that omits the space before a text's first word, and raises for one id out of range."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert (text, add_special_tokens) == ("a", False)
        return [1]

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        if 7 in token_ids:
            raise OverflowError("out of range")
        pieces = "".join(PIECES.get(token_id, "") for token_id in token_ids)
        return pieces.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").removeprefix(" ")


@pytest.fixture
def texts() -> ServedTokenizer:
    made = ServedTokenizer(SimpleNamespace(skip_tokenizer_init=False))
    made.__dict__["_tokenizer"] = SpaceEater()
    return made


@pytest.mark.parametrize(
    ("token_id", "text"),
    [(1, "a"), (2, " users"), (3, "x"), (4, " "), (5, "</s>"), (6, "\ufffd"), (7, "\ufffd")],
)
def test_a_token_by_itself(texts: ServedTokenizer, token_id: int, text: str) -> None:
    assert texts.token(token_id) == text


def test_without_a_tokenizer_nothing_is_said() -> None:
    config: Any = SimpleNamespace(skip_tokenizer_init=True)
    with pytest.raises(ConfigError, match="skip-tokenizer-init"):
        ServedTokenizer(config).token(1)
