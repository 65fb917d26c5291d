"""The gains of one run, by stage: the gateway's counters after it, less those before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentspec.commands.gateway_call import table
from agentspec.stats import saved_seconds, tokens_per_step

COUNTERS = (
    *("num_requests", "num_prompt_tokens", "num_output_tokens", "num_steps"),
    *("num_draft_tokens", "num_accepted_tokens", "decode_s", "measured_decode_s", "plain_decode_s"),
)
COLUMNS = ("stage", "calls", "output tokens", "tokens per step", "accepted", "request time saved")
ALL = "all"
NOTHING = "-"

Figures = dict[str, Any]


def gained(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[Figures]:
    """Return the stages with requests in between, with the differences of their counters.

    Args:
        before, after: the gateway's figures. If the engine restarted, its counters did too.
    """
    known = {stage["stage"]: stage for stage in before}
    gains = [_gain(known.get(stage["stage"], {}), stage) for stage in after]
    return [gain for gain in gains if gain["num_requests"]]


def summed(stages: Iterable[Mapping[str, Any]]) -> Figures:
    """Return the sum of all stages. Request time saved is known if their decode time was measured."""
    stages = list(stages)
    return _with_rates({name: sum(stage[name] for stage in stages) for name in COUNTERS})


def shown(stages: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the stages and their total."""
    rows = [_row(stage["stage"], stage) for stage in stages]
    return table(COLUMNS, [*rows, _row(ALL, summed(stages))])


def _gain(before: Mapping[str, Any], after: Mapping[str, Any]) -> Figures:
    now = {name: after.get(name, 0) for name in COUNTERS}  # an older gateway has fewer
    began_anew = any(value < before.get(name, 0) for name, value in now.items())
    counters = {name: value - (0 if began_anew else before.get(name, 0)) for name, value in now.items()}
    return {"stage": after["stage"], **_with_rates(counters)}


def _with_rates(counters: Mapping[str, Any]) -> Figures:
    steps, drafted, accepted = (
        counters[name] for name in ("num_steps", "num_draft_tokens", "num_accepted_tokens")
    )
    return {
        **counters,
        "accepted_per_step": tokens_per_step(steps, accepted, counters["num_output_tokens"]),
        "acceptance_rate": accepted / drafted if drafted else None,
        "saved_request_s": saved_seconds(
            counters["measured_decode_s"], counters["plain_decode_s"], counters["decode_s"]
        ),
    }


def time_saved(seconds: float) -> str:
    """Return the saved request time in the form for tables."""
    text = f"{abs(seconds):.1f} s"
    return text if seconds > -0.05 else f"{text} lost"


def _row(name: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    per_step, accepted, saved = (
        figures[field] for field in ("accepted_per_step", "acceptance_rate", "saved_request_s")
    )
    return (
        name,
        str(figures["num_requests"]),
        str(figures["num_output_tokens"]),
        NOTHING if per_step is None else f"{per_step:.2f}",
        NOTHING if accepted is None else f"{accepted:.0%}",
        NOTHING if saved is None else time_saved(saved),
    )
