"""The plugin's time saved, with steps of a known cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentspec.forest import RowStep
from agentspec.stages import StageKey
from agentspec.stats import StageStats
from agentspec.vllm_plugin import planner
from agentspec.vllm_plugin.v1.proposer import ForestProposer
from tests.vllm_plugin.support.runner import EOS, Request, Runner, request, vllm_config

TEXT = [*range(100, 140), EOS]
STEP_S, REQUEST_S, DRAFT_S = 0.002, 0.001, 0.0001


class TimedRunner(Runner):
    """A runner with steps of 2 ms, plus 1 ms per request and 0.1 ms per draft token."""

    now_s = 100.0

    def _place(self, rows: Sequence[Request]) -> None:
        super()._place(rows)
        num_drafted = sum(len(one.draft) for one in rows)
        self.now_s += STEP_S + REQUEST_S * len(rows) + DRAFT_S * num_drafted


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> TimedRunner:
    runner: TimedRunner

    class Timed(RowStep):
        """A step at the time of the runner's clock."""

        begin_s = property(lambda _: runner.now_s)
        took_s = 0.0

    monkeypatch.setattr(planner, "RowStep", Timed)
    proposer = ForestProposer(vllm_config(), clock=lambda: runner.now_s)
    runner = TimedRunner(proposer)
    return runner


def figures(runner: Runner) -> StageStats:
    return runner.drafter.stages.all[StageKey.parse("sql/write")]


def test_one_request_at_a_time(runner: TimedRunner) -> None:
    for name in ("r0", "r1", "r2"):
        runner.add(request(name, TEXT, stage="sql/write"))
        runner.run(name)
        runner.step([])
    stats = figures(runner)
    assert stats.num_accepted_tokens > 50
    true_s = (STEP_S + REQUEST_S) * stats.num_accepted_tokens - DRAFT_S * stats.num_draft_tokens
    assert stats.saved_s == pytest.approx(true_s, rel=0.05)
    runner.drafter.close()


def test_without_drafts_nothing_is_saved(runner: TimedRunner) -> None:
    runner.add(*(request(name, TEXT, stage="sql/write", max_draft=0) for name in ("r0", "r1")))
    for _ in range(20):
        runner.step()
    stats = figures(runner)
    assert stats.measured_decode_s > 0
    assert stats.saved_s == pytest.approx(0)
    runner.drafter.close()
