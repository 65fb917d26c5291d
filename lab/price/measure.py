"""A model's shape under every load: without drafts, at fixed prices, and at the price that is learned."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from agentspec.config import DraftConfig, ForestConfig
from agentspec.errors import ConfigError
from agentspec.forest import Forest
from agentspec.proposer import NoDrafts, Proposer
from agentspec.replay.jobs import name_of
from agentspec.reporting.report import Announce
from benchmarks.harness.traces import files
from lab.lane import Lane, take_turns
from lab.price.shapes import Chosen, Measured
from lab.price.shapes import load as load_shape
from lab.price.sizes import Sizes
from lab.price.work import EngineCall, Work, forced_request, load, stage_key

Figures = dict[str, Any]

OFF, LEARNED = "off", "learned"
DRAFTS = DraftConfig(mode="tree", max_tokens=16, rule="learned", min_prob=0.0)  # as `agentspec serve`
FIXED_PRICES = (0.1, 0.25, 0.5)
PRICES: Mapping[str, float | None] = {
    OFF: 0.0,
    LEARNED: None,
    **{f"fixed {price}": price for price in FIXED_PRICES},
}
NOISE = 0.02  # standard deviation of a round's speed


def measure(shape: str, traces: Path, sizes: Sizes, num_calls: int, announce: Announce) -> Figures:
    """Serve at least ``num_calls`` calls of each set, forced to the recorded answers, under each load.

    Raises:
        ConfigError: a set is missing, or has too few calls.
    """
    found = {name_of(path): path for path in files(traces)}
    for name in sizes.sets:
        if name not in found:
            raise ConfigError(f"{str(traces)!r} has no set {name!r}")
    announce(f"{shape}: making the model")
    model = load_shape(Chosen(None, shape))
    cells = {}
    for name in sizes.sets:
        work = load(found[name], sizes.work(num_calls), model.encode)
        if len(work.calls) < (wanted := sizes.work(num_calls).calls):
            raise ConfigError(f"set {name!r} has {len(work.calls)} calls to measure, not {wanted}")
        for num_clients in sizes.num_clients:
            calls = work.calls[: sizes.num_calls(num_clients, num_calls)]
            cell = _cell(model, work, calls, num_clients, sizes)
            cells[f"{name}, {num_clients}"] = cell
            speed, num_rounds = cell[LEARNED]["speed"], len(cell[LEARNED]["speeds"])
            announce(
                f"{shape}, {name}, {num_clients} at a time: {speed:.3f} of the speed without drafts, "
                f"{num_rounds} rounds"
            )
    return {**figures(cells), "by_load": cells}


def _cell(
    model: Measured, work: Work, calls: Sequence[EngineCall], num_clients: int, sizes: Sizes
) -> dict[str, Figures]:
    """Return each variant's means over the rounds of a load, of more rounds if its speed is not clear."""
    rounds = [serve(model, work, calls, num_clients, sizes, number) for number in range(sizes.rounds)]
    until_s = time.monotonic() + sizes.further_s
    while is_unclear(averaged(rounds)[LEARNED]["speeds"]) and time.monotonic() < until_s:
        rounds.append(serve(model, work, calls, num_clients, sizes, len(rounds)))
    return averaged(rounds)


def is_unclear(speeds: Sequence[float]) -> bool:
    """Return True if these rounds do not show whether drafts make a load faster or slower: three errors."""
    return abs(mean(speeds) - 1) < 3 * NOISE / math.sqrt(len(speeds))


def serve(
    model: Measured, work: Work, calls: Sequence[EngineCall], num_clients: int, sizes: Sizes, number: int
) -> dict[str, Figures]:
    """Return each variant's figures in a round.

    All variants take turns, each round in another order by chance: where a lane's memory lies, and which
    lane runs before it, changes its speed by up to 2 %.
    """
    requests = [[forced_request(f"call {i}", call)] for i, call in enumerate(calls)]
    names = random.Random(number).sample([*PRICES], len(PRICES))
    lanes = {
        name: Lane(
            model.model,
            model.tokenizer,
            requests,
            DraftConfig(mode="off") if name == OFF else DRAFTS,
            PRICES[name],
            num_clients,
            _proposer(name, work),
            max_len=sizes.prompt_tokens + sizes.output_tokens + DRAFTS.max_tokens + 2,
        )
        for name in names
    }
    take_turns(list(lanes.values()))
    return {
        name: {
            "tokens_per_s": _rate(lanes[name]),
            "price": lanes[name].price,
            "outputs_identical": _are_recorded(lanes[name].outputs, calls),
            **lanes[name].speculation(),
        }
        for name in PRICES
    }


def averaged(rounds: Sequence[Mapping[str, Figures]]) -> dict[str, Figures]:
    """Return each variant's means over the rounds, and its speed by that without drafts."""
    speeds = {
        name: [one[name]["tokens_per_s"] / one[OFF]["tokens_per_s"] for one in rounds] for name in PRICES
    }
    return {
        name: {
            **{key: mean(one[name][key] for one in rounds) for key in rounds[0][name]},
            "outputs_identical": all(one[name]["outputs_identical"] for one in rounds),
            "speed": mean(speeds[name]),
            "speeds": speeds[name],
        }
        for name in PRICES
    }


def figures(cells: Mapping[str, Mapping[str, Figures]]) -> Figures:
    """Return the learned price against no drafts, and against the fixed price that is best on the mean."""
    speeds = {name: [cell[name]["speed"] for cell in cells.values()] for name in PRICES}
    best = max(mean(speeds[name]) for name in PRICES if name not in (OFF, LEARNED))
    return {
        "price_vs_none_min": min(speeds[LEARNED]),
        "price_vs_best_fixed_mean": mean(speeds[LEARNED]) / best,
        "outputs_identical": all(
            one["outputs_identical"] for cell in cells.values() for one in cell.values()
        ),
    }


def _proposer(name: str, work: Work) -> Proposer:
    if name == OFF:
        return NoDrafts()
    forest = Forest(ForestConfig(), learns_later=True)
    for stage, output in work.history:
        forest.learn(stage_key(stage), output)
    return forest


def _rate(lane: Lane) -> float:
    """Return tokens per second of the steps in which all calls decode.

    With the others, drafts would seem slow: they end at different times, so most calls of the last ones have
    read their prompts but not ended, where without drafts they end together. By wall time: what a thread
    learns while the model runs counts as far as it delays a step.
    """
    return lane.decoded.num_tokens / lane.decoded.wall_s


def _are_recorded(outputs: Mapping[str, Sequence[int]], calls: Sequence[EngineCall]) -> bool:
    return all(
        list(outputs[f"call {i}"][: len(call.response)]) == call.response.tolist()
        for i, call in enumerate(calls)
    )
