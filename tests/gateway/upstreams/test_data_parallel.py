from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from agentspec.errors import ConfigError
from agentspec.gateway import Fleet, FleetSettings, UpstreamSettings
from agentspec.gateway.upstreams.routing import RANK_HEADER, SIZE_VARIABLE, DataParallelRanks
from tests.gateway.support.answering import answering
from tests.gateway.support.live import chat_body, post, serving

SPILL = 1.25
NUM_RANKS = 8


def home(ranks: DataParallelRanks, stage: str) -> str | None:
    with ranks.entered(stage, None, SPILL) as rank:
        return rank


def test_a_stage_stays_with_one_rank_and_the_ranks_share_the_stages() -> None:
    ranks = DataParallelRanks(NUM_RANKS)
    homes = {f"acme: flow/{number}": home(ranks, f"acme: flow/{number}") for number in range(400)}
    assert all(home(DataParallelRanks(NUM_RANKS), stage) == rank for stage, rank in homes.items())
    shares = Counter(homes.values())
    assert set(shares) == {str(number) for number in range(NUM_RANKS)}
    assert max(shares.values()) < 2 * 400 / NUM_RANKS


def test_a_rank_that_the_client_names_is_left_as_it_is_and_counted() -> None:
    ranks = DataParallelRanks(2)
    first = home(ranks, "a")
    with ExitStack() as running:
        for _ in range(10):
            assert running.enter_context(ranks.entered("a", first, SPILL)) is None
        assert home(ranks, "a") != first
    for given in ("7", "-1", "one", ""):  # for vLLM to judge
        with ranks.entered("a", given, SPILL) as rank:
            assert rank is None


def test_without_a_stage_or_with_one_rank_vllm_chooses() -> None:
    with DataParallelRanks(8).entered(None, None, SPILL) as rank:
        assert rank is None
    assert home(DataParallelRanks(1), "a") is None


def test_the_number_of_ranks_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SIZE_VARIABLE, raising=False)
    assert home(DataParallelRanks.from_environment(), "a") is None
    monkeypatch.setenv(SIZE_VARIABLE, "8")
    assert home(DataParallelRanks.from_environment(), "a") is not None
    for wrong in ("0", "-1", "two", ""):
        monkeypatch.setenv(SIZE_VARIABLE, wrong)
        with pytest.raises(ConfigError, match=SIZE_VARIABLE):
            DataParallelRanks.from_environment()


@pytest.mark.parametrize("size", [1, 4])
def test_the_engine_is_sent_the_rank_of_the_stage(size: int) -> None:
    with answering() as (engine, seen):
        settings = FleetSettings(upstreams=(UpstreamSettings(url=engine, data_parallel_size=size),))
        with serving(Fleet(settings)) as root:
            for stage in ("flow/a", "flow/b", "flow/c", "flow/d", "flow/a"):
                post(root, chat_body(), x_agentspec_stage=stage)
            post(root, chat_body(), x_agentspec_stage="flow/a", x_data_parallel_rank="17")
            post(root, {"input": "x"}, "/v1/embeddings")
    *tagged, chosen, untagged = [one.headers.get(RANK_HEADER) for one in seen]
    if size == 1:
        assert tagged == [None] * 5
    else:
        assert set(tagged) <= {"0", "1", "2", "3"}
        assert len(set(tagged)) > 1
        assert tagged[0] == tagged[-1]
    assert chosen == "17"
    assert untagged is None


def test_a_policy_without_affinity_leaves_the_rank_to_vllm() -> None:
    with answering() as (engine, seen):
        settings = FleetSettings(
            upstreams=(UpstreamSettings(url=engine, data_parallel_size=4),), routing={"policy": "least_load"}
        )
        with serving(Fleet(settings)) as root:
            post(root, chat_body(), x_agentspec_stage="flow/a")
    assert RANK_HEADER not in seen[0].headers
