"""The trials of the comparison: drafters, their settings, and the outputs that they learn beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle
from pathlib import Path

import numpy as np

from agentspec.draft import Source
from agentspec.forest import Forest, Tokens
from agentspec.replay import jobs
from agentspec.replay.calls import END, Call, encoded, load_tokenizer
from agentspec.replay.drafter import (
    TENANT,
    UNLIMITED_BYTES,
    Drafter,
    ForestDrafter,
    forest_config,
)
from agentspec.replay.jobs import Selection
from agentspec.replay.methods import LEARNED_SOURCES, METHODS, Rule
from agentspec.replay.replay import replay
from agentspec.replay.tally import Tally, total
from agentspec.stages import StageKey

PAPER = ("paper-shared", "paper-stage")
ALL_TREES = "forest"  # the paper's rule on all of our trees, a tenant's included
LEARNED = "learned"
MAX_DRAFT = 64
NO_ALPHA = 1e9
PAPER_PRICE = 0.1
ALPHAS = (1.0, 4.0)
PRICES = (0.7, 0.5, 0.35, 0.25, 0.17, 0.11, 0.07, 0.04, 0.02, 0.01, 0.005)
STAGE_PRICES = (0.35, 0.25, 0.17, 0.11, 0.07)  # the last drafts more than one tree does at PRICE
PRICE = 0.25
CALIBRATION_PRICE = 0.11
TREE_SIZES = (16, 32, 64)
ONE_TREE_SOURCES = (Source.SESSION, Source.WORKFLOW)
LEAST_LIMIT_BYTES = 2 << 20  # for memory that does not grow with the outputs: live requests, models
LIMIT_SHARE = 3  # in addition, the limit is a third of the memory of one tree of all outputs
DISTRACTION = 5  # multiple of the tokens of the data set's responses
SIBLING = "unrelated"
_RUN_TOKENS = 4  # how much two data sets share is judged by runs of so many tokens
_SAMPLE_TOKENS = 20_000  # of the other set


@dataclass(frozen=True, slots=True)
class Trial:
    """One replay of a file.

    Attributes:
        method: a key of METHODS.
        by_stage: for the learned rule: False uses one tree for all stages.
        is_limited: for the learned rule: all trees together have at most the data set's limit_bytes.
        is_distracted: for the learned rule: a sibling stage has learned an unrelated corpus beforehand.
    """

    method: str
    rule: Rule
    by_stage: bool = True
    is_limited: bool = False
    is_distracted: bool = False


def paper_chain(method: str, alpha: float) -> Trial:
    """Return a trial of the paper's rule, with drafts of at most alpha tokens for each matching token."""
    return Trial(method, Rule("chain", MAX_DRAFT, alpha, PAPER_PRICE))


def learned_chain(
    price: float, *, by_stage: bool = True, is_limited: bool = False, is_distracted: bool = False
) -> Trial:
    """Return a trial of the learned rule at a price in accepted tokens per draft token."""
    rule = Rule("chain", MAX_DRAFT, min_prob=price)
    return Trial(LEARNED, rule, by_stage, is_limited, is_distracted)


def tree(method: str, size: int) -> Trial:
    """Return a trial of trees of up to ``size`` nodes."""
    return Trial(method, Rule("tree", size, NO_ALPHA, 0.0))


TRIALS = (
    *(paper_chain(method, alpha) for alpha in ALPHAS for method in PAPER),
    paper_chain(ALL_TREES, ALPHAS[0]),
    *(learned_chain(price) for price in PRICES),
    *(tree(method, size) for size in TREE_SIZES for method in (*PAPER, LEARNED)),
    learned_chain(PRICE, by_stage=False, is_limited=True),
    *(learned_chain(price, is_limited=True) for price in STAGE_PRICES),
    learned_chain(PRICE, is_distracted=True),
)


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """The calls of a file."""

    calls: list[Call]

    @property
    def num_tokens(self) -> int:
        """Number of response tokens, including their END tokens."""
        return sum(len(call.response) for call in self.calls)

    def one_tree_bytes(self) -> int:
        """Return the memory of one tree of all responses."""
        forest, stage = Forest(forest_config((Source.STAGE,))), StageKey(TENANT, ("all",))
        for call in self.calls:
            forest.learn(stage, call.response)
        return forest.memory_bytes(stage)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The counts of a trial, and the size of its data.

    Attributes:
        one_tree_bytes: memory of one unlimited tree of all responses. 0 if the trial had no limit.
        distractor_tokens: tokens learned by the sibling stage. 0 if there is none.
    """

    tally: Tally
    num_calls: int
    num_tokens: int
    one_tree_bytes: int = 0
    distractor_tokens: int = 0


def limit_bytes(one_tree_bytes: int) -> int:
    """Return the memory limit of all trees together."""
    return LEAST_LIMIT_BYTES + one_tree_bytes // LIMIT_SHARE


def run(
    trial: Trial, path: Path, others: Sequence[Path], selection: Selection, prior: bytes | None = None
) -> Outcome:
    """Replay a file in a worker process. The learned rule starts from the prior; None = the shipped one."""
    data = _data_set(path, selection)
    one_tree_bytes = data.one_tree_bytes() if trial.is_limited else 0
    corpus = distractor(data, others, selection) if trial.is_distracted else []
    most_bytes = limit_bytes(one_tree_bytes) if trial.is_limited else UNLIMITED_BYTES
    drafter = _drafter(trial, most_bytes, corpus, prior)
    tally = total(replay(data.calls, drafter, selection.num_sessions, jobs.reporter()).values())
    return Outcome(tally, len(data.calls), data.num_tokens, one_tree_bytes, sum(map(len, corpus)))


@lru_cache(maxsize=1)  # the trials of a file are consecutive
def _data_set(path: Path, selection: Selection) -> DataSet:
    encode = load_tokenizer(selection.tokenizer)
    return DataSet([encoded(record, encode) for record in selection.chosen(path)])


def _drafter(trial: Trial, most_bytes: int, corpus: Sequence[Tokens], prior: bytes | None) -> Drafter:
    if trial.method != LEARNED:
        return METHODS[trial.method].make(trial.rule)
    drafter = ForestDrafter(
        replace(trial.rule.draft, rule="learned"),
        LEARNED_SOURCES if trial.by_stage else ONE_TREE_SOURCES,
        by_stage=trial.by_stage,
        limit_bytes=most_bytes,
        prior=prior,
    )
    for response in corpus:
        drafter.learn(SIBLING, response)
    return drafter


def distractor(data: DataSet, others: Sequence[Path], selection: Selection) -> list[Tokens]:
    """Return the unrelated corpus: DISTRACTION times the data set's tokens.

    It repeats the responses of the most unlike half of the other files, in order. Without other files, it
    repeats the data set's own responses, with every token replaced by a fixed other one.
    """
    left = DISTRACTION * data.num_tokens
    unlike = most_unlike(data, others, selection)
    responses = list(_responses(unlike, selection, left)) if unlike else _permuted(data)
    corpus: list[Tokens] = []
    for response in cycle(responses):
        if left <= 0:
            break
        corpus.append(response)
        left -= len(response)
    return corpus


def most_unlike(data: DataSet, others: Sequence[Path], selection: Selection) -> Sequence[Path]:
    """Return the half of the files that share the fewest runs of tokens with a data set, in their order."""
    known = {run for call in data.calls for run in _runs(call.response)}

    def likeness(path: Path) -> float:
        runs = [run for one in _responses([path], selection, _SAMPLE_TOKENS) for run in _runs(one)]
        return sum(run in known for run in runs) / max(1, len(runs))

    unlike = sorted(others, key=likeness)[: (len(others) + 1) // 2]
    return [path for path in others if path in unlike]


def _runs(response: Tokens) -> Iterator[bytes]:
    for begin in range(len(response) - _RUN_TOKENS + 1):
        yield response[begin : begin + _RUN_TOKENS].tobytes()


def _responses(paths: Sequence[Path], selection: Selection, num_tokens: int) -> Iterator[Tokens]:
    """Yield responses until they have ``num_tokens`` tokens, or all."""
    encode = load_tokenizer(selection.tokenizer)
    for path in paths:
        for record in selection.chosen(path):
            if num_tokens <= 0:
                return
            response = np.append(encode(record.response), np.int32(END))
            yield response
            num_tokens -= len(response)


def _permuted(data: DataSet) -> list[Tokens]:
    """Permute the tokens of all responses. The END tokens stay."""
    size = 1 + max((int(call.response[:-1].max(initial=0)) for call in data.calls), default=0)
    order = np.random.default_rng(0).permutation(size).astype(np.int32)
    return [np.append(order[call.response[:-1]], np.int32(END)) for call in data.calls]
