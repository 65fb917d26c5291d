"""The text-to-SQL example through gateway and vLLM: without speculation, with vLLM's suffix decoding, ours.

In the example each output becomes part of the next prompt, so one wrong token would show. All speculators
get the same questions in the same order, each on a new server and a new gateway. All servers run at the same
time, and get a block of questions in turn, since the machine's speed drifts: only one has work at a time.

vLLM's default KV block is 16 tokens on a GPU and 128 on a CPU. Only whole blocks are reused, so with 128 vLLM
computes a third more prompt tokens for the example. The servers get the CPU backend's smallest block, 32.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from agentspec.reporting.report import Announce
from benchmarks.vllm.counters import Counters
from benchmarks.vllm.questions import drive
from benchmarks.vllm.server import HOST, Server, free_port
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import NGRAM, NONE, OURS, SUFFIX, Engine, Speculator
from examples.agentic_sql.database import Database, open_all
from examples.agentic_sql.measurement import Outcome
from examples.agentic_sql.question_set import held_out
from examples.agentic_sql.questions import Question

SPECULATORS = (NONE, SUFFIX, OURS)
NUM_CLIENTS = ONE, MANY, MOST = 1, 4, 8  # requests at a time
BLOCK = 20  # questions of a turn: few enough that the machine's speed hardly changes
NUM_FIRST = 1  # warm-up questions: a server's first steps are slow with any drafter
KV_BLOCKS = ("--block-size", "32")
SETTLE_S = 1.2  # a worker of vLLM polls for a second after its last step

Key = tuple[str, int]  # speculator, requests at a time


@dataclass(frozen=True, slots=True)
class Run:
    """All questions with one speculator.

    Attributes:
        num_clients: number of concurrent requests.
        wall_s: wall time.
        cpu_s: processor time of vLLM; other load on the machine matters less.
        accuracy: share of questions with a correct answer.
        counted: vLLM's counts.
        num_slots: slots that were verified, padding included; 0 without the plugin.
        texts: by question, the output of each stage.
    """

    speculator: str
    num_clients: int
    wall_s: float
    cpu_s: float
    accuracy: float
    counted: Counters
    num_slots: int
    texts: list[list[tuple[str, str]]]

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of wall time."""
        return self.counted.num_output_tokens / self.wall_s

    @property
    def figures(self) -> dict[str, float]:
        """Figures for the JSON."""
        return {
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "tokens_per_s": self.tokens_per_s,
            "accepted_per_step": self.counted.accepted_per_step,
            "acceptance_rate": self.counted.acceptance_rate,
            "execution_accuracy": self.accuracy,
        }


def measure(engine: Engine, sizes: Sizes, log_dir: Path, announce: Announce) -> dict[str, Any]:
    """Run all rounds; return the figures for the JSON.

    Raises:
        AgentSpecError: a server did not start.
    """
    engine = replace(engine, flags=(*engine.flags, *KV_BLOCKS))
    runs: list[Run] = []
    for number in range(sizes.num_rounds):
        for num_clients in NUM_CLIENTS:
            announce(f"sql, round {number + 1}, {num_clients} at a time")
            runs += run_in_turn(
                engine, _turned(SPECULATORS, number), num_clients, sizes.num_questions, log_dir
            )
    for num_clients in NUM_CLIENTS:  # for the table only: once is enough
        announce(f"sql, {NGRAM.name}, {num_clients} at a time")
        runs.append(run(engine, NGRAM, num_clients, sizes.num_questions, log_dir))
    return {**figures(runs), "server_flags": list(KV_BLOCKS)}


def run(engine: Engine, speculator: Speculator, num_clients: int, num_questions: int, log_dir: Path) -> Run:
    """Run all questions on one server and one gateway."""
    (only,) = run_in_turn(engine, [speculator], num_clients, num_questions, log_dir)
    return only


def run_in_turn(
    engine: Engine, speculators: Sequence[Speculator], num_clients: int, num_questions: int, log_dir: Path
) -> list[Run]:
    """Run all questions with each speculator, on a server and a gateway of its own."""
    with ExitStack() as stack:
        databases = open_all(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        questions = held_out(NUM_FIRST + num_questions, databases)
        lanes = [
            stack.enter_context(Lane.open(engine, one, num_clients, databases, log_dir))
            for one in speculators
        ]
        for lane in lanes:
            lane.warm_up(questions[:NUM_FIRST])
        for number, start in enumerate(range(NUM_FIRST, len(questions), BLOCK)):
            for lane in lanes if number % 2 == 0 else reversed(lanes):
                lane.ask(questions[start : start + BLOCK])
        return [lane.run() for lane in lanes]


class Lane:
    """A speculator's server and gateway, and their measurements."""

    def __init__(
        self,
        speculator: Speculator,
        num_clients: int,
        databases: dict[str, Database],
        server: Server,
        gateway_url: str,
    ) -> None:
        self._speculator = speculator
        self._num_clients = num_clients
        self._databases = databases
        self._server = server
        self._gateway_url = gateway_url
        self._outcomes: list[Outcome] = []
        self._wall_s = self._cpu_s = 0.0
        self._before, self._slots_before = Counters(), 0

    @classmethod
    @contextmanager
    def open(
        cls,
        engine: Engine,
        speculator: Speculator,
        num_clients: int,
        databases: dict[str, Database],
        log_dir: Path,
    ) -> Iterator[Lane]:
        """Run the server and the gateway."""
        log = log_dir / f"gateway-{speculator.name.replace(' ', '-')}.log"
        with engine.serving(speculator, log_dir) as server, gateway(server.url, log) as front:
            yield cls(speculator, num_clients, databases, server, front.url)

    def warm_up(self, questions: Sequence[Question]) -> None:
        """Ask questions that are not measured; then start to measure."""
        drive(self._gateway_url, questions, self._databases, self._num_clients)
        self._before, self._slots_before = self._server.counters(), self._num_slots()

    def ask(self, questions: Sequence[Question]) -> None:
        """Ask questions, and measure how long that takes. The server before this one is idle by then."""
        time.sleep(SETTLE_S)
        cpu_s, begin_s = self._server.cpu_s(), time.perf_counter()
        self._outcomes += drive(self._gateway_url, questions, self._databases, self._num_clients)
        self._wall_s += time.perf_counter() - begin_s
        self._cpu_s += self._server.cpu_s() - cpu_s

    def run(self) -> Run:
        """Return the measurements so far."""
        return Run(
            self._speculator.name,
            self._num_clients,
            self._wall_s,
            self._cpu_s,
            sum(one.is_correct for one in self._outcomes) / len(self._outcomes),
            self._server.counters() - self._before,
            self._num_slots() - self._slots_before,
            [one.texts for one in self._outcomes],
        )

    def _num_slots(self) -> int:
        if self._speculator.settings is None:
            return 0
        return int(self._server.control("status")["num_slots"])


@contextmanager
def gateway(engine_url: str, log: Path) -> Iterator[Server]:
    """Run ``agentspec serve`` in front of a vLLM server."""
    port = free_port()
    command = [sys.executable, "-m", "agentspec", "serve", "--engine-url", engine_url]
    command += ["--host", HOST, "--port", str(port)]
    with Server.running(command, port, log) as server:
        yield server


def figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Return medians over rounds; comparisons are within a round, and medians of these."""
    rounds: dict[Key, list[Run]] = defaultdict(list)
    for one in runs:
        rounds[one.speculator, one.num_clients].append(one)
    accepted_per_step = _ratio(
        rounds, (OURS.name, MANY), (SUFFIX.name, MANY), lambda one: one.counted.accepted_per_step
    )
    return {
        "outputs_identical": all(one.texts == runs[0].texts for one in runs),
        "accepted_per_step_gain_vs_suffix": accepted_per_step,
        **{
            f"wall_vs_suffix_c{number}": _ratio(
                rounds, (OURS.name, number), (SUFFIX.name, number), lambda one: one.wall_s
            )
            for number in NUM_CLIENTS
        },
        **{
            f"throughput_vs_none_c{number}": _ratio(
                rounds, (OURS.name, number), (NONE.name, number), lambda one: one.tokens_per_s
            )
            for number in NUM_CLIENTS
        },
        "runs": {f"{name}, {number} at a time": _medians(same) for (name, number), same in rounds.items()},
    }


def _ratio(
    rounds: Mapping[Key, Sequence[Run]], ours: Key, theirs: Key, figure: Callable[[Run], float]
) -> float:
    return median(figure(a) / figure(b) for a, b in zip(rounds[ours], rounds[theirs], strict=True))


def _medians(runs: Sequence[Run]) -> dict[str, Any]:
    return {name: median(one.figures[name] for one in runs) for name in runs[0].figures} | {
        "rounds_wall_s": [one.wall_s for one in runs]
    }


def _turned(speculators: Sequence[Speculator], number: int) -> Sequence[Speculator]:
    """Rotate the speculators, so that each round starts with another one."""
    first = number % len(speculators)
    return [*speculators[first:], *speculators[:first]]
