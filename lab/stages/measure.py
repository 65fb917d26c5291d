"""The measurements: partitions against the truth, their stability, and the cost of a call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from agentspec.gateway.discovery.fingerprint import read_features
from agentspec.gateway.discovery.service import Discovery
from agentspec.reporting.report import Announce
from benchmarks.harness import traces
from lab.stages import growth
from lab.stages.generated import sentences, workloads
from lab.stages.methods import Drain, Method, Ours, has_drain
from lab.stages.partition import adjusted_rand_index
from lab.stages.untagged import Untagged, agentic_sql, recorded, truth

NUM_QUESTIONS = 60
PROMPT_SIZES = {"2 KiB": 2 << 10, "50 KiB": 50 << 10}
NUM_TIMED = 300
NUM_ROUNDS = 5

Figures = dict[str, Any]


def measure(folder: Path | None, num_calls: int, num_variants: int, seed: int, announce: Announce) -> Figures:
    """Return all figures: ``by_data``, ``by_kind`` and ``microseconds``."""
    by_data = {}
    for name, calls in _data(folder, num_calls, seed):
        announce(f"{name}: {len(calls)} calls")
        by_data[name] = _of_data(calls, seed)
    by_kind = growth.of_kinds(num_variants, announce)
    announce("the hot path")
    return {"by_data": by_data, "by_kind": by_kind, "microseconds": hot_path(seed)}


def hot_path(seed: int) -> dict[str, dict[str, float]]:
    """Return microseconds of CPU per request, by size of the system prompt and by what matches it."""
    return {name: _of_size(num_chars, Random(f"stages {seed}")) for name, num_chars in PROMPT_SIZES.items()}


def _data(folder: Path | None, num_calls: int, seed: int) -> Iterator[tuple[str, list[Untagged]]]:
    yield "agentic_sql", agentic_sql(NUM_QUESTIONS, seed)
    yield from workloads(seed).items()
    for path in traces.files(folder) if folder else ():
        yield path.name.removesuffix(".jsonl.gz"), recorded(path, num_calls, seed)


def _of_data(calls: Sequence[Untagged], seed: int) -> Figures:
    """Return figures of one data set; ``ari`` is None if all calls are of one stage."""
    stages = truth(calls)
    other_order = list(range(len(calls)))
    Random(f"order {seed}").shuffle(other_order)
    figures: Figures = {
        "num_calls": len(calls),
        "num_stages": len(set(stages)),
        "num_told": len({call.stage for call in calls}),
    }
    methods: dict[str, Callable[[], Method]] = {"ours": Ours}
    if has_drain():
        methods["drain3"] = Drain
    for name, make in methods.items():
        first, again = make(), make()
        served, microseconds = _timed(first, calls)
        for index in other_order:
            again.see(calls[index].body, calls[index].answer)
        found = [first.label(call.body) for call in calls]
        figures[name] = {
            "num_found": len(set(found)),
            "ari": adjusted_rand_index(stages, found) if len(set(stages)) > 1 else None,
            "ari_of_another_order": adjusted_rand_index(found, [again.label(call.body) for call in calls]),
            "share_served_as_found": _share(served, found),
            "microseconds": microseconds,
        }
    return figures


def _share(served: Sequence[str], found: Sequence[str]) -> float:
    return sum(one == other for one, other in zip(served, found, strict=True)) / len(found)


def _timed(method: Method, calls: Sequence[Untagged]) -> tuple[list[str], float]:
    """Return each call's group on arrival, and microseconds of CPU per distinct prompt."""
    served, seen, busy_s = [], set(), 0.0
    for call in calls:
        features = read_features(call.body)
        prompt = features and (features.text, features.cue, features.tools, features.schema)
        begun_s = time.thread_time()
        served.append(method.see(call.body, call.answer))
        if prompt not in seen:
            busy_s += time.thread_time() - begun_s
            seen.add(prompt)
    return served, 1e6 * busy_s / len(seen)


def _of_size(num_chars: int, rng: Random) -> dict[str, float]:
    """``seen``: exact repeat; ``masked``: differs in a number; ``template``: in a slot; ``new``: no match."""
    discovery = Discovery(in_background=False)
    head, tail = sentences(rng, 40), sentences(rng, num_chars // 6)[:num_chars]
    tools = [{"type": "function", "function": {"name": f"tool_{letter}"}} for letter in "abcdefgh"]

    def body(system: str) -> Mapping[str, Any]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": sentences(rng, 30)}]
        return {"messages": messages, "tools": tools}

    def with_slot() -> Mapping[str, Any]:
        return body(f"{head} {sentences(rng, 2)} {tail}")

    for _ in range(20):
        discovery.stage_of("bench", with_slot())
        discovery.catch_up()
    known = body(f"Ticket 0. {tail}")
    discovery.stage_of("bench", known)
    discovery.catch_up()
    numbers = iter(range(1, 1 << 20))
    ways: dict[str, Callable[[], Mapping[str, Any]]] = {
        "seen": lambda: known,
        "masked": lambda: body(f"Ticket {next(numbers)}. {tail}"),
        "template": with_slot,
        "new": lambda: body(sentences(rng, num_chars // 6)[:num_chars]),
    }
    return {name: _microseconds(discovery, make) for name, make in ways.items()}


def _microseconds(discovery: Discovery, make: Callable[[], Mapping[str, Any]]) -> float:
    """Return microseconds per call, the minimum over some rounds."""
    rounds = []
    for _ in range(NUM_ROUNDS):
        bodies = [make() for _ in range(NUM_TIMED // NUM_ROUNDS)]
        begun_s = time.thread_time()
        for body in bodies:
            discovery.stage_of("bench", body)
        rounds.append((time.thread_time() - begun_s) / len(bodies))
    return 1e6 * min(rounds)
