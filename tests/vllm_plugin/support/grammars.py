"""Requests as vLLM's scheduler holds them, with grammars of llguidance, and clocks that a test sets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from agentspec.config import DraftConfig
from agentspec.models import bundled_model_dir
from agentspec.vllm_plugin.grammar import GrammarDrafts

TOKENIZER_JSON = (bundled_model_dir() / "tokenizer.json").read_text()
TOKENIZER = Tokenizer.from_str(TOKENIZER_JSON)
VOCABULARY = LLTokenizer(TOKENIZER_JSON)
EOS = VOCABULARY.eos_token
NAME = "name_of_the_only_member"
SCHEMA = {
    "type": "object",
    "properties": {NAME: {"type": "string", "maxLength": 5}},
    "required": [NAME],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
DICTATED = f'{{"{NAME}":"'


def encode(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


@dataclass
class Grammar:
    """vLLM's interface of a grammar, over llguidance."""

    ll_matcher: Any
    num_looked_up: int = 0

    @classmethod
    def of(cls, schema: dict[str, Any]) -> Grammar:
        matcher = LLMatcher(VOCABULARY, LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        made = cls(matcher)
        made.ll_matcher = SimpleNamespace(compute_ff_tokens=made._look_up)
        made.own = matcher  # type: ignore[attr-defined]
        return made

    def _look_up(self) -> list[int]:
        self.num_looked_up += 1
        return list(self.own.compute_ff_tokens())  # type: ignore[attr-defined]

    def is_terminated(self) -> bool:
        return bool(self.own.is_stopped())  # type: ignore[attr-defined]

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens[: self.own.validate_tokens(tokens)]  # type: ignore[attr-defined]

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return bool(self.own.consume_tokens(tokens))  # type: ignore[attr-defined]

    def rollback(self, num_tokens: int) -> None:
        self.own.rollback(num_tokens)  # type: ignore[attr-defined]


@dataclass
class Request:
    """The part of vLLM's request that is read."""

    grammar: Any = None
    request_id: str = "r"
    spec_token_ids: list[int] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)
    max_tokens: int = 100
    extra_args: dict[str, Any] | None = None
    frequency_penalty: float = 0.0
    num_tokens: int = 8
    num_computed_tokens: int = 7
    reasoning_ended: bool | None = None

    @property
    def use_structured_output(self) -> bool:
        return self.grammar is not None

    @property
    def structured_output_request(self) -> Any:
        return SimpleNamespace(grammar=self.grammar, reasoning_ended=self.reasoning_ended)

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(
            extra_args=self.extra_args,
            presence_penalty=0.0,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=1.0,
            bad_words_token_ids=None,
        )

    def write(self, tokens: list[int]) -> None:
        """Append tokens to the output, as a step does. Its drafts are gone then."""
        assert self.grammar.accept_tokens(self.request_id, tokens)
        self.output_token_ids += tokens
        self.spec_token_ids = []


def drafts(most: int = 31, **options: Any) -> GrammarDrafts:
    return GrammarDrafts(DraftConfig(max_tokens=most), **options)


def dictated(
    *requests: Request, maker: GrammarDrafts | None = None, **scheduled: list[int]
) -> dict[str, list[int]]:
    """Return the drafts of a step's requests with what is dictated behind them."""
    known = {one.request_id: one for one in requests}
    return (maker or drafts()).dictated([*known, "ended"], known, scheduled)


class Clock:
    """Adds some seconds whenever it is read."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s
