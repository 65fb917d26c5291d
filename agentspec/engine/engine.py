"""The embedded engine's interface to a server: asynchronous, one model, one decoding thread.

It owns the thread, the model and the admission of requests. ``Decoder`` runs the steps.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import torch

from agentspec.config import MIB
from agentspec.engine.admission import Admission
from agentspec.engine.decoder import Decoder
from agentspec.engine.engine_config import EngineConfig
from agentspec.engine.kv_memory import FREE_SHARE, CacheSize, KVMemory, fitting_size, free_bytes
from agentspec.engine.model.checkpoint import load_model, load_shape
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.request import Item, LiveRequest
from agentspec.engine.scheduler import Scheduler
from agentspec.engine.text.text_trees import TextForest
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import ConfigError, EngineError
from agentspec.generation import (
    DEFAULT_OPTIONS,
    GenerationDelta,
    GenerationRequest,
    ModelCard,
    PromptOptions,
)
from agentspec.proposer import Learner, NoDrafts, OutputSharing, Proposer
from agentspec.stages import StageKey
from agentspec.stats import StageStats

logger = logging.getLogger(__name__)

REPLAY_CONTEXT = 32768  # least context of an engine that replays recorded conversations
MAX_FAILURES = 3  # failed steps in a row after which the engine reports itself as unhealthy


class TorchEngine:
    """Implements :class:`agentspec.generation.Engine` with a model in this process.

    The decoding thread starts with the first request.

    Args:
        proposer: drafts and learns from verified tokens; None = no speculation. A proposer that drafts from
            hidden states or logits is a :class:`~agentspec.engine.passed.PassWatcher`. If the proposer has
            ``memory_bytes(stage)`` and a ``config`` with their limit, as the forest has, the counters report
            the bytes of a stage's trees.

    Raises:
        CheckpointError: the model directory can't be loaded.
        ConfigError: the KV cache has no room for a request, or not for as many tokens as ``max_model_len``
            asks for.
    """

    def __init__(self, config: EngineConfig, proposer: Proposer | None = None) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._proposer = proposer or NoDrafts()
        dtype = None if config.dtype is None else getattr(torch, config.dtype)
        load = load_shape if config.is_replaying else load_model
        model = load(config.model_path, device=config.device, dtype=dtype)
        self._tokenizer = Tokenizer.load(config.model_path, needs_tools=config.is_replaying)
        size = _cache_size(config, model)
        self._max_model_len = size.max_len
        most = size.num_slots + config.max_queue
        self._model_card = ModelCard(config.name, self._max_model_len, int(time.time()), most)
        cache = _cache(model, size.num_slots, size.max_len)
        _ = cache.entries  # allocates now: a lack of memory fails the start, not a request
        self._outbox = _Outbox()
        self._admission = Admission(
            self._tokenizer,
            self._proposer,
            vocab_size=model.config.vocab_size,
            max_model_len=self._max_model_len,
            draft=config.draft,
            limited_by=size.limited_by,
        )
        self._decoder = Decoder(
            model,
            cache,
            self._proposer,
            Scheduler(
                size.num_slots,
                config.max_batch_tokens,
                config.max_queue,
                keeps_prompts=config.is_replaying,
                memory=KVMemory(cache, size.limit_bytes),
            ),
            token_text=self._tokenizer.token_text,
            token_bytes=self._tokenizer.token_bytes,
            post=self._outbox.post,
            max_draft_tokens=config.draft.max_tokens,
            price=config.price,
        )
        self._vocab_size: int = model.config.vocab_size
        self._sharing: OutputSharing | None = None
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._num_failures = 0

    @property
    def model(self) -> ModelCard:
        """The one model that is served."""
        return self._model_card

    @property
    def is_healthy(self) -> bool:
        """False once the engine was closed, or while every step fails."""
        return not self._is_closed and self._num_failures < MAX_FAILURES

    @property
    def price(self) -> float:
        """The present cost of a draft token, in accepted tokens: between 0 and 1."""
        return self._decoder.pricing.price

    @property
    def trees(self) -> TextForest | None:
        """The proposer's trees, by text; None if it has none."""
        if not isinstance(self._proposer, Learner):
            return None
        return TextForest(self._tokenizer, self._proposer, self._sharing)

    @property
    def vocab_size(self) -> int:
        """Size of the model's vocabulary: its token ids are smaller."""
        return self._vocab_size

    @property
    def vocabulary(self) -> str:
        """Fingerprint of the meaning of token ids; the same in vLLM."""
        return f"{self._tokenizer.vocabulary}:{self._vocab_size}"

    def share(self, sharing: OutputSharing) -> None:
        """Send other engines the outputs that the proposer learns, from now on."""
        self._sharing = self._decoder.sharing = sharing

    async def generate(self, request: GenerationRequest) -> AsyncIterator[GenerationDelta]:
        """Stream the answer. Closing the iterator cancels the request and frees its slot at the next step.

        Raises (at the first ``anext``):
            RequestError: the request is invalid; the engine continues.
            EngineError: the engine failed.
        """
        live = LiveRequest(request, asyncio.get_running_loop())
        try:
            await asyncio.to_thread(self._submit, live)
            num_open = request.sampling.n
            while num_open:
                item = await live.inbox.get()
                if isinstance(item, Exception):
                    raise item
                num_open -= item.finish_reason is not None
                yield item
        finally:
            live.is_cancelled = True  # without effect on an ended request

    def _submit(self, live: LiveRequest) -> None:
        """Admit and schedule the request in the calling thread, then wake the decoding thread.

        The client may disconnect meanwhile. The next step then drops the scheduled request.
        """
        self._decoder.check_room()  # refuse early, before any work, if the queue is full
        choices = self._admission.admit(live)
        try:
            with self._wake:
                if self._is_closed:
                    raise EngineError("the engine was stopped")
                self._decoder.add(choices)
                self._start_thread()
                self._wake.notify()
        except BaseException:
            self._admission.withdraw(choices)
            raise

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="agentspec-decoder", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """Run the decoding thread: step while there is work, else sleep."""
        while self._wait_for_work():
            try:
                self._decoder.step()
                self._num_failures = 0
            except BaseException as error:  # a panic in a native library is no Exception
                self._num_failures += 1
                logger.exception("a decode step failed; the requests in flight end with an error")
                self._decoder.fail(f"a decode step failed: {error!r}")
            self._outbox.flush()
        self._decoder.fail("the engine was stopped")
        self._outbox.flush()

    def _wait_for_work(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._is_closed or self._decoder.has_work)
            return not self._is_closed

    def tokenize(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: PromptOptions = DEFAULT_OPTIONS,
    ) -> list[int]:
        """The token ids of raw text or chat messages; see :meth:`agentspec.generation.Engine.tokenize`."""
        ids: list[int] = self._tokenizer.encode_prompt(prompt, tools, options).tolist()
        return ids

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids`` with special tokens. Raises RequestError if an id is invalid."""
        return self._tokenizer.decode_prompt(token_ids)

    def token_names(self, token_ids: Sequence[int]) -> list[str]:
        """Return each token as in the vocabulary. Raises RequestError if an id is invalid."""
        return self._tokenizer.token_names(token_ids)

    def stats(self) -> dict[StageKey, StageStats]:
        """Counters per stage since the start."""
        proposer = self._proposer
        limits = getattr(proposer, "config", None)  # the forest's
        return self._decoder.counters.snapshot(
            getattr(proposer, "memory_bytes", None), getattr(limits, "stage_limit_bytes", 0)
        )

    async def close(self) -> None:
        """Stop after the current step. Running requests end with EngineError. May be called twice."""
        with self._wake:
            self._is_closed = True
            self._wake.notify_all()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)


class _Outbox:
    """Collects the items of a step for its requests, and delivers them at the end of the step.

    One wake-up per event loop and step, however many requests took part: waking the loop for each
    would make both threads contend for the interpreter in the middle of a step. Used by one thread.
    """

    def __init__(self) -> None:
        self._posts: dict[asyncio.AbstractEventLoop, list[tuple[LiveRequest, Item]]] = {}

    def post(self, live: LiveRequest, item: Item) -> None:
        """Keep ``item`` for ``live`` until the next flush."""
        self._posts.setdefault(live.loop, []).append((live, item))

    def flush(self) -> None:
        """Deliver everything. A request is cancelled if its loop is closed: it has no reader."""
        posts, self._posts = self._posts, {}
        for loop, items in posts.items():
            try:
                loop.call_soon_threadsafe(_deliver, items)
            except RuntimeError:  # the loop is closed
                for live, _ in items:
                    live.is_cancelled = True


def _deliver(items: Sequence[tuple[LiveRequest, Item]]) -> None:
    for live, item in items:
        live.inbox.put_nowait(item)


def _cache_size(config: EngineConfig, model: Transformer) -> CacheSize:
    """Return slots and tokens within the limit. Raises ConfigError as :class:`TorchEngine` does."""
    limit_mb, context, free = config.kv_cache_mb, _context(config, model), free_bytes(model.device)
    limit = int(FREE_SHARE * free) if limit_mb is None else limit_mb * MIB
    if limit > free:
        logger.warning("--kv-cache-mb %d is more than the %d MiB that are free", limit // MIB, free // MIB)
    size = fitting_size(lambda slots, length: _cache(model, slots, length), config.num_slots, context, limit)
    if size.limited_by and config.max_model_len is not None:
        raise ConfigError(f"--max-model-len {config.max_model_len} does not fit: {size.limited_by}")
    if size.limited_by:
        logger.warning("requests can't use the whole context of the model: %s", size.limited_by)
    logger.info("KV cache: at most %d MiB for %d requests at a time", limit // MIB, size.num_slots)
    return size


def _cache(model: Transformer, num_slots: int, max_len: int) -> KVCache:
    return KVCache(model.config, num_slots, max_len, model.dtype, model.device)


def _context(config: EngineConfig, model: Transformer) -> int:
    """Most tokens of prompt and output: the model's limit, or what the settings say if they may."""
    limit: int = model.config.max_position_embeddings
    if config.is_replaying:
        return config.max_model_len or max(limit, REPLAY_CONTEXT)
    return limit if config.max_model_len is None else min(limit, config.max_model_len)
