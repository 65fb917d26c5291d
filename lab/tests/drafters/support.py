"""Requests through the decoding loop, with a proposer that is recorded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentspec.config import DraftConfig
from agentspec.draft import Draft, Source
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.passed import PassedRow, PassWatcher
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.generation import GenerationRequest, SamplingParams
from agentspec.proposer import Proposer, Tokens
from agentspec.tags import Tags
from lab.drafters.joint_chance import JointChance, Opinions
from tests.support.fakes import STAGE, SteppedEngine

NUM_SLOTS, MAX_LEN = 4, 128
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=3, max_tokens=20)


def prompts(number: int = 30) -> list[list[int]]:
    rng = random.Random(9)
    return [[rng.randrange(4, 380) for _ in range(rng.randint(1, 90))] for _ in range(number)]


def outputs(
    model: Transformer,
    tokenizer: Tokenizer,
    proposer: Proposer,
    draft: DraftConfig,
    sampling: SamplingParams,
    kv_cache_bytes: int | None = None,
) -> list[list[int]]:
    """Return the outputs for all prompts, four at a time."""
    engine = SteppedEngine(
        model,
        tokenizer,
        proposer,
        draft=draft,
        num_slots=NUM_SLOTS,
        max_model_len=MAX_LEN,
        price=0.0,
        kv_cache_bytes=kv_cache_bytes,
    )
    for i, prompt in enumerate(prompts()):
        engine.submit(GenerationRequest(f"r{i}", prompt, sampling, Tags(STAGE)))
    engine.run()
    engine.cache.check_integrity()
    return [engine.output(f"r{i}") for i in range(len(prompts()))]


def ids(*tokens: int) -> Tokens:
    return np.array(tokens, np.int32)


def chain(tokens: Sequence[int], probs: Sequence[float], source: Source = Source.STAGE) -> Draft:
    parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
    return Draft(ids(*tokens), parents, np.array(probs, np.float32), float(sum(probs)), source=source)


class Greatest(JointChance):
    """Gives a token the greatest chance that a drafter gives it."""

    def __call__(self, said: Opinions) -> float:
        return max(said.trees, said.model)


class Recording:
    """A proposer that notes the text of each request, and the drafts and passes of another one."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.hidden_layers: tuple[int, ...] = inner.hidden_layers if isinstance(inner, PassWatcher) else ()
        self.texts: dict[str, list[int]] = {}
        self.steps: list[tuple[list[int], Draft]] = []
        self.passed: list[PassedRow] = []

    @property
    def drafts(self) -> list[Draft]:
        return [draft for _, draft in self.steps]

    def start(self, request_id: str, stage: object, prompt_ids: Tokens, **options: object) -> None:
        self.texts[request_id] = prompt_ids.tolist()
        self._inner.start(request_id, STAGE, prompt_ids, **options)

    def step(
        self, updates: Sequence[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        drafts: list[Draft] = self._inner.step(updates, max_tokens, min_prob)
        for (name, tokens), draft in zip(updates, drafts, strict=True):
            self.texts[name] += tokens.tolist()
            self.steps.append((list(self.texts[name]), draft))
        return drafts

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        self._inner.observe(request_id, token_ids)

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        self._inner.finish(request_id, learn)

    def watch(self, rows: Sequence[PassedRow]) -> None:
        self.passed += rows
        if isinstance(self._inner, PassWatcher):
            self._inner.watch(rows)
