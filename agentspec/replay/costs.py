"""The cost of a verified draft token on several machines, and the speed-up by drafts."""

from __future__ import annotations

from collections.abc import Mapping

from agentspec.replay.tally import Tally

# In plain decode steps. A GPU with few clients waits for its memory; each client adds computation.
ROW_COSTS: Mapping[float, str] = {
    0.005: "a GPU with one client",
    0.01: "a GPU with 8 clients",
    0.05: "a GPU with 64 clients",
    0.1: "a CPU",
}
TYPICAL = 0.01  # of these, the one that is named first
_TYPICAL_SPEEDUP = 2.0


def speedup(tally: Tally, row_cost: float) -> float:
    """Return the speed-up over decoding without drafts.

    A step that verifies k draft tokens costs 1 + c * k plain steps. Drafting counts as free: it takes
    microseconds, and a step takes milliseconds.
    """
    return tally.tokens_per_step / (1 + row_cost * tally.drafted_per_step)


def fitting_price(row_cost: float) -> float:
    """Return the price of a draft token, in accepted tokens, for a cost in plain decode steps.

    It is what the engine gives in that time (docs/drafting.md), with drafts twice as fast as without.
    """
    return min(1.0, _TYPICAL_SPEEDUP * row_cost)
