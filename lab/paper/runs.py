"""Runs: a method replayed on a sample of calls, or a measurement of its texts; and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from agentspec._native import ForestCore
from agentspec.draft import Source
from agentspec.replay import jobs
from agentspec.replay.drafter import Drafter, ForestDrafter
from agentspec.replay.methods import LEARNED_SOURCES, Method, Rule
from agentspec.replay.replay import replay
from agentspec.replay.tally import Tally, total
from lab.paper.samples import Sample
from lab.replay.entropy import entropy_by_stage
from lab.replay.methods import METHODS

ByStage = dict[str, Tally]
PAPER_RULE = Rule("chain", 32, 4.0, 0.1)  # defaults of `agentspec replay`; vLLM's smallest probability
LEARNED_RULE = Rule("chain", 32, min_prob=0.1)

# the shipped prior has seen these calls
_UNTRAINED = ForestCore.untrained_model_state()


def _learned(rule: Rule, sources: tuple[Source, ...]) -> ForestDrafter:
    return ForestDrafter(replace(rule.draft, rule="learned"), sources, prior=_UNTRAINED)


VARIANTS: Mapping[str, Method] = {
    "learned": Method(METHODS["learned"].summary, lambda rule: _learned(rule, LEARNED_SOURCES)),
    "learned-request": Method(
        "learned, the request's tree alone",
        lambda rule: _learned(rule, ()),
    ),
    "learned-stage": Method(
        "learned, the request's tree and one per stage",
        lambda rule: _learned(rule, (Source.STAGE,)),
    ),
}


class Run(Protocol):
    """A unit of work for one process. Equal runs are done once."""

    @property
    def sample(self) -> Sample:
        """The main sample of the run."""

    def num_calls(self) -> int:
        """Return the number of calls to replay."""

    def outcome(self) -> Any:
        """Do the work and return its outcome."""


Outcomes = Mapping[Any, Any]  # by run


@dataclass(frozen=True, slots=True)
class Replay:
    """A method replayed on a sample.

    Attributes:
        before: samples replayed and learned first.
        learns: False: the sample's outputs are kept out of the shared trees.
        chunk: number of calls in each separately counted chunk; None = one chunk.
    """

    sample: Sample
    method: str
    rule: Rule = PAPER_RULE
    before: tuple[Sample, ...] = ()
    learns: bool = True
    chunk: int | None = None

    def num_calls(self) -> int:
        """Return the number of calls, including those before."""
        return sum(sample.size() for sample in (*self.before, self.sample))

    def outcome(self) -> list[ByStage]:
        """Return the counts of each chunk."""
        drafter = _make(self.method, self.rule)
        for sample in self.before:
            replay(sample.calls(), drafter, progress=jobs.reporter())
        if not self.learns:
            assert isinstance(drafter, ForestDrafter)
            drafter.learns = False
        calls = self.sample.calls()
        chunk = self.chunk or max(len(calls), 1)
        return [
            replay(calls[begin : begin + chunk], drafter, progress=jobs.reporter())
            for begin in range(0, len(calls), chunk)
        ]


@dataclass(frozen=True, slots=True)
class Texts:
    """Statistics of a sample's responses."""

    sample: Sample

    def num_calls(self) -> int:
        """Return 0: no call is replayed."""
        return 0

    def outcome(self) -> dict[str, Any]:
        """Return the number of calls, mean response length in tokens, and entropy by stage in bits."""
        outputs = self.sample.outputs()
        entropy = entropy_by_stage(outputs)
        return {
            "num_calls": len(outputs),
            "response_tokens": sum(len(call.response) for call in outputs) / max(len(outputs), 1),
            "entropy_bits": entropy,
        }


def done(runs: Sequence[Run], num_processes: int) -> Outcomes:
    """Return the outcomes of runs, distributed over processes; progress is shown on stderr."""
    ordered = sorted(dict.fromkeys(runs), key=lambda run: (-run.num_calls(), run.sample.path))
    num_calls = sum(run.num_calls() for run in ordered)
    outcomes = jobs.share_out(_outcome, [(run,) for run in ordered], num_processes, num_calls)
    return dict(zip(ordered, outcomes, strict=True))


def whole(outcome: Sequence[ByStage]) -> Tally:
    """Return the total of all chunks and stages."""
    return total(tally for by_stage in outcome for tally in by_stage.values())


def _make(method: str, rule: Rule) -> Drafter:
    return {**METHODS, **VARIANTS}[method].make(rule)


def _outcome(run: Run) -> Any:
    return run.outcome()
