"""Recorded calls as the benchmark replays them: a part of each set, with prompts of bounded length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec import structs

from agentspec.corpus.batch import Output
from agentspec.forest.file import MOST_USES
from agentspec.replay.calls import END, TEKKEN, Call, encoded, load_tokenizer
from agentspec.replay.drafter import TENANT
from agentspec.replay.jobs import Selection, name_of
from agentspec.stages import StageKey

VOCABULARY = "tekken"
VOCAB_SIZE = END + 1
PROMPT_TOKENS = 4096  # the end of a longer prompt is kept
_MOST_BYTES = 8 * PROMPT_TOKENS  # of text that PROMPT_TOKENS have


@lru_cache(maxsize=1)
def read_calls(path: Path, num_calls: int | None, half: int | None = None) -> Sequence[Call]:
    """Return the first calls of a set, or of one half of its tasks.

    Raises:
        ConfigError: the file is not a record of calls.
    """
    encode = load_tokenizer(TEKKEN)
    calls = []
    for record in Selection(limit=num_calls, half=half).chosen(path):
        call = encoded(replace(record, prompt=record.prompt[-_MOST_BYTES:]), encode)
        calls.append(replace(call, prompt=call.prompt[-PROMPT_TOKENS:]))
    return calls


def read_outputs(path: Path, num_calls: int | None, half: int) -> dict[bytes, Output]:
    """Return the outputs of one half of a set by their digest, with their uses.

    Raises:
        ConfigError: the file is not a record of calls.
    """
    outputs: dict[bytes, Output] = {}
    for output in each_output(path, num_calls, half):
        before = outputs.get(output.digest)
        outputs[output.digest] = (
            structs.replace(output, uses=min(before.uses + 1, MOST_USES)) if before else output
        )
    return outputs


def each_output(path: Path, num_calls: int | None, half: int | None = None) -> Iterator[Output]:
    """Yield the output of each of the first calls of a set, or of one half of its tasks.

    Raises:
        ConfigError: the file is not a record of calls.
    """
    encode = load_tokenizer(TEKKEN)
    for record in Selection(limit=num_calls, half=half).chosen(path):
        tokens = np.append(encode(record.response), np.int32(END))
        yield Output(stage_key(name_of(path), record.stage), tokens)


def stage_key(name: str, stage: str) -> StageKey:
    """Return the key of a stage of the set with this name. All sets have one tenant."""
    return StageKey(TENANT, (name, stage.replace("/", "_")))
