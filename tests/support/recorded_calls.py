"""Made-up recorded calls as token ids; sessions repeat themselves, so that there is something to draft."""

from __future__ import annotations

import numpy as np

from benchmarks.gpu.calls import Call, Calls, Load, Sizes

NUM_IDS = 200
NUM_CALLS_PER_SESSION = 2
LOADS = (Load("past", 2, 1, is_past=True), Load("3", 3, 1), Load("1", 1, 1))
SIZES = Sizes(LOADS, most_prompt=60, most_response=40)


def repetitive_calls(num_sessions: int = 4, seed: int = 0) -> Calls:
    """Return ``num_sessions`` sessions for each load; a response has parts of its prompt and of others."""
    rng = np.random.default_rng(seed)
    phrases = rng.integers(0, NUM_IDS - 1, (6, 12), dtype=np.int32)
    calls: list[Call] = []
    sessions: dict[str, list[list[int]]] = {}
    for load in LOADS:
        sessions[load.name] = []
        for number in range(num_sessions):
            session = [_call(f"{load.name}-{number}", phrases, rng) for _ in range(NUM_CALLS_PER_SESSION)]
            sessions[load.name].append([*range(len(calls), len(calls) + len(session))])
            calls += session
    return Calls(calls, sessions, SIZES, NUM_IDS)


def _call(session: str, phrases: np.ndarray, rng: np.random.Generator) -> Call:
    noise = rng.integers(0, NUM_IDS - 1, int(rng.integers(1, 30)), dtype=np.int32)
    first, second = rng.integers(0, len(phrases), 2)
    end = np.array([NUM_IDS - 1], np.int32)
    response = np.concatenate([phrases[first], noise[:3], phrases[second], end])
    return Call(f"made/up{first % 2}", session, np.concatenate([noise, phrases[second]]), response)
