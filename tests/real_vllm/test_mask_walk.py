"""What xgrammar's masks dictate, with vLLM's own grammars."""

from __future__ import annotations

import json
import threading
import time
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.models import bundled_model_dir
from agentspec.vllm_plugin.grammar import GrammarDrafts, MaskWalk
from tests.vllm_plugin.support.grammars import NAME, SCHEMA, Clock, Request, dictated, drafts

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from the modules that vLLM imports
    import xgrammar
    from transformers import AutoTokenizer
    from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

MOST = 31
TOKENIZER = AutoTokenizer.from_pretrained(bundled_model_dir())
VOCABULARY = xgrammar.TokenizerInfo.from_huggingface(TOKENIZER)
COMPILER = xgrammar.GrammarCompiler(VOCABULARY)


def of(compiled: Any) -> XgrammarGrammar:
    matcher = xgrammar.GrammarMatcher(compiled)
    return XgrammarGrammar(vocab_size=VOCABULARY.vocab_size, matcher=matcher, ctx=compiled)


def schema(of_what: dict[str, Any], *, any_whitespace: bool = False) -> XgrammarGrammar:
    return of(COMPILER.compile_json_schema(json.dumps(of_what), any_whitespace=any_whitespace))


def walk_of(grammar: XgrammarGrammar) -> MaskWalk:
    return MaskWalk(grammar, Clock(0.0)).wait()  # however slow this machine is


def ready(maker: GrammarDrafts) -> GrammarDrafts:
    maker._walk = walk_of(schema(SCHEMA))
    return maker


def encode(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False)
    return ids


def walked(grammar: XgrammarGrammar, most: int = MOST) -> str:
    """Return the text of the tokens that a grammar dictates. Its state is as before."""
    walk = walk_of(grammar)
    tokens = walk.tokens(grammar, "r", most)
    assert walk.tokens(grammar, "r", most) == tokens
    assert grammar.validate_tokens(tokens) == tokens
    return str(TOKENIZER.decode(tokens))


def test_the_whole_dictated_text_is_found() -> None:
    grammar = schema(SCHEMA)
    assert walked(grammar) == f'{{"{NAME}":'  # then a text, which may be empty
    assert len(walk_of(grammar).tokens(grammar, "r", MOST)) < len(NAME)  # the longest tokens
    assert grammar.accept_tokens("r", encode(f'{{"{NAME[:4]}'))
    assert walked(grammar) == f'{NAME[4:]}":'


def test_a_choice_ends_it() -> None:
    grammar = schema({"enum": ["one table", "two tables"]})
    assert walked(grammar) == '"'
    assert grammar.accept_tokens("r", encode('"o'))
    assert walked(grammar).startswith("ne table")
    free = schema({"type": "string"})
    assert free.accept_tokens("r", encode('"a'))
    assert walked(free) == ""


def test_white_space_is_a_choice() -> None:
    grammar = schema(SCHEMA, any_whitespace=True)
    assert grammar.accept_tokens("r", encode("{"))
    assert walked(grammar) == ""
    assert grammar.accept_tokens("r", encode('"'))
    assert walked(grammar).startswith(NAME)


def test_no_walk_is_longer_than_it_may_be() -> None:
    grammar = schema(SCHEMA)
    tokens = walk_of(grammar).tokens(grammar, "r", MOST)
    for most in range(len(tokens)):
        assert walk_of(grammar).tokens(grammar, "r", most) == tokens[:most]


@pytest.mark.parametrize("endless", ['root ::= "ab" root', 'root ::= "ab" other\nother ::= "c" root'])
def test_a_text_without_an_end_ends_with_the_draft(endless: str) -> None:
    """``find_jump_forward_string`` does not return from these."""
    grammar = of(COMPILER.compile_grammar(endless))
    start = time.monotonic()
    tokens = walk_of(grammar).tokens(grammar, "r", MOST)
    assert len(tokens) == MOST
    assert time.monotonic() - start < 5


def test_a_walk_ends_after_two_milliseconds() -> None:
    grammar = schema(SCHEMA)
    walk = MaskWalk(grammar, Clock(0.0009)).wait()
    assert len(walk.tokens(grammar, "r", MOST)) == 2


def test_of_tokens_with_the_same_text_the_last_one_is_drafted() -> None:
    """Some vocabularies begin with single bytes. A model writes these for rare text only."""
    vocabulary = xgrammar.TokenizerInfo(
        ["</s>", "<0x2D>", "<0x61>", "a", "-"], xgrammar.VocabType.BYTE_FALLBACK
    )
    compiled = xgrammar.GrammarCompiler(vocabulary).compile_grammar('root ::= "a-a"')
    grammar = XgrammarGrammar(
        vocab_size=5, matcher=xgrammar.GrammarMatcher(compiled, override_stop_tokens=[0]), ctx=compiled
    )
    assert walk_of(grammar).tokens(grammar, "r", 3) == [3, 4, 3]


def test_a_vocabulary_that_is_not_read_yet_dictates_nothing() -> None:
    grammar = schema(SCHEMA)
    may_read = threading.Event()

    class Late:
        @property
        def decoded_vocab(self) -> list[bytes]:
            may_read.wait()
            return list(VOCABULARY.decoded_vocab)

    of_late = SimpleNamespace(ctx=SimpleNamespace(tokenizer_info=Late()), vocab_size=grammar.vocab_size)
    walk = MaskWalk(of_late, Clock(0.0))
    assert walk.tokens(grammar, "r", MOST) == []
    may_read.set()
    assert len(walk.wait().tokens(grammar, "r", MOST)) > 3


def test_the_end_of_an_output_is_dictated_as_well() -> None:
    grammar = schema({"const": "a"})
    assert grammar.accept_tokens("r", encode('"a"'))
    walk = walk_of(grammar)
    assert walk.tokens(grammar, "r", MOST) == [TOKENIZER.eos_token_id]
    assert not grammar.is_terminated()
    assert grammar.accept_tokens("r", [TOKENIZER.eos_token_id])
    assert grammar.is_terminated()
    assert walk.tokens(grammar, "r", MOST) == []


@pytest.mark.parametrize(("most", "limit"), [(31, 100), (5, 100), (31, 4)])
def test_a_request_drafts_what_its_masks_dictate_within_its_limits(most: int, limit: int) -> None:
    whole = walked(schema(SCHEMA))
    request = Request(schema(SCHEMA), max_tokens=limit)
    tokens = dictated(request, maker=ready(drafts(most)))["r"]
    assert len(tokens) <= min(most + 1, limit)
    text = str(TOKENIZER.decode(tokens))
    assert text == whole if (most, limit) == (31, 100) else whole.startswith(text)
    assert request.grammar.num_processed_tokens == 0


def test_every_step_of_an_output_drafts_what_is_dictated_from_there_on() -> None:
    request, maker = Request(schema(SCHEMA)), ready(drafts(4))
    texts = []
    while len(texts) < 4:
        tokens = dictated(request, maker=maker)["r"]
        texts.append(str(TOKENIZER.decode(tokens)))
        request.write(tokens)
    assert f'{{"{NAME}":'.startswith("".join(texts))
    assert len("".join(texts)) > 12


def test_a_failure_within_a_walk_leaves_no_trace() -> None:
    grammar = schema(SCHEMA)
    walk = walk_of(grammar)
    tokens = walk.tokens(grammar, "r", MOST)
    calls = iter(range(MOST))

    def fill(mask: Any, row: int) -> None:
        if next(calls) == 3:
            raise RuntimeError
        XgrammarGrammar.fill_bitmask(grammar, mask, row)

    grammar.fill_bitmask = fill
    with pytest.raises(RuntimeError):
        walk.tokens(grammar, "r", MOST)
    assert grammar.num_processed_tokens == 0
    assert grammar.validate_tokens(tokens) == tokens
