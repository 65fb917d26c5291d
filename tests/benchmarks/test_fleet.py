"""The fleet benchmark: what is dealt, counted and compared. Its times are measured by the benchmark alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agentspec.draft import SHARED
from agentspec.errors import ConfigError
from agentspec.replay.calls import Call
from benchmarks.fleet import costs, gain, join, outage, run
from benchmarks.fleet.engine import KEY_TOKENS, is_drafted, mark
from benchmarks.fleet.fleet import DEALS, GATEWAY, Replica, Sharing, forest
from benchmarks.fleet.gain import ONE, Variant
from benchmarks.fleet.places import redis_server
from benchmarks.fleet.recorded import PROMPT_TOKENS, each_output, read_calls, read_outputs
from benchmarks.fleet.sizes import QUICK
from tests.corpus.support.redis_server import needed_executable

NUM_CALLS = 30


@pytest.fixture(scope="session")
def one_set(traces: Path) -> Path:
    return sorted(traces.iterdir())[0]


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize("name", sorted(run.REPLAYED))
def test_parts_that_replay_want_traces(name: str) -> None:
    with pytest.raises(ConfigError, match="--traces"):
        run.measure(name, QUICK, None, print)


# ---- recorded calls ----


def test_prompts_are_bounded(one_set: Path) -> None:
    calls = read_calls(one_set, NUM_CALLS)
    assert len(calls) == NUM_CALLS
    assert all(len(call.prompt) <= PROMPT_TOKENS for call in calls)


def test_equal_outputs_are_one_with_uses(one_set: Path) -> None:
    outputs = read_outputs(one_set, NUM_CALLS, 0)
    assert sum(output.uses for output in outputs.values()) == NUM_CALLS
    assert all(output.digest == digest for digest, output in outputs.items())


# ---- simulated fleets ----


@pytest.mark.parametrize(
    ("deal", "expected"), [("in turn", [0, 1, 2, 0]), ("by session", [0, 0, 1, 2]), ("by stage", None)]
)
def test_deals(deal: str, expected: list[int] | None) -> None:
    calls = [Call("plan", session, ids(1), ids(2)) for session in ("a", "a", "b", "c")]
    replicas, choose = silos(3), DEALS[deal]()
    dealt = [replicas.index(choose(call, replicas)) for call in calls]
    assert dealt == expected if expected else len(set(dealt)) == 1


def test_the_gateway_spills_a_stage_to_other_replicas() -> None:
    replicas, choose = silos(3), DEALS[GATEWAY]()
    call = Call("plan", "a", ids(1), ids(2))
    first = choose(call, replicas)
    assert choose(call, replicas) is first
    first.num_running = 4
    second = choose(call, replicas)
    assert second is not first
    first.num_running = 0
    assert choose(call, replicas) is first


def silos(number: int) -> list[Replica]:
    return [Replica(one, forest(), None, Sharing(), lambda: 0.0) for one in range(number)]


def test_what_one_replica_learns_all_draft(tmp_path: Path) -> None:
    """Sixteen calls with one output: a silo drafts its own alone."""
    path = tmp_path / "same.jsonl"
    said = '{"prompt": "go", "stage": "plan", "response": "the quick brown fox jumps over it all day"}\n'
    path.write_text(16 * said)
    compared = {ONE: Variant(1), "silos": Variant(16), "corpus": Variant(16, "in turn", Sharing(0.0))}
    outcomes = gain.outcomes(path, compared, 16, 1)
    found = {name: one.tokens_per_step for name, one in outcomes.items()}
    assert outcomes["silos"].num_bytes == outcomes[ONE].num_bytes == 0 < outcomes["corpus"].num_bytes
    assert found["silos"] < 1.5
    assert 1.5 * found["silos"] < found["corpus"] <= found[ONE]  # each replica learns chances alone


def test_gain_names_the_worst_way_to_deal_and_that_of_our_gateway() -> None:
    compared = gain.variants((4, 16), (1.0,))
    tokens = {name: 3.0 if name == ONE else 1.5 if "silos" in name else 2.7 for name in compared}
    first = {name: gain.Outcome(one, 3_000_000) for name, one in tokens.items()}
    second = first | {"16 by session, corpus": gain.Outcome(2.1, 0)}
    figures = gain.figures({"a": first, "b": second}, 16)
    assert figures["sent_mb"] == 6
    assert figures["fleet_gain"] == pytest.approx((0.9 + 0.7) / 2)
    assert figures["fleet_gain_gateway"] == pytest.approx(0.9)
    assert figures["fleet_gain_silos"] == pytest.approx(0.5)


# ---- costs ----


def test_each_step_of_an_outputs_way_costs_something(one_set: Path) -> None:
    needed_executable()
    outputs = list(each_output(one_set, NUM_CALLS))
    with redis_server() as server:
        found = costs.passage(server, outputs, 4)
    assert found["num_entries"] == -(-NUM_CALLS // 4)
    assert all(figure > 0 for figure in found.values())


def test_looks_at_few_and_at_many_tenants_cost_time(one_set: Path) -> None:
    needed_executable()
    (output,) = each_output(one_set, 1)
    with redis_server() as server:
        found = costs.look_server_us(server, output)
    assert min(found["1"], found["100"]) > 0


def test_bytes_of_a_token_in_trees(one_set: Path) -> None:
    assert 1 < costs.tree_bytes(SHARED, list(each_output(one_set, NUM_CALLS))) < 10_000


# ---- engines ----


def test_a_mark_drafts_once_it_was_learned() -> None:
    trees, output = forest(), mark(7)
    assert not is_drafted(trees, output.tokens)
    trees.learn(output.stage, output.tokens)
    assert is_drafted(trees, output.tokens)
    assert not is_drafted(trees, mark(8).tokens)
    assert len(output.tokens) > KEY_TOKENS


def test_a_fleet_has_recovered_when_outputs_arrive_in_time_again() -> None:
    published_s = {number: number / 50 for number in range(1000)}
    late_until_s = 10.0
    at_s = {
        number: at_s + (0.1 if at_s < 5 or at_s >= late_until_s else 5.0)
        for number, at_s in published_s.items()
    }
    assert outage.recovery_s(published_s, at_s, 8.0) == pytest.approx(2.0)
    assert outage.recovery_s(published_s, {}, 8.0) == outage.AFTER_S


def test_acceptance_weighs_all_sets_alike() -> None:
    assert join.acceptance({"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 2.0}) == 0.75


# ---- the report ----


@pytest.mark.parametrize(
    ("figure", "good", "bad"),
    [
        ("fleet_gain", 0.96, 0.95),
        ("publish_us_p50", 20, 21),
        ("join_s", 5, 5.1),
        ("join_acceptance", 0.95, 0.94),
        ("outage_errors", 0, 1),
        ("outage_added_ms_p99", 1, 1.1),
        ("outage_recovery_s", 10, 10.1),
    ],
)
def test_bars(figure: str, good: float, bad: float) -> None:
    bar = next(bar for bar in run.BARS if bar.figure == figure)
    assert bar.passes({bar.part: {figure: good}}) is True
    assert bar.passes({bar.part: {figure: bad}}) is False
    assert run.summary({bar.part: {figure: good}})[figure] == good
