"""vLLM's own counters: parsed from its text, compared between two moments, as rates."""

from __future__ import annotations

import pytest

from benchmarks.vllm.counters import Counters

METRICS = """\
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 90.0
vllm:generation_tokens_total{engine="1",model_name="m"} 10.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 2.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 100.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 70.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="m"} 40.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 40.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 500.0
"""


def test_labels_are_summed_up_and_what_is_missing_is_none() -> None:
    assert Counters.parse(METRICS) == Counters(
        num_requests=5,
        num_output_tokens=100,
        num_draft_tokens=100,
        num_accepted_tokens=70,
        num_preemptions=0,
        num_batches=40,
    )


def test_steps_without_a_draft_are_steps() -> None:
    counted = Counters.parse(METRICS)
    assert counted.num_steps == 100 - 5 - 70
    assert counted.accepted_per_step == pytest.approx(95 / 25)
    assert counted.acceptance_rate == pytest.approx(0.7)


def test_between_two_moments() -> None:
    assert Counters(5, 100, 50, 20, 3, 40) - Counters(1, 40, 10, 5, 1, 30) == Counters(4, 60, 40, 15, 2, 10)


def test_of_two_servers() -> None:
    assert Counters(5, 100, 50, 20, 3, 40) + Counters(1, 40, 10, 5) == Counters(6, 140, 60, 25, 3, 40)


def test_nothing_was_decoded() -> None:
    assert Counters().accepted_per_step == 0
    assert Counters().acceptance_rate == 0
