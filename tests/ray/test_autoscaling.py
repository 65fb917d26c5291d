"""The policy with Serve's own context: no cluster is started."""

from __future__ import annotations

import pytest

from agentspec.stages import StageKey
from agentspec.stats import StageStats


def wanted(num_requests: float, speeds: dict[str, float], num_engines: int = 2) -> float:
    from ray.serve._private.common import DeploymentID
    from ray.serve.config import AutoscalingConfig, AutoscalingContext

    from agentspec.ray.autoscaling import RECENT_TOKENS_PER_STEP, engines_wanted

    context = AutoscalingContext(
        deployment_id=DeploymentID("engine"),
        deployment_name="engine",
        app_name="agentspec",
        current_num_replicas=num_engines,
        target_num_replicas=num_engines,
        running_replicas=[],
        total_num_requests=num_requests,
        total_queued_requests=0.0,
        aggregated_metrics={RECENT_TOKENS_PER_STEP: speeds} if speeds else {},
        raw_metrics={},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=16,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=0.0,
        config=AutoscalingConfig(min_replicas=1, max_replicas=16, target_ongoing_requests=4),
    )
    return engines_wanted(context)[0]


@pytest.mark.parametrize(
    ("num_requests", "speeds", "expected"),
    [
        (16, {}, 4),  # nothing reported yet
        (16, {"a": 1.0, "b": 1.0}, 4),
        (16, {"a": 1.0, "b": 2.0}, 4 / 1.5),
        (16, {"a": 6.0, "b": 6.0}, 2),  # not below half
        (0, {"a": 2.0}, 0),
    ],
)
def test_fast_engines_get_more_requests(num_requests, speeds, expected):
    assert wanted(num_requests, speeds) == pytest.approx(expected)


def test_speed_is_of_the_steps_since_the_last_look():
    from agentspec.ray.autoscaling import RecentSpeed

    recent, stage = RecentSpeed(), StageKey.parse("a/b")
    assert recent.update({}) == 1.0
    assert recent.update({stage: StageStats(num_steps=10, num_accepted_tokens=10)}) == 2.0
    assert recent.update({stage: StageStats(num_steps=14, num_accepted_tokens=22)}) == 4.0
    assert recent.update({stage: StageStats(num_steps=14, num_accepted_tokens=22)}) == 4.0
