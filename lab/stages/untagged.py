"""Calls with a known stage but no tag: recorded ones, and those of the text-to-SQL example."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from agentspec.gateway.discovery.fingerprint import read_features
from benchmarks.harness import calls as example
from benchmarks.harness import traces

NUM_LIVE = 8  # concurrent sessions
_TAG = re.compile(r"^<\|([^|>\n]+)\|>\n", re.MULTILINE)
_ROLES = {"human": "user", "developer": "developer", "system": "system", "user": "user"}


@dataclass(frozen=True, slots=True)
class Untagged:
    """A request body without a tag, its stage, and the text that the model answered; empty if unknown."""

    stage: str
    body: dict[str, Any]
    answer: str = ""


def recorded(path: Path, num_calls: int, seed: int) -> list[Untagged]:
    """Return up to ``num_calls`` calls of a trace file, eight sessions interleaved."""
    sessions: dict[str, list[Untagged]] = {}
    for call in traces.calls(path):
        one = Untagged(call["stage"], _body(call["prompt"]), call.get("response", ""))
        sessions.setdefault(call["session"], []).append(one)
    rng = Random(f"stages {seed}")
    chosen = list(sessions.values())
    rng.shuffle(chosen)
    return list(_side_by_side(chosen, num_calls, rng))


def agentic_sql(num_questions: int, seed: int) -> list[Untagged]:
    """Return the example's calls, question by question.

    Raises:
        ConfigError: the example is missing: it is in the repository, not in the package.
    """
    result = []
    for question in example.load(num_questions, seed):
        for request in question:
            is_json = request.sampling.json_schema is not None
            form = {"response_format": {"type": "json_object"}} if is_json else {}
            result.append(Untagged(request.tags.stage.path[-1], {"messages": request.prompt, **form}))
    return result


def truth(calls: Iterable[Untagged]) -> list[str]:
    """Return the stage of each call; stages with the same prompt, word for word, count as one."""
    calls = list(calls)
    leader: dict[str, str] = {}
    first: dict[object, str] = {}

    def find(stage: str) -> str:
        while leader.get(stage, stage) != stage:
            stage = leader[stage]
        return stage

    for call in calls:
        features = read_features(call.body)
        if features is None:
            continue
        seen = (
            tuple(features.text.split()),
            features.cue,
            features.is_system,
            features.tools,
            features.schema,
        )
        one, other = find(first.setdefault(seen, call.stage)), find(call.stage)
        leader[max(one, other)] = min(one, other)
    return [find(call.stage) for call in calls]


def _side_by_side(sessions: list[list[Untagged]], num_calls: int, rng: Random) -> Iterator[Untagged]:
    live: list[list[Untagged]] = []
    while (sessions or live) and num_calls > 0:
        while sessions and len(live) < NUM_LIVE:
            live.append(sessions.pop())
        session = rng.choice(live)
        yield session.pop(0)
        num_calls -= 1
        live = [one for one in live if one]


def _body(prompt: str) -> dict[str, Any]:
    """Return the body a client would send: chat messages if the prompt has roles, else a completion."""
    pieces = _TAG.split(prompt)
    if len(pieces) == 1:
        return {"prompt": prompt}
    body: dict[str, Any] = {"messages": []}
    for role, text in zip(pieces[1::2], pieces[2::2], strict=True):
        if role == "tools":
            body["tools"] = json.loads(text)
        elif text or role != "assistant":
            body["messages"].append({"role": _ROLES.get(role, "assistant"), "content": text})
    return body
