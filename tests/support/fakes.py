"""Light test doubles: proposers with controlled drafts, an engine with controlled steps."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from agentspec.config import DraftConfig
from agentspec.draft import Draft, Source
from agentspec.engine.admission import Admission
from agentspec.engine.batch import Segment
from agentspec.engine.decoder import Decoder
from agentspec.engine.kv_memory import KVMemory
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.request import Choice, Item, LiveRequest
from agentspec.engine.scheduler import Scheduler
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import DuplicateRequestError, UnknownRequestError
from agentspec.generation import GenerationDelta, GenerationRequest
from agentspec.proposer import NoDrafts, Proposer, Tokens
from agentspec.stages import StageKey

STAGE = StageKey.parse("tests/stage")


def make_draft(tokens: Sequence[int], parents: Sequence[int] | None = None) -> Draft:
    """Return a draft of these tokens. Without ``parents`` it is a chain."""
    parents = range(-1, len(tokens) - 1) if parents is None else parents
    return Draft(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.ones(len(tokens), np.float32),
        score=float(len(tokens)),
        match_length=1,
        source=Source.STAGE,
    )


class RecordingProposer:
    """A strict proposer that drafts no tokens and records its calls.

    Attributes:
        told: reported tokens per request, in order.
        learned: per finished request, True if its output was to be learned.
        outputs: per finished request that learns at its end, what was to be learned.
        prices: the price of a draft token in each step.
    """

    def __init__(self) -> None:
        self.prompts: dict[str, list[int]] = {}
        self.told: defaultdict[str, list[int]] = defaultdict(list)
        self.learned: dict[str, bool] = {}
        self.outputs: dict[str, list[int]] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        self.prices: list[float] = []

    @property
    def live(self) -> set[str]:
        """Requests that were started and not finished."""
        return set(self.prompts) - set(self.learned)

    def start(self, request_id: str, stage: StageKey, prompt_ids: Tokens, **settings: Any) -> None:
        if request_id in self.live:
            raise DuplicateRequestError(f"{request_id!r} is live")
        self.prompts[request_id] = prompt_ids.tolist()
        self.learned.pop(request_id, None)
        self.told[request_id] = []
        self.settings[request_id] = {"stage": stage, **settings}

    def step(
        self, updates: Sequence[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        self.prices.append(min_prob)
        for request_id, tokens in updates:
            self.observe(request_id, tokens)
        return [self.guess(request_id, max_tokens) for request_id, _ in updates]

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        if request_id not in self.live:
            raise UnknownRequestError(f"{request_id!r} is not live")
        assert token_ids.dtype == np.int32
        self.told[request_id].extend(token_ids.tolist())

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        if request_id not in self.live:
            raise UnknownRequestError(f"{request_id!r} is not live")
        self.learned[request_id] = learn
        if output is not None:
            self.outputs[request_id] = output.tolist()

    def guess(self, request_id: str, max_tokens: int) -> Draft:
        """Return the draft. Subclasses override it."""
        return Draft()


class RandomProposer(RecordingProposer):
    """A proposer of random chains or trees of tokens that occur in the request."""

    def __init__(self, *, is_tree: bool, seed: int = 0) -> None:
        super().__init__()
        self._is_tree = is_tree
        self._rng = random.Random(seed)

    def guess(self, request_id: str, max_tokens: int) -> Draft:
        seen = self.prompts[request_id] + self.told[request_id]
        size = self._rng.randint(0, max_tokens)
        parents = [self._rng.randint(-1, node - 1) if self._is_tree else node - 1 for node in range(size)]
        return make_draft(self._rng.choices(seen, k=size), parents)


class OracleProposer(RecordingProposer):
    """A proposer that knows each prompt's output and drafts it, with some tokens wrong.

    In a tree, every right token has wrong siblings before and after it, some with children. The accepted path
    is therefore scattered over the draft.
    """

    def __init__(
        self,
        outputs: Mapping[tuple[int, ...], Sequence[int]],
        *,
        is_tree: bool,
        wrong: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._outputs = outputs
        self._is_tree = is_tree
        self._wrong = wrong
        self._rng = random.Random(seed)

    def guess(self, request_id: str, max_tokens: int) -> Draft:
        output = self._outputs[tuple(self.prompts[request_id])]
        rest = list(output[len(self.told[request_id]) :][:max_tokens])
        rest = [self._corrupt(token) if self._rng.random() < self._wrong else token for token in rest]
        return self._bush(rest, max_tokens) if self._is_tree else make_draft(rest)

    def _corrupt(self, token: int) -> int:
        return token ^ 1

    def _bush(self, trunk: Sequence[int], max_tokens: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        here = -1
        for token in trunk:
            siblings = [token, *(self._rng.randrange(256) for _ in range(self._rng.randint(0, 2)))]
            self._rng.shuffle(siblings)
            first = len(tokens)
            tokens += siblings
            parents += [here] * len(siblings)
            here = first + siblings.index(token)
            if self._rng.random() < 0.5:  # a child of the first sibling
                tokens.append(self._rng.randrange(256))
                parents.append(first)
        return make_draft(tokens[:max_tokens], parents[:max_tokens])


class RecordingModel:
    """A model that records the segments of each forward pass.

    If ``fail_next`` is set, the next pass raises it.
    """

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self.config = model.config
        self.dtype = model.dtype
        self.passes: list[list[Segment]] = []
        self.fail_next: BaseException | None = None

    def run(self, segments: Sequence[Segment], cache: KVCache, hidden_layers: Sequence[int] = ()) -> Any:
        self.passes.append(list(segments))
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        return self._model.run(segments, cache, hidden_layers)


class SteppedEngine:
    """The decoding half of the engine without its thread. The test triggers each step."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        proposer: Proposer | None = None,
        *,
        draft: DraftConfig | None = None,
        num_slots: int = 4,
        max_model_len: int = 128,
        max_batch_tokens: int = 64,
        max_queue: int = 1000,
        price: float | None = 0.0,  # all drafts are verified
        clock: Callable[[], float] = time.perf_counter,
        keeps_prompts: bool = False,
        kv_cache_bytes: int | None = None,
    ) -> None:
        draft = draft or DraftConfig(max_tokens=8)
        proposer = proposer or NoDrafts()
        self.model = RecordingModel(model)
        self.cache = KVCache(model.config, num_slots, max_model_len, model.dtype, "cpu")
        limit_bytes = 1 << 40 if kv_cache_bytes is None else kv_cache_bytes
        self.memory = KVMemory(self.cache, limit_bytes)
        self.scheduler = Scheduler(
            num_slots, max_batch_tokens, max_queue, keeps_prompts=keeps_prompts, memory=self.memory
        )
        self.received: defaultdict[str, list[Item]] = defaultdict(list)
        self.admission = Admission(
            tokenizer,
            proposer,
            vocab_size=model.config.vocab_size,
            max_model_len=max_model_len,
            draft=draft,
        )
        self.decoder = Decoder(
            cast(Transformer, self.model),
            self.cache,
            proposer,
            self.scheduler,
            token_text=tokenizer.token_text,
            token_bytes=tokenizer.token_bytes,
            post=lambda live, item: self.received[live.request.request_id].append(item),
            max_draft_tokens=draft.max_tokens,
            price=price,
            clock=clock,
        )

    def submit(self, request: GenerationRequest) -> LiveRequest:
        """Admit and schedule a request."""
        live = LiveRequest(request, loop=cast(asyncio.AbstractEventLoop, None))
        choices: list[Choice] = self.admission.admit(live)
        self.decoder.add(choices)
        return live

    def run(self, max_steps: int = 10_000) -> int:
        """Step until no work is left and return the number of steps."""
        for step in range(max_steps):
            if not self.decoder.has_work:
                return step
            self.decoder.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def deltas(self, request_id: str, index: int = 0) -> list[GenerationDelta]:
        """Return the deltas of choice ``index`` of a request. Raise its error, if any."""
        deltas = []
        for item in self.received[request_id]:
            if isinstance(item, Exception):
                raise item
            deltas.append(item)
        return [delta for delta in deltas if delta.index == index]

    def output(self, request_id: str, index: int = 0) -> list[int]:
        """Return all token ids of one choice."""
        return [token for delta in self.deltas(request_id, index) for token in delta.token_ids]

    def text(self, request_id: str, index: int = 0) -> str:
        """Return all text of one choice."""
        return "".join(delta.text for delta in self.deltas(request_id, index))
