from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.errors import ConfigError, ForestFileError
from agentspec.stages import StageKey
from agentspec.vllm_plugin.commands import MOST_JOBS, Commands
from agentspec.vllm_plugin.drafter import ForestDrafter
from agentspec.vllm_plugin.lora import adapted
from agentspec.vllm_plugin.v1.proposer import ForestProposer
from tests.vllm_plugin.support.runner import EOS, Runner, request, vllm_config

STAGE = StageKey("acme", ("sql", "write"))
TEXT = [*range(100, 140), EOS]


@pytest.fixture
def runner() -> Runner:
    return Runner(ForestProposer(vllm_config()))


@pytest.fixture
def commands(runner: Runner) -> Iterator[Commands]:
    runner.drafter.texts.encode = lambda text: np.array([ord(one) for one in text], np.int32)
    made = Commands(runner.drafter)
    yield made
    made.close()


def ask(commands: Commands, command: str, **arguments: Any) -> Any:
    """Send a command as the control channel does: poll until the job is done."""
    answer = json.loads(commands.run(command, json.dumps(arguments), "asked"))
    while "job" in answer:
        time.sleep(0.001)
        answer = poll(commands, answer["job"])
    return answer


def poll(commands: Commands, job: str) -> Any:
    return json.loads(commands.run("job", "{}", job))


def run(runner: Runner, name: str, **tags: Any) -> None:
    runner.add(request(name, TEXT, stage=STAGE.name, tenant=STAGE.tenant, **tags))
    runner.run(name)
    runner.step([])


def test_the_status_tells_of_the_engine(commands: Commands, runner: Runner) -> None:
    run(runner, "r0")
    status = ask(commands, "status")
    assert status["num_speculative_tokens"] == 8
    assert status["price"] == 0.05
    assert status["num_requests"] == 0
    assert status["tree_bytes"] == runner.drafter.forest.memory_bytes() > 0
    assert [ask(commands, "status")["num_calls"] for _ in range(2)] == [2, 3]


def test_stages_are_told_with_all_counters(commands: Commands, runner: Runner) -> None:
    run(runner, "r0")
    run(runner, "r1")
    run(runner, "r2", adapter="red")
    told = json.loads(commands.run("stages", "{}"))  # no job to poll: one call
    assert told.keys() - ask(commands, "status").keys() == {"age_s", "stages"}
    (figures,) = told["stages"]
    assert (figures["tenant"], figures["stage"]) == ("acme", "sql/write")
    assert figures["num_requests"] == 3
    assert figures["num_output_tokens"] == 3 * len(TEXT)
    assert sum(figures["accepted_by_source"].values()) == figures["num_accepted_tokens"] > 0
    assert set(figures["accepted_by_source"]) <= {"request", "session", "stage", "workflow", "tenant"}
    forest = runner.drafter.forest
    both = forest.memory_bytes(STAGE) + forest.memory_bytes(adapted(STAGE, "red"))
    assert figures["tree_bytes"] == both


def test_the_figures_of_many_stages_are_made_by_a_thread(
    commands: Commands, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentspec.vllm_plugin.commands.MOST_QUICK_STAGES", 0)
    run(runner, "r0")
    assert json.loads(commands.run("stages", "{}", "figures")) == {"job": "figures"}
    while "job" in (told := json.loads(commands.run("job", "{}", "figures"))):
        time.sleep(0.001)
    assert [one["num_requests"] for one in told["stages"]] == [1]
    assert told["age_s"] >= 0


def test_a_stage_can_be_evicted_with_all_its_adapters(commands: Commands, runner: Runner) -> None:
    run(runner, "r0")
    run(runner, "r1", adapter="red")
    assert ask(commands, "evict", tenant="acme", stage="sql/write")["freed_bytes"] > 0
    forest = runner.drafter.forest
    assert forest.memory_bytes(STAGE) == forest.memory_bytes(adapted(STAGE, "red")) == 0
    assert ask(commands, "evict", tenant="nobody", stage="sql/write") == {"freed_bytes": 0}


def test_a_trace_is_told_in_words(commands: Commands, runner: Runner) -> None:
    runner.drafter.texts.token = chr
    run(runner, "r0")
    run(runner, "r1", trace="t")
    first, *others = ask(commands, "trace", tenant="acme", id="t")["steps"]
    assert first == {"source": None, "tokens": [], "parents": [], "accepted": [], "own": chr(TEXT[0])}
    drafted = next(step for step in others if step["accepted"])
    num = len(drafted["tokens"])
    assert drafted["source"] in {"request", "session", "stage", "workflow", "tenant"}
    assert drafted["parents"] == list(range(-1, num - 1))
    assert drafted["accepted"] == list(range(len(drafted["accepted"])))
    told = [
        text for step in [first, *others] for text in [*step["tokens"][: len(step["accepted"])], step["own"]]
    ]
    assert "".join(text for text in told if text) == "".join(map(chr, TEXT))


def test_a_trace_is_its_tenants_alone(commands: Commands, runner: Runner) -> None:
    run(runner, "r0", trace="t")
    assert ask(commands, "trace", tenant="other", id="t") == {"steps": None}
    assert ask(commands, "trace", tenant="acme", id="u") == {"steps": None}
    assert "id must be a text" in ask(commands, "trace", tenant="acme")["error"]["message"]
    assert "skip-tokenizer-init" in ask(commands, "trace", tenant="acme", id="t")["error"]["message"]


def test_outputs_can_be_learned_from_texts(commands: Commands, runner: Runner) -> None:
    outputs = [{"stage": "sql/write", "response": "SELECT 1"}, {"stage": "sql/write", "response": "SELECT 2"}]
    assert ask(commands, "warm", tenant="acme", outputs=outputs) == {"num_outputs": 2, "num_tokens": 16}
    assert runner.drafter.forest.stats(STAGE).num_tokens == 16


@pytest.mark.parametrize(
    "outputs",
    [
        "SELECT",
        [{"stage": "a"}],
        [{"stage": "a", "response": 5}],
        [{"stage": "//", "response": "x"}],
        ["a"],
        None,
    ],
)
def test_if_one_output_is_bad_none_is_learned(commands: Commands, runner: Runner, outputs: Any) -> None:
    given = [{"stage": "sql/write", "response": "x"}, *outputs] if isinstance(outputs, list) else outputs
    assert "message" in ask(commands, "warm", tenant="acme", outputs=given)["error"]
    assert runner.drafter.forest.stats().num_tokens == 0


def test_what_commands_changed_is_saved_though_no_step_followed(tmp_path: Path) -> None:
    path = str(tmp_path / "forest")
    text = np.arange(20, dtype=np.int32)
    for expected in (0, 20):
        drafter = ForestDrafter(vllm_config(forest_file=path))
        drafter.texts.encode = lambda text_: text
        drafter.texts.__dict__["vocabulary"] = "test"
        commands = Commands(drafter)
        commands.restore()
        assert drafter.forest.stats(STAGE).num_tokens == expected
        if not expected:
            ask(commands, "warm", tenant="acme", outputs=[{"stage": STAGE.name, "response": "x"}])
        commands.close()


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_damaged_forest_file_at_the_start(is_strict: bool, tmp_path: Path) -> None:
    path = tmp_path / "forest.1"
    path.write_bytes(b"AgentSpec forest")  # and nothing else
    drafter = ForestDrafter(vllm_config(forest_file=str(tmp_path / "forest"), strict_forest=is_strict))
    drafter.texts.__dict__["vocabulary"] = "test"
    commands = Commands(drafter, ".1")
    try:
        with pytest.raises(ConfigError, match="move it away") if is_strict else nullcontext():
            commands.restore()
    finally:
        commands.close()
    assert path.exists() is is_strict
    [file] = tmp_path.iterdir()
    assert file.read_bytes() == b"AgentSpec forest"
    assert file.name.startswith("forest.1" if is_strict else "forest.1.damaged-")


def test_a_place_that_can_not_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "forest.saving").mkdir()
    drafter = ForestDrafter(vllm_config(forest_file=str(tmp_path / "forest")))
    commands = Commands(drafter)
    try:
        with pytest.raises(ForestFileError, match="Is a directory"):
            commands.restore()
    finally:
        commands.close()


@pytest.mark.parametrize("name", ["drop", "", "_status", "close"])
def test_unknown_commands_are_refused_by_name(commands: Commands, name: str) -> None:
    assert repr(name) in ask(commands, name)["error"]["message"]


def test_arguments_must_be_whole(commands: Commands) -> None:
    assert "tenant" in ask(commands, "evict", stage="a")["error"]["message"]
    assert "error" in json.loads(commands.run("evict", "{"))
    assert "error" in json.loads(commands.run("evict", "[]"))
    assert "job '99'" in poll(commands, "99")["error"]["message"]
    assert "--forest-file" in ask(commands, "save")["error"]["message"]
    assert "--forest-folder" in ask(commands, "save", path="/tmp/forest")["error"]["message"]
    assert "not 5" in ask(commands, "load", path=5)["error"]["message"]


def test_commands_that_take_long_do_not_hold_up_steps_and_do_not_pile_up(
    commands: Commands, runner: Runner
) -> None:
    may_go_on = threading.Event()

    def encode(text: str) -> Any:
        may_go_on.wait(60)
        return np.array([1], np.int32)

    runner.drafter.texts.encode = encode
    warm = json.dumps({"tenant": "acme", "outputs": [{"stage": "a", "response": "x"}]})
    names = [f"job {number}" for number in range(MOST_JOBS)]
    assert [json.loads(commands.run("warm", warm, name)) for name in names] == [{"job": one} for one in names]
    run(runner, "r0")  # while the first job waits
    assert "try again" in json.loads(commands.run("warm", warm, "another"))["error"]["message"]
    assert poll(commands, names[-1]) == {"job": names[-1]}
    may_go_on.set()
    while "job" in poll(commands, names[-1]):
        time.sleep(0.001)
    assert "job" in json.loads(commands.run("warm", warm, "another"))  # in place of one that was not polled
