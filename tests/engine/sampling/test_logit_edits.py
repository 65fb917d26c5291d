"""Biases, penalties and bans, against a naive twin that looks at one row and one token at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentspec.draft import Draft
from agentspec.engine.sampling.grammar import GrammarCompiler
from agentspec.engine.sampling.logit_edits import OutputRows, edit
from agentspec.engine.sampling.sampler import choose
from agentspec.engine.sampling.state import SamplerState
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.generation import SamplingParams
from tests.support.checkpoints import VOCAB_SIZE
from tests.support.fakes import make_draft

GREEDY = SamplingParams(temperature=0.0)
VOCAB = 12


def naive(logits: list[float], state: SamplerState, path: list[int]) -> list[float]:
    """Return one row's logits after ``path``, edited as the documentation says."""
    params, prompt = state.params, state.prompt_ids.tolist() if state.prompt_ids is not None else []
    edited = list(logits)
    for token, bias in (params.logit_bias or {}).items():
        edited[token] += bias
    for token in set(prompt) | set(path):
        factor = params.repetition_penalty
        edited[token] = edited[token] / factor if edited[token] > 0 else edited[token] * factor
    for token in set(path):
        edited[token] -= params.presence_penalty + params.frequency_penalty * path.count(token)
    allowed = range(VOCAB) if params.allowed_token_ids is None else params.allowed_token_ids
    ends = {word[-1] for word in state.bad_words if (*path, word[-1])[-len(word) :] == word}
    early = state.end_ids if len(path) < params.min_tokens else set()
    for banned in (set(range(VOCAB)) - set(allowed), ends, early):
        left = [-math.inf if token in banned else logit for token, logit in enumerate(edited)]
        edited = left if max(left) > -math.inf else edited
    return edited


def random_state(rng: np.random.Generator) -> SamplerState:
    def some(number: int) -> tuple[int, ...]:
        return tuple(rng.integers(VOCAB, size=number).tolist())

    params = SamplingParams(
        temperature=0.0,
        repetition_penalty=float(rng.choice([1.0, 0.5, 1.7])),
        presence_penalty=float(rng.choice([0.0, 0.8])),
        frequency_penalty=float(rng.choice([0.0, -0.6])),
        logit_bias={token: float(rng.normal()) for token in some(2)} if rng.random() < 0.5 else None,
        allowed_token_ids=some(7) if rng.random() < 0.4 else None,
        min_tokens=int(rng.integers(6)),
    )
    words = tuple(some(int(rng.integers(1, 4))) for _ in range(int(rng.integers(4))))
    output = list(some(int(rng.integers(6))))
    prompt = np.array(some(5), np.int32)
    return SamplerState(params, 3, output, prompt_ids=prompt, bad_words=words, end_ids=frozenset(some(2)))


def random_draft(rng: np.random.Generator) -> Draft:
    size = int(rng.integers(6))
    parents = [int(rng.integers(-1, node)) for node in range(size)]
    return make_draft(rng.integers(VOCAB, size=size).tolist(), parents)


def paths(state: SamplerState, draft: Draft) -> list[list[int]]:
    found = [list(state.output_ids)]
    for parent, token in zip(draft.parents.tolist(), draft.token_ids.tolist(), strict=True):
        found.append([*found[1 + parent], token])
    return found


def test_each_row_is_edited_by_the_path_to_it() -> None:
    rng = np.random.default_rng(1)
    num_edited = 0
    for _ in range(500):
        state, draft = random_state(rng), random_draft(rng)
        logits = torch.from_numpy(rng.normal(size=(1 + len(draft), VOCAB)))
        edited = logits.clone()
        edit(edited, OutputRows(state, draft, np.arange(1 + len(draft))))
        for row, path in enumerate(paths(state, draft)):
            expected = naive(logits[row].tolist(), state, path)
            assert edited[row].tolist() == pytest.approx(expected), (state.params, path)
        num_edited += not torch.equal(edited, logits)
        assert state.is_edited or torch.equal(edited, logits)
        assert choose(logits, [state], [draft]).tolist() == edited.argmax(-1).tolist()
    assert num_edited > 400


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0),
        ({"logit_bias": {2: 9.0}}, 2),
        ({"logit_bias": {0: -100.0}}, 1),
        ({"allowed_token_ids": (3, 4)}, 3),
        ({"repetition_penalty": 1.5}, 1),  # 0 is in the prompt
        ({"min_tokens": 2}, 1),  # 0 ends the output
        ({"min_tokens": 1}, 0),  # it has one token
    ],
)
def test_every_edit_has_an_effect(fields: dict[str, Any], expected: int) -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, -1.0]])
    state = SamplerState(
        replace(GREEDY, **fields), 1, [5], prompt_ids=np.array([0], np.int32), end_ids=frozenset((0,))
    )
    assert choose(logits, [state], [Draft()]).tolist() == [expected]


def test_a_bad_word_is_banned_where_it_would_end() -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0]] * 3)
    state = SamplerState(GREEDY, 1, [1], bad_words=((2, 0), (1, 0)))
    # after 1, after 1 1, after 1 2: everywhere 0 would complete one of the words
    assert choose(logits, [state], [make_draft([1, 2], [-1, -1])]).tolist() == [1, 1, 1]
    state = SamplerState(GREEDY, 1, [], bad_words=((2, 0), (1, 0)))
    assert choose(logits, [state], [make_draft([1, 0], [-1, -1])]).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "fields", [{"min_tokens": 50}, {"allowed_token_ids": (5,)}, {"logit_bias": {5: 100.0}}]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_has_precedence(tokenizer: Tokenizer, fields: dict[str, Any], temperature: float) -> None:
    """What has no other end must be able to end, and only tokens of the grammar are put out."""
    compiler = GrammarCompiler(tokenizer.raw.to_str(), VOCAB_SIZE, tokenizer.eos_ids)
    grammar = compiler.compile({"const": 12})
    params = replace(GREEDY, temperature=temperature, **fields)
    state = SamplerState(params, 1, grammar=grammar, end_ids=tokenizer.eos_ids)
    rng = np.random.default_rng(2)
    while not state.output_ids or state.output_ids[-1] not in tokenizer.eos_ids:
        logits = torch.from_numpy(rng.normal(size=(1, VOCAB_SIZE)))
        token = choose(logits, [state], [Draft()]).tolist()
        state.output_ids += token
        grammar.advance(token)
    assert tokenizer.decode(state.output_ids) == "12"
