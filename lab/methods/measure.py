"""All methods on one workload, in turns, on the same calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.reporting.report import Announce
from lab.lane import MAX_MODEL_LEN, Lane, StepClock, take_turns
from lab.methods.budgets import HYBRID, HYBRID_OF_DRAFT_MODEL, against_parts, at_prices
from lab.methods.methods import METHODS, OFF, Method, Target
from lab.methods.sizes import Sizes
from lab.methods.workloads import OPEN, Places, Workload, load

Figures = dict[str, Any]

# of a verified token on a GPU, in plain decode steps. What a head takes is not in it
ROW_COSTS = {"1 client": 0.005, "64 clients": 0.05}
SEEDS = {"cold": 1, "warm": 2}
BUDGETS = "_budgets"  # ends the name of a part


def measure(name: str, places: Places, sizes: Sizes, announce: Announce) -> Figures:
    """Return each method's figures on a workload, or those of the hybrid and its parts at several prices.

    "cold": nothing was learned before. "warm": the same proposers, on other questions after those.

    Raises:
        ConfigError: the example's questions are missing, or the model of open-ended text.
        CheckpointError: a head can't be loaded.
    """
    torch.set_num_threads(1)  # more are slower with the bundled model, and one can be timed
    with_budgets, name = name.endswith(BUDGETS), name.removesuffix(BUDGETS)
    folder, heads = places.model_of(name), places.heads_of(name)
    model, tokenizer = load_model(folder), Tokenizer.load(folder)
    loads = {phase: load(name, places, sizes.num_questions, seed) for phase, seed in SEEDS.items()}
    target = Target(model, heads, loads["cold"].num_slots, MAX_MODEL_LEN)
    hybrid = HYBRID_OF_DRAFT_MODEL if name.startswith(OPEN) else HYBRID
    wanted = at_prices(hybrid) if with_budgets else METHODS
    methods = {key: method for key, method in wanted.items() if method.can_run(heads)}
    missing = sorted(set(wanted) - set(methods))
    if missing:
        announce(f"{name}: without {', '.join(missing)}, for which there are no heads (--heads)")
    clocks = {key: StepClock() for key in methods}
    proposers = {
        key: method.make(replace(target, clock=_standing if with_budgets else clocks[key]))
        for key, method in methods.items()
    }
    found: Figures = {}
    for phase, work in loads.items():
        announce(f"{name}, {phase}: {len(methods)} methods, {len(work.questions)} questions")
        lanes = {
            key: _lane(model, tokenizer, work, method, proposers[key], clocks[key])
            for key, method in methods.items()
        }
        take_turns(list(lanes.values()))
        found[phase] = figures(lanes)
    if with_budgets and not missing:
        found["against_parts"] = {phase: against_parts(found[phase], hybrid) for phase in loads}
    return {**found, "missing": missing}


def _lane(
    model: Any, tokenizer: Tokenizer, work: Workload, method: Method, proposer: Any, clock: StepClock
) -> Lane:
    return Lane(
        model, tokenizer, work.questions, method.draft, 0.0, work.num_clients, proposer, work.num_slots, clock
    )


def _standing() -> float:
    """Return the time by a clock that stands still: a model's drafts cost nothing."""
    return 0.0


def figures(lanes: Mapping[str, Lane]) -> Figures:
    """Return each method's figures, compared with those of no speculation."""
    plain = lanes[OFF]
    return {key: _served(lane, plain) for key, lane in lanes.items()}


def _served(lane: Lane, plain: Lane) -> Figures:
    told = lane.speculation()
    tokens, drafted = told["tokens_per_step"], told["drafted_per_step"]
    return {
        "outputs_identical": lane.outputs == plain.outputs,
        **told,
        "step_ms": 1e3 * lane.cpu_s / lane.num_steps,
        "speedup_cpu": plain.cpu_s / lane.cpu_s,
        "speedup_gpu": {name: tokens / (1 + cost * drafted) for name, cost in ROW_COSTS.items()},
    }
