"""``python -m benchmarks gpu run``: the forced logits, what is counted, the order of variants, the report."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agentspec.errors import ConfigError
from benchmarks.gpu import report, run, shapes
from benchmarks.gpu.calls import Call
from benchmarks.gpu.clients import make_calls
from benchmarks.gpu.forcing import RECORD, Records, V1Forcing, V2Forcing
from benchmarks.gpu.job import Job
from benchmarks.gpu.meter import Meter, percentiles_ms
from benchmarks.gpu.run import Plan, run_all, try_all
from benchmarks.gpu.variants import ON_GPU, Variant, chosen
from tests.support.recorded_calls import LOADS, NUM_IDS, repetitive_calls

CALLS = repetitive_calls()
TEXTS = [np.concatenate([call.prompt, call.response]).tolist() for call in CALLS.calls]
CPU = torch.device("cpu")


def request(record: int) -> Any:
    return SimpleNamespace(sampling_params=SimpleNamespace(extra_args={RECORD: record}))


def random_logits(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, NUM_IDS, generator=torch.Generator().manual_seed(1))


def test_each_position_gives_the_next_token_of_its_own_text() -> None:
    rows = [(record, position) for record, text in enumerate(TEXTS) for position in range(len(text) - 1)]
    logits = random_logits(len(rows))
    before = logits.clone()
    records, positions = (torch.tensor(column) for column in zip(*rows, strict=True))
    Records(CALLS, CPU).force(logits, records, positions)
    wanted = [TEXTS[record][position + 1] for record, position in rows]
    assert logits.argmax(1).tolist() == wanted
    before[torch.arange(len(rows)), torch.tensor(wanted)] = logits.max()
    assert torch.equal(logits, before)  # no other logit is changed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_beyond_the_end_nothing_breaks(dtype: torch.dtype) -> None:
    logits = random_logits(2).to(dtype)
    last = len(TEXTS) - 1
    Records(CALLS, CPU).force(logits, torch.tensor([last, 0]), torch.tensor([10_000, len(TEXTS[0]) - 1]))
    assert logits.argmax(1).tolist() == [TEXTS[last][-1], TEXTS[0][-1]]


class V1Runner:
    """A model runner V1's batch: rows of requests, each with tokens that end at a position."""

    def __init__(self, rows: Sequence[tuple[int, int, int]]) -> None:
        self.requests = {f"r{record}": request(record) for record, _, _ in rows}
        self.input_batch = SimpleNamespace(req_ids=list(self.requests))
        positions = [last - back for _, last, width in rows for back in reversed(range(width))]
        ends = np.cumsum([width for _, _, width in rows])
        self.positions = torch.tensor([*positions, 7, 7])  # the buffer is longer than the batch
        self.query_start_loc = SimpleNamespace(gpu=torch.tensor([0, *ends, 0, 0]))

    def _sample(self, logits: torch.Tensor, metadata: Any) -> list[int]:
        return logits.argmax(1).tolist()


@pytest.mark.parametrize("metadata", [None, SimpleNamespace(num_draft_tokens=[0] * 3)])
def test_v1_without_drafts_forces_the_last_token_of_each_row(metadata: Any) -> None:
    rows = [(2, 5, 1), (0, 9, 4), (5, 0, 1)]
    runner = V1Runner(rows)
    V1Forcing(runner, Records(CALLS, CPU))
    expected = [TEXTS[record][last + 1] for record, last, _ in rows]
    assert runner._sample(random_logits(3), metadata) == expected
    runner.input_batch.req_ids.reverse()  # vLLM changes its own list
    runner.positions[torch.tensor([0, 4, 5])] = torch.tensor([0, 9, 5])
    assert runner._sample(random_logits(3), metadata) == expected[::-1]


def test_v1_forces_the_positions_of_drafts() -> None:
    rows = [(2, 7, 3), (0, 9, 1), (5, 4, 4)]  # two, no and three draft tokens
    runner = V1Runner(rows)
    V1Forcing(runner, Records(CALLS, CPU))
    metadata = SimpleNamespace(
        logits_indices=torch.arange(8),
        num_draft_tokens=[2, 0, 3],
        cu_num_sampled_tokens=torch.tensor([3, 4, 8], dtype=torch.int32),
    )
    expected = [TEXTS[record][last - width + 2 : last + 2] for record, last, width in rows]
    assert runner._sample(random_logits(8), metadata) == [token for row in expected for token in row]


class V2Runner:
    """A model runner V2: requests have states, batches name them."""

    max_num_reqs = 8

    def __init__(self) -> None:
        self.req_states = SimpleNamespace(req_id_to_index={})
        self.model = SimpleNamespace(compute_logits=lambda hidden: random_logits(len(hidden)))

    def add_requests(self, scheduler_output: Any) -> None:
        for state, new in enumerate(scheduler_output.scheduled_new_reqs):
            self.req_states.req_id_to_index[new.req_id] = 5 - state

    def sample(self, hidden: torch.Tensor, batch: Any, grammar: Any) -> list[int]:
        return self.model.compute_logits(hidden[batch.logits_indices]).argmax(1).tolist()


def test_v2_forces_what_it_samples_and_nothing_else() -> None:
    runner = V2Runner()
    V2Forcing(runner, Records(CALLS, CPU))
    new = [SimpleNamespace(req_id=f"r{record}", **vars(request(record))) for record in (3, 1)]
    runner.add_requests(SimpleNamespace(scheduled_new_reqs=new))
    batch = SimpleNamespace(
        positions=torch.tensor([4, 5, 6, 2]),
        logits_indices=torch.tensor([0, 1, 2, 3]),
        expanded_idx_mapping=torch.tensor([4, 4, 4, 5]),
    )
    assert runner.sample(torch.zeros(4), batch, None) == [*TEXTS[1][5:8], TEXTS[3][3]]
    assert torch.equal(runner.model.compute_logits(torch.zeros(4)), random_logits(4))


def step(mode: str | None = None, drafted: int = 0, accepted: int = 0) -> Any:
    spec = SimpleNamespace(num_draft_tokens=drafted, num_accepted_tokens=accepted) if drafted else None
    graph = SimpleNamespace(runtime_mode=mode) if mode else None
    return SimpleNamespace(spec_decoding_stats=spec, cudagraph_stats=graph)


def outputs(num_tokens: int, num_first: int = 0) -> Any:
    return SimpleNamespace(
        num_generation_tokens=num_tokens,
        time_to_first_tokens_iter=[0.1] * num_first,
        num_prompt_tokens=10 * num_first,
        num_preempted_reqs=0,
    )


def test_what_is_counted() -> None:
    meter = Meter()
    meter.take(step("NONE"), outputs(2, num_first=2), 1.0)  # two prompts end
    meter.take(step("FULL", drafted=6, accepted=3), outputs(5), 1.004)
    meter.take(step("FULL"), outputs(2), 1.008)
    meter.take(None, outputs(0), 1.009)  # outputs of a step may come in parts
    meter.take(step("PIECEWISE"), outputs(3, num_first=1), 1.020)
    figures = meter.figures(wall_s=0.5)
    assert figures["tokens_per_s"] == 12 / 0.5
    assert figures["tokens_per_step"] == 9 / 6  # decoded tokens / (request, decode step) pairs
    assert figures["step_ms"] == 500 / 4
    assert figures["decode_step_ms"] == pytest.approx(4.0)
    assert (figures["drafted_per_step"], figures["acceptance_rate"]) == (1.0, 0.5)
    assert (figures["full_graphs"], figures["num_prompt_tokens"]) == (0.5, 30)


def test_nothing_counted() -> None:
    figures = Meter().figures(wall_s=1.0)
    assert figures["tokens_per_s"] == 0
    assert figures["tokens_per_step"] is figures["acceptance_rate"] is figures["full_graphs"] is None
    assert percentiles_ms([]) == {"p50": None, "p90": None}
    assert percentiles_ms([0.001, 0.003, 0.002]) == {"p50": 2.0, "p90": 2.0}


class Answering:
    """Answers calls as recorded, two tokens at a time; remembers how many were asked at once."""

    def __init__(self, wrong: int = -1) -> None:
        self.live: list[int] = []
        self.asked: list[int] = []
        self.most_live = 0
        self._wrong = wrong

    async def ask(self, number: int, call: Call) -> AsyncIterator[Sequence[int]]:
        self.asked.append(number)
        self.live.append(number)
        self.most_live = max(self.most_live, len(self.live))
        tokens = call.response.tolist() if number != self._wrong else [0]
        for begin in range(0, len(tokens), 2):
            await asyncio.sleep(0)
            yield tokens[begin : begin + 2]
        self.live.remove(number)


def test_clients_make_all_calls_of_their_sessions() -> None:
    engine, load = Answering(), LOADS[1]
    figures = asyncio.run(make_calls(CALLS, load, engine.ask, Meter, limit_s=60))
    sessions = CALLS.sessions[load.name]
    assert sorted(engine.asked) == sorted(number for session in sessions for number in session)
    for first, second in sessions:
        assert engine.asked.index(first) < engine.asked.index(second)
    assert engine.most_live == load.num_clients
    assert (figures["num_calls"], figures["num_different"], figures["is_whole"]) == (8, 0, True)
    assert figures["ttft_ms"]["p50"] >= 0


def test_a_wrong_output_is_counted() -> None:
    engine = Answering(wrong=CALLS.sessions["1"][0][0])
    figures = asyncio.run(make_calls(CALLS, LOADS[2], engine.ask, Meter, limit_s=60))
    assert figures["num_different"] == 1


def test_no_call_is_begun_after_the_limit() -> None:
    engine = Answering()
    figures = asyncio.run(make_calls(CALLS, LOADS[2], engine.ask, Meter, limit_s=-1))
    assert (engine.asked, figures["num_calls"], figures["is_whole"]) == ([], 0, False)


def test_the_plugin_decides_about_its_own_variant() -> None:
    by_name = {one.name: one for one in chosen(None, on_cpu=False)}
    assert list(by_name)[:4] == [one.name for one in ON_GPU[:4]]
    assert by_name["agentspec"] == Variant("agentspec", has_plugin=True)
    assert [one.name for one in chosen(["ngram", "plain"], on_cpu=True)] == ["plain", "ngram"]
    with pytest.raises(ConfigError, match="no variant 'eagle', only plain, agentspec, ngram, suffix"):
        chosen(["eagle"], on_cpu=True)


def test_calls_must_fit_the_shape() -> None:
    assert shapes.tiny(CALLS)["vocab_size"] == NUM_IDS
    assert shapes.llama_8b(CALLS)["hidden_size"] == 4_096
    large = SimpleNamespace(num_ids=200_000, longest=5)
    with pytest.raises(ConfigError, match="vocab_size of 200000, the model has 128256"):
        shapes.llama_8b(large)


LOAD = {
    "tokens_per_s": 100.0,
    "tokens_per_step": 2.0,
    "step_ms": 4.0,
    "decode_step_ms": 3.5,
    "acceptance_rate": None,
    "full_graphs": 1.0,
    "num_calls": 3,
    "num_different": 0,
    "is_whole": True,
    "ttft_ms": {"p50": 1.0},
    "tpot_ms": {"p50": None},
}
SERVER = """
import json, sys, time
job = json.load(open(sys.argv[1]))
print("the log")
name = job["flags"][-1]
if name == "--hangs":
    time.sleep(600)
if name == "--fails":
    sys.exit(3)
open(job["out"], "w").write(json.dumps({"loads": {"1": %s}}))
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Return a plan whose variants are run by a small program instead of vLLM."""
    calls = tmp_path / "calls.xz"
    CALLS.save(calls)
    program = tmp_path / "served.py"
    program.write_text(SERVER % repr(LOAD))
    start = subprocess.Popen

    def fake(command: list[str], **options: Any) -> Any:
        return start([command[0], str(program), command[-1]], **options)

    monkeypatch.setattr(subprocess, "Popen", fake)
    monkeypatch.setattr(run, "POLL_S", 0.01)
    variants = [Variant("plain", ("--works",)), Variant("agentspec", ("--works",), has_plugin=True)]
    return Plan(calls, tmp_path / "out", variants, on_cpu=False, limit_s=120, load_limit_s=9)


def test_variants_run_once(plan: Plan) -> None:
    said: list[str] = []
    found = run_all(plan, said.append)
    assert list(found) == ["plain", "agentspec"]
    assert said == [
        "plain: starting vLLM",
        "plain, 1: 100 tokens/s, 0 differ",
        "agentspec: starting vLLM",
        "agentspec, 1: 100 tokens/s, 0 differ",
    ]
    job = Job.read(plan.folder / "agentspec.job")
    assert job.has_plugin
    assert job.flags[-3:] == ("--max-model-len", str(CALLS.longest + 1), "--works")
    assert json.loads((Path(job.model) / "config.json").read_text())["num_hidden_layers"] == 32
    again: list[str] = []
    assert run_all(plan, again.append) == json.loads(json.dumps(found))
    assert again == ["plain: measured before", "agentspec: measured before"]
    other = Plan(plan.calls, plan.folder, plan.variants, False, 120, load_limit_s=8)
    run_all(other, again.append)
    assert again[2] == "plain: starting vLLM"


def test_a_variant_that_fails_costs_only_itself(plan: Plan) -> None:
    variants = [Variant("plain", ("--fails",)), Variant("agentspec", ("--works",))]
    failing = Plan(plan.calls, plan.folder, variants, False, 120, 9)
    found = run_all(failing, lambda text: None)
    assert found["plain"]["error"] == "ended with status 3: the log"
    assert (found["plain"]["is_done"], found["agentspec"]["is_done"]) == (False, True)
    assert report.notes(found) == ["plain is not complete: ended with status 3: the log"]
    said: list[str] = []
    run_all(failing, said.append)
    assert said[0] == "plain: starting vLLM"  # again, unlike the other


def test_a_trial_runs_all_variants_at_once(plan: Plan) -> None:
    variants = [
        Variant("plain", ("--hangs",)),
        Variant("agentspec", ("--works",)),
        Variant("x", ("--fails",)),
    ]
    trial = replace(plan, variants=variants, limit_s=3, is_trial=True)
    found = try_all(trial, lambda text: None)
    assert [one["is_done"] for one in found.values()] == [False, True, False]
    jobs = [Job.read(plan.folder / f"{one.name}.job") for one in variants]
    assert all("--kv-cache-memory-bytes" in job.flags for job in jobs)
    assert len({job.model for job in jobs}) == 3
    assert json.loads((Path(jobs[0].model) / "config.json").read_text())["num_hidden_layers"] == 2
    said: list[str] = []
    run_all(replace(plan, variants=variants[1:2]), said.append)
    assert said[0] == "agentspec: starting vLLM"  # a trial's figures do not count


def test_the_time_limit_holds(plan: Plan) -> None:
    variants = [Variant("plain", ("--hangs",)), Variant("agentspec", ("--works",))]
    said: list[str] = []
    found = run_all(Plan(plan.calls, plan.folder, variants, False, 0.5, 9), said.append)
    assert found["plain"]["error"].startswith("stopped: the time is up")
    assert list(found) == ["plain"]
    assert said[-1].startswith("agentspec: left out, ")


def test_the_report_compares_with_plain() -> None:
    engine = {"model_runner": "V2", "async_scheduling": True}
    found = {
        "plain": {"loads": {"past": LOAD, "8": LOAD}, "engine": engine, "error": None},
        "agentspec": {
            "loads": {"8": {**LOAD, "tokens_per_s": 150.0, "is_whole": False}, "1": LOAD},
            "engine": engine,
            "error": None,
        },
    }
    assert report.summary(found) == {"outputs_as_recorded": True, "agentspec_vs_plain_c8": 1.5}
    assert report.table(found).row_count == 3
    assert report.notes(found) == ["agentspec, 8 clients: the time ran out after 3 calls"]
    assert report.summary({}) == {"outputs_as_recorded": None}


def test_calls_from_two_places_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "gpu", "run", "--out", str(tmp_path)]
    done = subprocess.run([*command, "--traces", "a", "--calls", "b"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "not allowed with argument" in done.stderr
