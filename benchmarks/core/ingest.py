"""Time to index a prompt: in total, and the part that delays a decode step.

The peer indexes a prompt inside the step that admits the request. We index in the background: a step includes
the call that starts it, and is slowed down by the indexing.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from itertools import count

import numpy as np

from benchmarks.core.corpus import Corpus
from benchmarks.core.ours import OurDecoder
from benchmarks.core.requests import next_batch, requests
from benchmarks.core.sides import Decoder, Side, Tokens
from benchmarks.core.sizes import Sizes
from benchmarks.core.turns import Spread, Turns, spread
from benchmarks.harness.process import without_gc

NUM_LIVE = 16
FORWARD_PASS_S = 1e-3  # pause between two steps, for the model
NUM_USUAL_STEPS = 50
OUTPUT_TOKENS = 8_192


def measure(peer: Side | None, corpus: Corpus, sizes: Sizes) -> dict[str, dict[str, Spread]]:
    """Return ms per prompt of each size: ``ingest_ms_*`` in total, ``ingest_in_step_ms_*`` in a step."""
    decoders: dict[str, Decoder] = {"ours": OurDecoder()}
    if peer:
        decoders["peer"] = peer.decoder()
    loop = DecodeLoop(corpus, sizes.prompt_tokens)
    figures: dict[str, dict[str, Spread]] = {}
    with without_gc():
        for num_tokens in sizes.ingest_tokens:
            name = f"{num_tokens // 1024}k"
            prompts = corpus.prompts(sizes.num_starts, num_tokens, seed=num_tokens)
            total = _totals(decoders, prompts).spreads_ms()
            in_step = {"ours": spread([1e3 * loop.admit(prompt) for prompt in prompts])}
            if peer:
                in_step["peer"] = total["peer"]
            figures[f"ingest_ms_{name}"] = total
            figures[f"ingest_in_step_ms_{name}"] = in_step
    return figures


def _totals(decoders: dict[str, Decoder], prompts: list[Tokens]) -> Turns:
    turns = Turns()
    for prompt in prompts:
        turns.take({name: partial(one.start, "new", prompt) for name, one in decoders.items()})
        for decoder in decoders.values():
            decoder.finish("new")
    return turns


class DecodeLoop:
    """Our forest in a loop of decode steps, into which new requests are admitted."""

    def __init__(self, corpus: Corpus, prompt_tokens: int) -> None:
        self._decoder = OurDecoder()
        self._names = count()
        self._live = requests(corpus, NUM_LIVE, prompt_tokens, OUTPUT_TOKENS)
        for request in self._live:
            self._decoder.start(request.name, request.prompt)

    def admit(self, prompt: Tokens) -> float:
        """Return the maximum number of seconds by which a new request extends one decode step.

        This is the call that starts it, plus the excess over the usual time of the slowest step until its
        prompt is indexed.
        """
        usual_s = float(np.median([self._step() for _ in range(NUM_USUAL_STEPS)]))
        name, ready = f"new-{next(self._names)}", threading.Event()
        begin = time.perf_counter()
        self._decoder.start(name, prompt, wait=False)
        start_s = time.perf_counter() - begin
        waiter = threading.Thread(target=self._wait, args=(name, ready))
        waiter.start()
        slowest_s = self._step()
        while not ready.is_set():
            slowest_s = max(slowest_s, self._step())
        waiter.join()
        self._decoder.finish(name)
        return start_s + max(0.0, slowest_s - usual_s)

    def _wait(self, name: str, ready: threading.Event) -> None:
        self._decoder.wait(name)
        ready.set()

    def _step(self) -> float:
        batch = next_batch(self._live)
        time.sleep(FORWARD_PASS_S)
        begin = time.perf_counter()
        self._decoder.step(batch)
        return time.perf_counter() - begin
