from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from agentspec.draft import Source
from agentspec.stages import StageKey
from agentspec.stats import OTHER_STAGE, StageStats, StageTable


def test_rates_follow_from_the_sums() -> None:
    stats = StageStats(num_steps=10, num_draft_tokens=40, num_accepted_tokens=30)
    assert (stats.acceptance_rate, stats.accepted_per_step) == (0.75, 4.0)
    assert (StageStats().acceptance_rate, StageStats().accepted_per_step) == (0.0, 0.0)
    ended_with_the_prompt = StageStats(num_output_tokens=12, num_accepted_tokens=9)
    assert ended_with_the_prompt.accepted_per_step == 4.0  # three passes


def test_a_tenant_that_invents_stages_crowds_nobody_else() -> None:
    table = StageTable(StageStats, max_stages=2)
    for name in ("a", "b", "c", "d", "a"):
        table.of(StageKey("loud", (name,))).num_requests += 1
    table.of(StageKey("quiet", ("a",))).num_requests += 1
    counted = {str(stage): stats.num_requests for stage, stats in table.all.items()}
    assert counted == {"loud:a": 2, "loud:b": 1, f"loud:{OTHER_STAGE}": 2, "quiet:a": 1}


def test_a_sum_has_every_counter_and_leaves_its_parts_as_they_are() -> None:
    numbers = [one.name for one in fields(StageStats) if not one.name.endswith("_by_source")]
    one = StageStats(**{name: number for number, name in enumerate(numbers, 1)})
    other = StageStats(**{name: 100 * number for number, name in enumerate(numbers, 1)})
    one.drafted_by_source = {Source.STAGE: 3}
    other.drafted_by_source, other.accepted_by_source = (
        {Source.STAGE: 4, Source.REQUEST: 5},
        {Source.STAGE: 1},
    )
    before = asdict(one), asdict(other)
    total = StageStats.sum(each for each in (one, other))
    assert [getattr(total, name) for name in numbers] == [
        101 * number for number in range(1, len(numbers) + 1)
    ]
    assert total.drafted_by_source == {Source.STAGE: 7, Source.REQUEST: 5}
    assert total.accepted_by_source == {Source.STAGE: 1}
    total.drafted_by_source[Source.STAGE] = 0
    assert (asdict(one), asdict(other)) == before


def test_the_sum_of_no_counters_is_zero() -> None:
    assert StageStats.sum(()) == StageStats()


@pytest.mark.parametrize(
    ("measured_s", "plain_s", "decode_s", "saved_s"),
    [
        (10.0, 25.0, 10.0, 15.0),
        (8.5, 20.0, 10.0, 11.5),
        (8.4, 20.0, 10.0, None),  # much of the time is not known
        (0.0, 0.0, 10.0, None),
        (0.0, 0.0, 0.0, None),
        (0.0, 2.0, 0.0, 2.0),  # all answers ended in the passes of their prompts
        (10.0, 8.0, 10.0, -2.0),
    ],
)
def test_time_saved_is_known_if_nearly_all_was_measured(
    measured_s: float, plain_s: float, decode_s: float, saved_s: float | None
) -> None:
    stats = StageStats(decode_s=decode_s, measured_decode_s=measured_s, plain_decode_s=plain_s)
    assert stats.saved_s == (None if saved_s is None else pytest.approx(saved_s))
