from __future__ import annotations

from agentspec.stages import StageKey
from agentspec.stats import OTHER_STAGE, StageStats, StageTable


def test_rates_follow_from_the_sums() -> None:
    stats = StageStats(num_steps=10, num_draft_tokens=40, num_accepted_tokens=30)
    assert (stats.acceptance_rate, stats.accepted_per_step) == (0.75, 4.0)
    assert (StageStats().acceptance_rate, StageStats().accepted_per_step) == (0.0, 0.0)


def test_a_tenant_that_invents_stages_crowds_nobody_else() -> None:
    table = StageTable(max_stages=2)
    for name in ("a", "b", "c", "d", "a"):
        table.of(StageKey("loud", (name,))).num_requests += 1
    table.of(StageKey("quiet", ("a",))).num_requests += 1
    counted = {str(stage): stats.num_requests for stage, stats in table.all.items()}
    assert counted == {"loud:a": 2, "loud:b": 1, f"loud:{OTHER_STAGE}": 2, "quiet:a": 1}
