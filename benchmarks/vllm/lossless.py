"""Outputs with the plugin and without, compared token by token in all scenarios.

The reference is vLLM without speculation at the first of the numbers of clients, one by default. Runs without
speculation at the other numbers are compared with it too: their differences are vLLM's own rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from agentspec.reporting.report import Announce
from agentspec.vllm_plugin.launch import DEFAULT_MAX_DRAFT
from benchmarks.vllm.chats import Chat, load
from benchmarks.vllm.client import Answer, ask_all
from benchmarks.vllm.counters import Counters
from benchmarks.vllm.differences import (
    TIE_NATS,
    Difference,
    differences,
    gap_nats,
    logprob_gap,
)
from benchmarks.vllm.scenarios import SCENARIOS, Scenario
from benchmarks.vllm.server import Server
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import NONE, Engine, Speculator

SEED = 11
PRICE = 0.02  # almost 0, so that it drafts under any load: without drafts there is little to compare
OURS = Speculator("agentspec", num_tokens=DEFAULT_MAX_DRAFT, settings={"price": PRICE})


References = dict[str, list[Answer]]  # by scenario, without speculation


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of all chats, with a fixed number of concurrent requests."""

    num_clients: int
    answers: list[Answer]
    counted: Counters


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pass against the reference."""

    scenario: str
    speculator: str
    num_clients: int
    num_chats: int
    num_tokens: int
    num_different: int
    num_ties: int
    logprob_gap: float
    counted: Counters

    @property
    def is_identical(self) -> bool:
        """True if no token differs."""
        return not self.num_different


def measure(
    engine: Engine,
    sizes: Sizes,
    log_dir: Path,
    announce: Announce,
    scenarios: Sequence[Scenario] = SCENARIOS,
    *,
    reference: Engine | None = None,
) -> dict[str, Any]:
    """Run every scenario with every number of clients; return the figures for the JSON.

    Args:
        reference: runs without speculation, only at the first number of clients; None = the engine, at all.

    Raises:
        AgentSpecError: a server did not start, or refused a request.
    """
    chats = load(sizes.num_chats, SEED)
    comparisons: list[Comparison] = []
    for flags, alike in groupby(scenarios, attrgetter("flags")):
        references: References = {}
        same_server = list(alike)
        for speculator in (NONE, OURS):
            announce(f"lossless, {speculator.name}: {', '.join(one.name for one in same_server)}")
            is_reference = speculator is NONE and reference is not None
            num_clients = sizes.num_clients[:1] if is_reference else sizes.num_clients
            server_engine = (reference or engine) if speculator is NONE else engine
            with server_engine.serving(speculator, log_dir, *flags) as server:
                for scenario in same_server:
                    comparisons += compare(server, scenario, speculator, chats, num_clients, references)
    return figures(comparisons)


def compare(
    server: Server,
    scenario: Scenario,
    speculator: Speculator,
    chats: Sequence[Chat],
    num_clients: Sequence[int],
    references: References,
) -> list[Comparison]:
    """Compare one scenario with every number of clients; its first outputs become the references."""
    asked = [scenario.change(chat) for chat in chats]
    passes = [_ask(server, scenario, asked, number) for number in num_clients]
    if scenario.name not in references:
        references[scenario.name] = _reference(server, scenario, asked, passes)
    return [_judge(server, scenario, speculator, asked, references[scenario.name], one) for one in passes]


def figures(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return totals, and the figures of each comparison."""
    ours = [one for one in comparisons if one.speculator == OURS.name]
    theirs = [one for one in comparisons if one.speculator == NONE.name]
    preempts = {one.name for one in SCENARIOS if one.preempts}
    return {
        "outputs_identical": all(one.is_identical for one in ours),
        "num_prompts": min(one.num_chats for one in ours),
        "num_different": sum(one.num_different for one in ours),
        "num_ties": sum(one.num_ties for one in ours),
        "num_different_without": sum(one.num_different for one in theirs),
        "num_preemptions": sum(one.counted.num_preemptions for one in ours if one.scenario in preempts),
        "tie_nats": TIE_NATS,
        "comparisons": [asdict(one) for one in comparisons],
    }


def _ask(server: Server, scenario: Scenario, chats: Sequence[Chat], num_clients: int) -> Pass:
    before = server.counters()
    answers = ask_all(server.url, chats, num_clients, scenario.leaves)
    return Pass(num_clients, answers, server.counters() - before)


def _reference(
    server: Server, scenario: Scenario, chats: Sequence[Chat], passes: Sequence[Pass]
) -> list[Answer]:
    """Return whole outputs; where clients left, ask again with clients that stay."""
    if not any(map(scenario.leaves, chats)):
        return passes[0].answers
    return ask_all(server.url, chats, passes[0].num_clients)


def _judge(
    server: Server,
    scenario: Scenario,
    speculator: Speculator,
    chats: Sequence[Chat],
    references: Sequence[Answer],
    one: Pass,
) -> Comparison:
    cut = [scenario.leaves(chat) is not None for chat in chats]
    found = differences(chats, references, one.answers, cut=cut)
    return Comparison(
        scenario.name,
        speculator.name,
        one.num_clients,
        len(chats),
        sum(answer.num_tokens for answer in one.answers),
        len(found),
        sum(is_tie(server.url, difference) for difference in found),
        logprob_gap(references, one.answers),
        one.counted,
    )


def is_tie(url: str, difference: Difference) -> bool:
    """True if the model finds both tokens equally likely, but for rounding."""
    if difference.expected is None or difference.found is None:
        return False
    gap = gap_nats(url, difference)
    return gap is not None and gap < TIE_NATS
