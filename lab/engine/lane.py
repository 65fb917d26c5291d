"""One drafting method with its own engine, driven step by step in the calling thread."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import cast

from agentspec.config import DraftConfig
from agentspec.engine.admission import Admission
from agentspec.engine.decoder import Decoder
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.request import Item, LiveRequest
from agentspec.engine.scheduler import Scheduler
from agentspec.errors import EngineError
from agentspec.generation import ForcedOutput, GenerationRequest, SamplingParams
from agentspec.proposer import Proposer
from agentspec.tags import Tags
from lab.engine.calls import EngineCall
from lab.engine.shapes import Measured

MAX_BATCH_TOKENS = 256


@dataclass(slots=True)
class Decoded:
    """Totals of calls. The first step of a call reads its prompt's last token, and may have a draft too."""

    num_calls: int = 0
    seconds: float = 0.0
    num_tokens: int = 0
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    def add(self, other: Decoded) -> None:
        """Add another's totals."""
        self.num_calls += other.num_calls
        self.seconds += other.seconds
        self.num_tokens += other.num_tokens
        self.num_steps += other.num_steps
        self.num_drafted += other.num_drafted
        self.num_accepted += other.num_accepted


class Lane:
    """A decoder for calls whose prompts are in slot 0 of a cache that all lanes share."""

    def __init__(self, measured: Measured, cache: KVCache, proposer: Proposer, draft: DraftConfig) -> None:
        model, tokenizer = measured.model, measured.tokenizer
        self._admission = Admission(
            tokenizer, proposer, vocab_size=model.config.vocab_size, max_model_len=cache.max_len, draft=draft
        )
        self._decoder = Decoder(
            model,
            cache,
            proposer,
            Scheduler(1, MAX_BATCH_TOKENS, max_queue=1),
            token_text=tokenizer.token_text,
            token_bytes=tokenizer.token_bytes,
            post=self._receive,
            max_draft_tokens=draft.max_tokens,
        )
        self._tokens: list[int] = []

    def decode(self, request_id: str, call: EngineCall) -> Decoded:
        """Decode a call. The cache must hold its prompt's entries, except the last token's.

        Raises:
            EngineError: the output differs from the recorded one.
        """
        self._tokens = []
        live = LiveRequest(forced_request(request_id, call), cast(asyncio.AbstractEventLoop, None))
        (choice,) = self._admission.admit(live)
        choice.num_cached = len(call.prompt) - 1
        self._decoder.add([choice])
        begin_s = time.perf_counter()
        while self._decoder.has_work:
            self._decoder.step()
        seconds = time.perf_counter() - begin_s
        if self._tokens[: len(call.response)] != call.response.tolist():
            raise EngineError(f"{request_id!r} gave another output than the recorded one")
        told = choice.speculation
        return Decoded(
            num_calls=1,
            seconds=seconds,
            num_tokens=len(self._tokens),
            num_steps=1 + told.num_steps,
            num_drafted=told.num_draft_tokens,
            num_accepted=told.num_accepted_tokens,
        )

    def _receive(self, live: LiveRequest, item: Item) -> None:
        if isinstance(item, Exception):
            raise item
        self._tokens.extend(item.token_ids)


def forced_request(request_id: str, call: EngineCall) -> GenerationRequest:
    """Return a call as a request whose output is the recorded one."""
    return GenerationRequest(
        request_id=request_id,
        prompt=call.prompt.tolist(),
        sampling=SamplingParams(temperature=0.0),
        tags=Tags(call.key, session=call.session),
        forced=[ForcedOutput(call.response.tolist(), call.is_cut)],
    )
