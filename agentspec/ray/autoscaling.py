"""The number of engines: by requests in flight, and by how many tokens a decode step gives."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from ray.serve.autoscaling_policy import replica_queue_length_autoscaling_policy
from ray.serve.config import AutoscalingContext

from agentspec.stages import StageKey
from agentspec.stats import StageStats

RECENT_TOKENS_PER_STEP = "recent_tokens_per_step"
MOST_SPEED = 2.0  # the default target is half of the requests that an engine takes


class RecentSpeed:
    """Tokens after the first ones, per decode step since the last look, from counters that only grow."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._num_accepted = 0
        self._speed = 1.0

    def update(self, stages: Mapping[StageKey, StageStats]) -> float:
        """Return the tokens per step since the last call; without any step, the last value."""
        num_steps = sum(stage.num_steps for stage in stages.values())
        num_accepted = sum(stage.num_accepted_tokens for stage in stages.values())
        if num_steps > self._num_steps:
            self._speed = 1 + (num_accepted - self._num_accepted) / (num_steps - self._num_steps)
        self._num_steps, self._num_accepted = num_steps, num_accepted
        return self._speed


def engines_wanted(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Return the number of engines for the load, as Serve's own policy does, divided by their speed.

    An engine that accepts two tokens per step ends its requests twice as fast, so it may have twice the
    requests in flight. Speed counts up to ``MOST_SPEED``.

    Args:
        context: Serve's, with the replicas' ``record_autoscaling_stats``.

    Returns:
        The number, not rounded, and the policy's state.
    """
    wanted, state = replica_queue_length_autoscaling_policy(context)
    return wanted / _speed(context), state


def _speed(context: AutoscalingContext) -> float:
    by_replica = (context.aggregated_metrics or {}).get(RECENT_TOKENS_PER_STEP) or {}
    return min(MOST_SPEED, max(1.0, fmean(by_replica.values()))) if by_replica else 1.0
