"""What a comparison found: the runs with their times, and how many outputs are identical."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentspec.commands.compare.proxy import Call, canonical, is_sampled
from agentspec.commands.gateway_call import table
from agentspec.errors import RequestError
from agentspec.gateway.telemetry.recorder import recorded_response

COLUMNS = ("run", "wall time", "in requests", "calls", "output tokens", "tokens per step", "accepted")
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the program.

    Attributes:
        has_drafts: False for a run without drafts and without learning.
        wall_s: from the start of the program to its end.
        calls: its calls, answered or not.
        figures: the gains of the gateway's counters, summed over all stages.
    """

    has_drafts: bool
    wall_s: float
    calls: Sequence[Call]
    figures: dict[str, Any]

    @property
    def request_s(self) -> float:
        """Sum of the seconds of all requests; parallel ones count each."""
        return sum(call.seconds for call in self.calls)

    @property
    def num_answered(self) -> int:
        """Calls with status 200."""
        return sum(call.status == 200 for call in self.calls)


@dataclass(frozen=True, slots=True)
class Outputs:
    """How the answers of two runs compare; each call is in one count.

    Attributes:
        num_identical, num_different: calls with the same request in both runs.
        num_sampled: calls that sample without a seed: any two runs differ.
        num_alone: calls with a request that only one run made.
        num_unread: calls that failed, were not read to their end, or have no text or tool calls to compare.
    """

    num_identical: int = 0
    num_different: int = 0
    num_sampled: int = 0
    num_alone: int = 0
    num_unread: int = 0


def compared_outputs(without: Iterable[Call], with_drafts: Iterable[Call]) -> Outputs:
    """Compare the answers to equal requests of two runs, in any order."""
    first, second = _outputs(without), _outputs(with_drafts)
    counts = Counter[str]()
    for request in first.keys() | second.keys():
        here, there = first.get(request, Counter()), second.get(request, Counter())
        num_both = min(here.total(), there.total())
        num_identical = (here & there).total()
        counts["num_alone"] += abs(here.total() - there.total())
        if request.is_sampled:
            counts["num_sampled"] += num_both
        elif UNREAD in here or UNREAD in there:
            counts["num_unread"] += num_both
        else:
            counts["num_identical"] += num_identical
            counts["num_different"] += num_both - num_identical
    return Outputs(**counts)


@dataclass(frozen=True, slots=True)
class _Request:
    path: str
    body: str
    is_sampled: bool


UNREAD = ""


def _outputs(calls: Iterable[Call]) -> dict[_Request, Counter[str]]:
    outputs: dict[_Request, Counter[str]] = defaultdict(Counter)
    for call in calls:
        outputs[_Request(call.path, canonical(call.body), is_sampled(call.body))][_output(call)] += 1
    return outputs


def _output(call: Call) -> str:
    """Return text, tool calls and ends of the choices; ``UNREAD`` if there are none."""
    if call.status != 200:
        return UNREAD
    try:
        choices = recorded_response(call.path, call.answer)["choices"]
    except (RequestError, ValueError, LookupError, TypeError, AttributeError):
        return UNREAD
    for choice in choices:
        for made in choice["message"].get("tool_calls", ()):
            made.pop("id", None)  # made up for each answer
    return json.dumps(choices, sort_keys=True)


def shown(runs: Sequence[Measured], outputs: Outputs) -> str:
    """Return the table of the runs, and the sentences below it."""
    return "\n".join([table(COLUMNS, [_row(run) for run in runs]), *_sentences(runs, outputs)])


def summary(runs: Sequence[Measured], outputs: Outputs) -> dict[str, Any]:
    """Return the comparison for a JSON file: seconds, the gateway's counters, and speed-ups as ratios."""
    return {"outputs": asdict(outputs), "runs": [_figures(run, runs) for run in runs]}


def _figures(run: Measured, runs: Sequence[Measured]) -> dict[str, Any]:
    wall, requests = _speed_ups(run, runs) if run.has_drafts else (None, None)
    return {
        "has_drafts": run.has_drafts,
        "wall_s": run.wall_s,
        "request_s": run.request_s,
        "speed_up_wall": wall,
        "speed_up_requests": requests,
        "num_calls": len(run.calls),
        "num_answered": run.num_answered,
        **run.figures,
    }


def _speed_ups(drafted: Measured, runs: Sequence[Measured]) -> tuple[float, float]:
    """Return wall time and time in requests without drafts, over those of this run with drafts.

    Of the runs without drafts the fastest counts: the first one fills the engine's prompt cache, which is no
    merit of drafts.
    """
    plain = [run for run in runs if not run.has_drafts]
    return (
        min(run.wall_s for run in plain) / drafted.wall_s,
        min(run.request_s for run in plain) / drafted.request_s,
    )


def _row(run: Measured) -> tuple[str, ...]:
    per_step, accepted = run.figures["accepted_per_step"], run.figures["acceptance_rate"]
    return (
        "with drafts" if run.has_drafts else "without",
        f"{run.wall_s:.2f} s",
        f"{run.request_s:.2f} s",
        str(len(run.calls)),
        str(run.figures["num_output_tokens"]),
        NOTHING if per_step is None else f"{per_step:.2f}",
        NOTHING if accepted is None else f"{accepted:.0%}",
    )


def _sentences(runs: Sequence[Measured], outputs: Outputs) -> Iterable[str]:
    for number, run in enumerate(runs, 1):
        if run.has_drafts:
            wall, requests = _speed_ups(run, runs)
            yield (
                f"run {number}, with drafts: the program is {wall:.2f} times as fast, its requests"
                f" {requests:.2f} times (against the fastest run without)"
            )
    num_compared = outputs.num_identical + outputs.num_different
    yield f"{outputs.num_identical} of {num_compared} compared outputs are identical"
    if outputs.num_sampled:
        yield f"not compared: {outputs.num_sampled} sampled calls without a seed; set temperature 0 or a seed"
    if outputs.num_alone:
        yield f"not compared: {outputs.num_alone} calls that only one run made, or made more often"
    if outputs.num_unread:
        yield f"not compared: {outputs.num_unread} calls that failed, or whose answer is no text or tool call"
    num_drafted = sum(run.figures["num_draft_tokens"] for run in runs if not run.has_drafts)
    if num_drafted:
        yield (
            f"not a fair comparison: the runs without drafts have {num_drafted} draft tokens. Calls of others"
            " reached the gateway, or calls of the program that do not use the base URL of the environment"
        )
