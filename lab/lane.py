"""One variant under one load: an engine of its own, driven step by step in the caller's thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from agentspec.config import DraftConfig, ForestConfig
from agentspec.engine.admission import Admission
from agentspec.engine.decoder import Decoder
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.request import Item, LiveRequest
from agentspec.engine.scheduler import Scheduler
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.forest import Forest
from agentspec.generation import GenerationRequest
from agentspec.proposer import NoDrafts, Proposer
from benchmarks.harness.process import without_gc

MAX_BATCH_TOKENS = 256
MAX_MODEL_LEN = 2048
TURN_S = 0.1  # CPU time of one turn: shorter than the machine's fluctuations


class StepClock:
    """CPU seconds of a thread while one lane takes steps."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._since_s: float | None = None

    def __call__(self) -> float:
        """Return the seconds so far."""
        return self._before_s + (0.0 if self._since_s is None else time.thread_time() - self._since_s)

    def go_on(self) -> None:
        """Begin a step."""
        self._since_s = time.thread_time()

    def stop(self) -> None:
        """End a step."""
        self._before_s, self._since_s = self(), None


@dataclass(frozen=True, slots=True)
class Decoded:
    """Output tokens of steps, and the wall time of these steps."""

    num_tokens: int = 0
    wall_s: float = 0.0

    def __add__(self, other: Decoded) -> Decoded:
        return Decoded(self.num_tokens + other.num_tokens, self.wall_s + other.wall_s)


class Lane:
    """Serves all calls with a constant number of live requests.

    Each of ``num_clients`` takes a question, makes its calls in sequence, then takes the next question. Only
    decode steps are timed: prompts are tokenized and indexed between them.

    Args:
        proposer: drafts; None = a new forest, or nothing if ``draft`` is off.
        num_slots: most sequences at once; None = one per client, for requests of one choice.
        clock: of these steps, for the decoder and for a proposer that measures time; None = a new one.
        max_len: most tokens of a prompt and its output together.

    Attributes:
        cpu_s: CPU time of the steps so far, of this thread only; other load on the machine matters less.
        wall_s: wall time of the same steps.
        decoded: by the steps in which the calls of all clients decoded, without prompts or idle clients.
        outputs: token ids of each response, by request id and, after the first choice, its number.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        questions: Sequence[Sequence[GenerationRequest]],
        draft: DraftConfig,
        price: float | None,
        num_clients: int,
        proposer: Proposer | None = None,
        num_slots: int | None = None,
        clock: StepClock | None = None,
        max_len: int = MAX_MODEL_LEN,
    ) -> None:
        if proposer is None:
            proposer = NoDrafts() if draft.is_off else Forest(ForestConfig(), learns_later=True)
        num_slots = num_slots or num_clients
        self._clock = clock or StepClock()
        self._admission = Admission(
            tokenizer, proposer, vocab_size=model.config.vocab_size, max_model_len=max_len, draft=draft
        )
        self._decoder = Decoder(
            model,
            KVCache(model.config, num_slots, max_len, model.dtype, "cpu"),
            proposer,
            Scheduler(num_slots, MAX_BATCH_TOKENS, max_queue=num_slots),
            token_text=tokenizer.token_text,
            token_bytes=tokenizer.token_bytes,
            post=self._receive,
            max_draft_tokens=draft.max_tokens,
            price=price,
            clock=self._clock,
        )
        self._waiting = [iter(calls) for calls in reversed(questions)]
        self._clients: dict[str, Iterator[GenerationRequest]] = {}
        self._ended: list[str] = []
        self._num_open: dict[str, int] = {}  # choices that are not finished
        self.cpu_s = self.wall_s = 0.0
        self.decoded = Decoded()
        self._num_clients = num_clients
        self._num_steps = 0
        self._prices = 0.0
        self.outputs: dict[str, list[int]] = {}
        for _ in range(num_clients):
            self._next_call(iter(()))

    @property
    def is_done(self) -> bool:
        """True once every call was answered."""
        return not self._clients

    @property
    def num_tokens(self) -> int:
        """Number of output tokens so far."""
        return sum(map(len, self.outputs.values()))

    @property
    def num_steps(self) -> int:
        """Number of forward passes so far."""
        return self._num_steps

    @property
    def price(self) -> float:
        """Price of a draft token: the mean over the steps so far."""
        return self._prices / max(1, self._num_steps)

    def speculation(self) -> dict[str, float]:
        """Return tokens and draft tokens per (request, step), and the acceptance rate."""
        stages = list(self._decoder.counters.snapshot().values())
        num_steps = sum(stage.num_steps for stage in stages)
        num_drafted = sum(stage.num_draft_tokens for stage in stages)
        num_accepted = sum(stage.num_accepted_tokens for stage in stages)
        return {
            "tokens_per_step": 1 + num_accepted / num_steps,
            "drafted_per_step": num_drafted / num_steps,
            "acceptance_rate": num_accepted / max(1, num_drafted),
        }

    def run(self, turn_s: float) -> None:
        """Run steps for about ``turn_s`` seconds of CPU time, or to the end."""
        until_s = self.cpu_s + turn_s
        while self._clients and self.cpu_s < until_s:
            all_decode = (
                len(self._clients) == self._num_clients and self._clients.keys() <= self.outputs.keys()
            )
            num_before = self.num_tokens
            begin_s, begin_cpu_s = time.perf_counter(), self._clock()
            self._clock.go_on()
            self._decoder.step()
            self._clock.stop()
            cpu_s, wall_s = self._clock() - begin_cpu_s, time.perf_counter() - begin_s
            self.cpu_s += cpu_s
            self.wall_s += wall_s
            self._num_steps += 1
            self._prices += self._decoder.pricing.price
            if all_decode:
                self.decoded += Decoded(self.num_tokens - num_before, wall_s)
            for request_id in self._ended:
                self._next_call(self._clients.pop(request_id))
            self._ended.clear()

    def _next_call(self, calls: Iterator[GenerationRequest]) -> None:
        """Start a client's next call; after the last one, start the next question."""
        while (request := next(calls, None)) is None:
            if not self._waiting:
                return
            calls = self._waiting.pop()
        live = LiveRequest(request, cast(asyncio.AbstractEventLoop, None))
        self._num_open[request.request_id] = request.sampling.n
        self._decoder.add(self._admission.admit(live))
        self._clients[request.request_id] = calls

    def _receive(self, live: LiveRequest, item: Item) -> None:
        if isinstance(item, Exception):
            raise item
        request = live.request
        name = f"{request.request_id}#{item.index}" if item.index else request.request_id
        self.outputs.setdefault(name, []).extend(item.token_ids)
        if item.finish_reason is not None:
            self._num_open[request.request_id] -= 1
            if not self._num_open[request.request_id]:
                self._ended.append(request.request_id)


def take_turns(lanes: Sequence[Lane]) -> None:
    """Run every lane to its end, in short turns."""
    with without_gc():
        while waiting := [lane for lane in lanes if not lane.is_done]:
            for lane in waiting:
                lane.run(TURN_S)
