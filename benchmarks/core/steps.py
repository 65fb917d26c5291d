"""Time of a whole decode step: accepted tokens are added, then drafts made from two trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from operator import eq

from benchmarks.core.corpus import Corpus
from benchmarks.core.requests import ACCEPTED_TOKENS, next_batch, requests
from benchmarks.core.sides import Decoder, Draft
from benchmarks.core.sizes import Sizes
from benchmarks.core.turns import Spread, Turns
from benchmarks.harness.process import without_gc

WARM_UP_STEPS = 3
# Decoders that take the same steps in turn, and a factor for the number of steps. 2 threads run against 1
# without the others in between, which take 20 times as long and leave the caches cold.
TEAMS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("ours", "peer", "ours_every_source", "ours_learned"), 1),
    (("ours_1_thread", "ours_2_threads"), 4),
)
# The teams alternate: a shared machine gives a second thread more or less for seconds at a time.
NUM_ROUNDS = 5


def measure(
    decoders: Mapping[str, Decoder], corpus: Corpus, sizes: Sizes
) -> dict[str, dict[str, Spread] | dict[str, float]]:
    """Return ms of a step of each side, and its draft tokens per request and step, for each batch size.

    Also return the number of our tokens that the peer drafted at the same place.
    """
    teams = [
        Team({name: decoders[name] for name in names if name in decoders}, factor, corpus, sizes)
        for names, factor in TEAMS
    ]
    figures: dict[str, dict[str, Spread] | dict[str, float]] = {}
    for batch_size in sizes.batch_sizes:
        turns, counts = Turns(), Counts()
        for _ in range(NUM_ROUNDS):
            for team in teams:
                team.play(batch_size, turns, counts)
        figures[f"step_ms_b{batch_size}"] = turns.spreads_ms()
        figures[f"drafted_per_request_b{batch_size}"] = counts.drafted_per_draft()
        figures[f"agreed_per_request_b{batch_size}"] = counts.agreed_per_draft()
    return figures


class Team:
    """Decoders that take the same steps in turn, with their own live requests."""

    def __init__(self, decoders: Mapping[str, Decoder], factor: int, corpus: Corpus, sizes: Sizes) -> None:
        self._decoders = decoders
        self._num_steps = factor * -(-sizes.num_steps // NUM_ROUNDS)  # of a round
        num_steps = len(sizes.batch_sizes) * NUM_ROUNDS * (WARM_UP_STEPS + self._num_steps)
        self._requests = requests(
            corpus, max(sizes.batch_sizes), sizes.prompt_tokens, num_steps * ACCEPTED_TOKENS
        )
        self._num_live = 0
        for output in corpus.history:
            for decoder in decoders.values():
                decoder.learn(output)

    def play(self, batch_size: int, turns: Turns, counts: Counts) -> None:
        """Play one round with ``batch_size`` live requests, at least as many as before."""
        for request in self._requests[self._num_live : batch_size]:
            for decoder in self._decoders.values():
                decoder.start(request.name, request.prompt)
        self._num_live = batch_size
        for _ in range(WARM_UP_STEPS):
            batch = next_batch(self._requests[:batch_size])
            for decoder in self._decoders.values():
                decoder.step(batch)
        with without_gc():
            for _ in range(self._num_steps):
                batch = next_batch(self._requests[:batch_size])
                steps = {name: partial(one.step, batch) for name, one in self._decoders.items()}
                counts.add(turns.take(steps))


class Counts:
    """Draft tokens by side; ``agreed`` counts our tokens that the peer drafted too."""

    def __init__(self) -> None:
        self._drafts: Counter[str] = Counter()
        self._drafted: Counter[str] = Counter()
        self._agreed: Counter[str] = Counter()

    def add(self, results: Mapping[str, Sequence[Draft]]) -> None:
        """Add one step's drafts of each side."""
        tokens = {name: [draft.token_ids for draft in drafts] for name, drafts in results.items()}
        for name, drafts in tokens.items():
            self._drafts[name] += len(drafts)
            self._drafted[name] += sum(map(len, drafts))
        if "ours" in tokens and "peer" in tokens:
            both = zip(tokens["ours"], tokens["peer"], strict=True)
            self._agreed["ours"] += sum(sum(map(eq, ours, theirs)) for ours, theirs in both)

    def drafted_per_draft(self) -> dict[str, float]:
        """Return tokens per draft, by side."""
        return {name: drafted / self._drafts[name] for name, drafted in self._drafted.items()}

    def agreed_per_draft(self) -> dict[str, float]:
        """Return tokens per draft that both sides drafted."""
        return {name: agreed / self._drafts[name] for name, agreed in self._agreed.items()}
