"""What the methods are compared on: calls whose outputs the bundled model writes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.generation import GenerationRequest, SamplingParams
from agentspec.models import bundled_model_dir
from agentspec.stages import StageKey
from agentspec.tags import Tags
from benchmarks.harness import calls
from lab.open_text.samples import read_prompts

NUM_SAMPLES = 16
TEMPERATURE = 1.3  # as in examples/self_consistency.py
SAMPLED_SHARE = 8  # a question takes minutes with all methods
SAMPLED_STAGES = ("extract", "enrich", "sql_1")
OPEN = "open"  # begins the names of workloads of open-ended text
OPEN_TEMPERATURES = {"open": 0.0, "open_sampled": 1.0}
OPEN_TOKENS = 128
OPEN_PER_QUESTION = 2  # answers for each question of the part sql
NUM_SEEDS = 2


@dataclass(frozen=True, slots=True)
class Workload:
    """Questions, each with its calls in workflow order.

    Attributes:
        num_clients: questions at a time.
        num_slots: sequences at a time.
    """

    questions: Sequence[Sequence[GenerationRequest]]
    num_clients: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class Places:
    """Where models and heads are.

    Attributes:
        heads: of the bundled model.
        open_text: a model of open-ended text, its head and prompts.
    """

    heads: Path | None = None
    open_text: Path | None = None

    def check(self, workloads: Iterable[str]) -> None:
        """Raise ConfigError if what these workloads need is missing: before the first one begins."""
        for name in workloads:
            if not name.startswith(OPEN):
                continue
            folder = self.model_of(name)
            read_prompts(folder)
            if not (folder / "heads" / "eagle").is_dir():
                raise ConfigError(f"{str(folder)!r} has no head: run `python -m lab open-text` again")

    def model_of(self, workload: str) -> Path:
        """Return the folder of the model that answers a workload. Raises ConfigError if it is not given."""
        if not workload.startswith(OPEN):
            return bundled_model_dir()
        if self.open_text is None:
            raise ConfigError(f"{workload}: name the folder of the model by --open-text")
        return self.open_text

    def heads_of(self, workload: str) -> Path | None:
        """Return the folder of the heads of this model."""
        return self.model_of(workload) / "heads" if workload.startswith(OPEN) else self.heads


def sql(num_questions: int, seed: int) -> Workload:
    """The text-to-SQL pipeline, greedy, four questions at a time."""
    return Workload(_questions(num_questions, seed), 4, 4)


def sampling(num_questions: int, seed: int) -> Workload:
    """Sixteen samples of each call of three stages, one question at a time; of an eighth of the questions."""
    questions = [
        [_sampled(call) for call in question if call.tags.stage.path[-1] in SAMPLED_STAGES]
        for question in _questions(max(1, num_questions // SAMPLED_SHARE), seed)
    ]
    return Workload(questions, 1, NUM_SAMPLES)


def _questions(number: int, seed: int) -> list[list[GenerationRequest]]:
    """Return each question's calls, with sessions that no other seed has."""
    return [
        [replace(call, tags=replace(call.tags, session=f"{seed}-{call.tags.session}")) for call in question]
        for question in calls.load(number, seed)
    ]


def _sampled(call: GenerationRequest) -> GenerationRequest:
    params = replace(call.sampling, temperature=TEMPERATURE, n=NUM_SAMPLES, seed=1, json_schema=None)
    return replace(call, sampling=params)


def open_text(folder: Path, temperature: float, num_questions: int, seed: int) -> Workload:
    """Open-ended answers, four at a time: no prompt of one seed is one of another."""
    prompts = read_prompts(folder)[seed - 1 :: NUM_SEEDS]
    calls = [
        [
            GenerationRequest(
                f"{seed}-{number}",
                prompt.messages,
                SamplingParams(temperature=temperature, seed=number, max_tokens=OPEN_TOKENS),
                Tags(StageKey.parse(prompt.stage), session=f"{seed}-{number}"),
            )
        ]
        for number, prompt in enumerate(prompts[: OPEN_PER_QUESTION * num_questions])
    ]
    return Workload(calls, 4, 4)


def load(name: str, places: Places, num_questions: int, seed: int) -> Workload:
    """Return a workload by name. Raises ConfigError if something of it is missing."""
    if name in OPEN_TEMPERATURES:
        return open_text(places.model_of(name), OPEN_TEMPERATURES[name], num_questions, seed)
    return WORKLOADS[name](num_questions, seed)


WORKLOADS: Mapping[str, Callable[[int, int], Workload]] = {"sql": sql, "sampling": sampling}
