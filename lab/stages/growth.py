"""How discovery does as the traffic of a workflow grows, and what a restart without a file changes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from agentspec.reporting.report import Announce
from lab.stages.methods import Ours
from lab.stages.partition import adjusted_rand_index
from lab.stages.untagged import Untagged
from lab.stages.workflows import KINDS, NUM_TUNED, calls

LEAST_ARI = {250: 0.90, 900: 0.95, 2000: 0.95, 5000: 0.95}  # by number of calls, as served
MOST_FALL = 0.02
NUM_NAMED = 250  # calls after which the names are compared: twelve conversations of each role
NUM_LATEST = 150


def of_kinds(num_variants: int, announce: Announce) -> dict[str, dict[str, Any]]:
    """Return by kind the least figures of its held-back variants."""
    result = {}
    for kind in KINDS:
        announce(f"{kind}: {num_variants} variants, {max(LEAST_ARI)} calls each")
        variants = [of_variant(kind, NUM_TUNED + number) for number in range(num_variants)]
        result[kind] = {
            "num_calls": max(LEAST_ARI),
            "ari": {at: min(one["ari"][at] for one in variants) for at in LEAST_ARI},
            "fall": max(one["fall"] for one in variants),
            "num_stages": [one["num_stages"] for one in variants],
            "num_roles": [one["num_roles"] for one in variants],
            "num_same_names": [one["num_same_names"] for one in variants],
        }
    return result


def of_variant(kind: str, variant: int) -> dict[str, Any]:
    """Return the figures of one variant. ``fall``: the most by which the index fell below a former one."""
    traffic = calls(kind, variant, max(LEAST_ARI))
    ours = Ours()
    served = [ours.see(call.body, call.answer) for call in traffic]
    aris = {at: _ari(traffic[:at], served[:at]) for at in LEAST_ARI}
    values = list(aris.values())
    names, others = _names(traffic[:NUM_NAMED], served), _names_after_restart(kind, variant)
    return {
        "ari": aris,
        "fall": max(max(values[: at + 1]) - value for at, value in enumerate(values)),
        "num_stages": len(set(served[-NUM_NAMED:])),
        "num_roles": len({call.stage for call in traffic}),
        "num_same_names": sum(others.get(role) == name for role, name in names.items()),
    }


def passes(figures: dict[str, Any]) -> bool:
    """True if a kind meets all bars."""
    return (
        all(figures["ari"][at] >= least for at, least in LEAST_ARI.items())
        and figures["fall"] <= MOST_FALL
        and figures["num_same_names"] == figures["num_roles"]
    )


def _ari(traffic: Sequence[Untagged], served: Sequence[str]) -> float:
    return adjusted_rand_index([call.stage for call in traffic], served)


def _names_after_restart(kind: str, variant: int) -> dict[str, str]:
    """Return the names that another process finds without a file, from other sessions of the same roles."""
    other, traffic = Ours(), calls(kind, variant, NUM_NAMED, traffic=1)
    return _names(traffic, [other.see(call.body, call.answer) for call in traffic])


def _names(traffic: Sequence[Untagged], served: Sequence[str]) -> dict[str, str]:
    """Return the stage that served most of the latest calls of each role."""
    by_role: dict[str, Counter[str]] = defaultdict(Counter)
    for call, stage in list(zip(traffic, served, strict=False))[-NUM_LATEST:]:
        by_role[call.stage][stage] += 1
    return {role: stages.most_common(1)[0][0] for role, stages in by_role.items()}
