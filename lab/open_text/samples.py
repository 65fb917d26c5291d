"""Recorded open-ended answers as training samples, and the prompts of the other half as a workload.

Whole groups (questions, tasks) are in one half, so no measured prompt was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from agentspec.errors import ConfigError
from agentspec.replay.calls import RecordedCall, read
from benchmarks.harness.traces import files
from examples.agentic_sql.samples import Sample

SETS = ("spec_bench_vicuna7b", "tot_text", "codegen_gpt4_simple")
TRAINING, MEASURED = 0, 1  # halves
PROMPTS = "prompts.jsonl"
_MOST_PROMPT = 1200  # characters, the last ones
_MOST_ANSWER = 2400


def recorded(traces: Path, half: int) -> list[Sample]:
    """Return the answers of one half of the sets. The measured ones have no prompt of the training half.

    Raises:
        ConfigError: a set is missing.
    """
    found = {path.name.split(".")[0]: path for path in files(traces)}
    for name in SETS:
        if name not in found:
            raise ConfigError(f"{str(traces)!r} has no set {name!r}")
    halves: tuple[list[Sample], list[Sample]] = [], []
    for name in SETS:
        for call in read(found[name]):
            halves[call.half()].append(_sample(name, call))
    known = {_prompt(one) for one in halves[TRAINING]}  # groups may ask the same
    return [one for one in halves[half] if half == TRAINING or _prompt(one) not in known]


def stream(samples: Sequence[Sample], seed: int | str) -> Iterator[Sample]:
    """Yield the samples again and again, shuffled anew each time."""
    rng = Random(f"open text {seed}")
    while True:
        yield from rng.sample(samples, len(samples))


def draw_prompts(samples: Sequence[Sample], number: int) -> list[Sample]:
    """Return so many different prompts of each set, the sets in turn.

    Raises:
        ConfigError: a set has too few.
    """
    rng, by_set = Random("prompts"), []
    for name in SETS:
        found = _distinct(samples, name)
        if len(found) < number:
            raise ConfigError(
                f"the set {name!r} has {len(found)} prompts to measure on, but {number} are needed"
            )
        by_set.append(rng.sample(found, number))
    return [prompt for together in zip(*by_set, strict=True) for prompt in together]


def write_prompts(prompts: Sequence[Sample], folder: Path) -> None:
    """Write prompts to a folder."""
    lines = [json.dumps({"stage": one.stage, "messages": one.messages}) for one in prompts]
    (folder / PROMPTS).write_text("".join(f"{line}\n" for line in lines))


def read_prompts(folder: Path) -> list[Sample]:
    """Return the prompts of a folder.

    Raises:
        ConfigError: it has none.
    """
    path = folder / PROMPTS
    if not path.exists():
        raise ConfigError(f"{str(path)!r} is missing: run `python -m lab open-text --out {folder}`")
    rows = map(json.loads, path.read_text().splitlines())
    return [Sample(row["stage"], row["messages"], "") for row in rows]


def _sample(name: str, call: RecordedCall) -> Sample:
    content = call.prompt[-_MOST_PROMPT:].replace("<|", "<")  # no special tokens
    answer = call.response[:_MOST_ANSWER].replace("<|", "<")
    return Sample(f"{name}/{call.stage}", [{"role": "user", "content": content}], answer)


def _distinct(samples: Sequence[Sample], name: str) -> list[Sample]:
    """Return a sample for each prompt of a set."""
    mine = (one for one in samples if one.stage.startswith(f"{name}/"))
    return list({_prompt(one): one for one in mine}.values())


def _prompt(sample: Sample) -> str:
    return sample.messages[0]["content"]
