"""Limits of vLLM itself: refused at the start if exceeded. The longest allowed draft is verified."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.vllm_plugin.checks import MOST_DRAFT_TOKENS
from benchmarks.vllm.chats import load
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.speculators import Speculator
from tests.real_vllm.support.started import check, parsed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from the modules that vLLM imports
    from vllm.v1.sample.rejection_sampler import MAX_SPEC_LEN

LONGEST = Speculator("longest", num_tokens=MOST_DRAFT_TOKENS, settings={"price": 0.0})


def check_flags(*flags: str) -> None:
    """Run the worker's check of a server started by hand with these flags."""
    arguments = parsed(flags)
    assert arguments is not None
    check(arguments, {})


def test_the_worker_knows_the_limit_of_its_own_vllm() -> None:
    assert MOST_DRAFT_TOKENS == MAX_SPEC_LEN
    arguments = parsed()
    assert arguments is not None
    check(arguments, {"num_speculative_tokens": MAX_SPEC_LEN})
    with pytest.raises(ConfigError, match=rf"at most {MAX_SPEC_LEN} draft tokens .* not {MAX_SPEC_LEN + 1}"):
        check(arguments, {"num_speculative_tokens": MAX_SPEC_LEN + 1})


def test_pipeline_parallelism_is_refused_with_its_own_reason() -> None:
    with pytest.raises(ConfigError, match="pipeline parallelism"):
        check_flags("--pipeline-parallel-size", "2")


def test_ranks_that_schedule_by_themselves_are_refused() -> None:
    with pytest.raises(ConfigError, match="each rank schedules by itself"):
        check_flags("--distributed-executor-backend", "external_launcher")


@pytest.mark.slow
def test_the_longest_allowed_draft_is_verified(serving: Any) -> None:
    chat = load(7, 3)[0].asking(max_tokens=300, ignore_eos=True).tagged(max_draft=1024)
    with serving(LONGEST) as server:
        first, second, third = (ask_all(server.url, [chat], 1)[0].choices[0].token_ids for _ in range(3))
        assert first == second == third
        assert len(first) == 300
        (figures,) = server.control("stages")["stages"]
    # 3 x 300 tokens: the first answer's tokens are drafted again, 128 at a time
    assert figures["num_draft_tokens"] > 2 * MOST_DRAFT_TOKENS
    assert figures["num_accepted_tokens"] > 2 * MOST_DRAFT_TOKENS
    assert 0 < figures["measured_decode_s"] <= 1.01 * figures["decode_s"]
    assert figures["plain_decode_s"] > 0
