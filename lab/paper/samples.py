"""Samples of recorded calls for the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from zlib import crc32

from agentspec.errors import ConfigError
from agentspec.replay.calls import TEKKEN, Call, Encode, RecordedCall, encoded, load_tokenizer, read

LABELS = {
    "rsl_sql_spider_test": "RSL-SQL Spider",
    "rsl_sql_bird_dev_gpt4o": "RSL-SQL BIRD",
    "tau2_gpt41": "tau2",
    "tau_bench_airline_gpt4o": "tau-bench",
    "aider_swebench": "aider",
    "who_and_when_multiagent": "who&when",
    "self_refine_yelp_gpt4": "self-refine",
    "reflexion_hotpotqa_react": "reflexion",
    "tot_text": "ToT text",
    "codegen_gpt4_simple": "codegen",
    "spec_bench_vicuna7b": "Spec-Bench",
}
HELD_OUT_SHARE = 5  # a fifth of a data set's calls


@dataclass(frozen=True, slots=True)
class Sample:
    """Calls of a file, by session; sessions are in arbitrary order, by a hash of their names.

    Attributes:
        num_calls: maximum number of calls, after the first ``skip``.
        limit: number of calls read from the file; None = all.
        held_out: True for calls of some groups (tasks, databases), about a fifth of all; False for the rest.
    """

    path: Path
    num_calls: int | None = None
    skip: int = 0
    limit: int | None = None
    held_out: bool | None = None

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self.path.name.partition(".")[0]

    def records(self) -> Sequence[RecordedCall]:
        """Return the calls as text."""
        known = _records(self.path, self.limit)
        if self.held_out is not None:
            away = held_out(known)
            known = [record for record in known if (record.group in away) == self.held_out]
        return known[self.skip :][: self.num_calls]

    def size(self) -> int:
        """Return the number of calls."""
        return _size(self)

    def calls(self) -> Sequence[Call]:
        """Return the calls as token ids."""
        return _calls(self)

    def stages(self, least: int) -> list[str]:
        """Return the stages with at least ``least`` calls."""
        sizes = Counter(record.stage for record in self.records())
        return sorted(stage for stage, size in sizes.items() if size >= least)

    def outputs(self) -> Sequence[Call]:
        """Return the calls as token ids, without their prompts."""
        return [encoded(replace(record, prompt=""), _tokenizer()) for record in self.records()]


@dataclass(frozen=True, slots=True)
class Traces:
    """A folder with the data sets.

    Attributes:
        limit: maximum number of calls of each data set, in any figure.

    Raises:
        ConfigError: data sets are missing.
    """

    folder: Path
    limit: int | None = None

    def __post_init__(self) -> None:
        missing = [name for name in LABELS if not self._path(name).is_file()]
        if missing:
            raise ConfigError(
                f"{str(self.folder)!r} lacks {', '.join(f'{name}.jsonl.gz' for name in missing)}: the "
                "paper's figures are made from eleven files of recorded calls (make paper TRACES=DIR)"
            )

    def sample(
        self, name: str, num_calls: int | None = None, *, skip: int = 0, held_out: bool | None = None
    ) -> Sample:
        """Return a sample of the data set."""
        return Sample(self._path(name), num_calls, skip, self.limit, held_out)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl.gz"


def held_out(records: Sequence[RecordedCall]) -> set[str]:
    """Return groups, in arbitrary but fixed order, until they have a fifth of the calls."""
    sizes = Counter(record.group for record in records)
    chosen, num_chosen = set(), 0
    for group in sorted(sizes, key=_hash):
        if num_chosen * HELD_OUT_SHARE >= len(records):
            break
        chosen.add(group)
        num_chosen += sizes[group]
    return chosen


def _hash(name: str) -> int:
    return crc32(name.encode())


@lru_cache(maxsize=2)  # runs on a file follow one another
def _records(path: Path, limit: int | None) -> list[RecordedCall]:
    return sorted(islice(read(path), limit), key=lambda record: _hash(record.session))


@cache
def _size(sample: Sample) -> int:
    return len(sample.records())


@lru_cache(maxsize=4)
def _calls(sample: Sample) -> list[Call]:
    return [encoded(record, _tokenizer()) for record in sample.records()]


@lru_cache(maxsize=1)
def _tokenizer() -> Encode:
    return load_tokenizer(TEKKEN)
