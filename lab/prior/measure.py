"""The learned rule with a prior of other workflows' sets, against the paper's rule and without a prior."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentspec._native import ForestCore
from agentspec.config import DraftConfig
from agentspec.errors import ConfigError
from agentspec.replay.calls import TEKKEN, encoded, load_tokenizer
from agentspec.replay.drafter import ForestDrafter
from agentspec.replay.jobs import Selection, name_of, reporter, share_out
from agentspec.replay.methods import LEARNED_SOURCES
from agentspec.replay.replay import replay
from agentspec.replay.tally import Bin, Tally
from agentspec.reporting.report import Announce
from lab.compare import compare, trials
from lab.compare.trials import (
    ALPHAS,
    CALIBRATION_PRICE,
    LEARNED,
    PAPER,
    PRICE,
    PRICES,
    TREE_SIZES,
    Outcome,
    Trial,
    learned_chain,
    paper_chain,
    tree,
)
from lab.prior import state
from lab.prior.sizes import Sizes
from lab.prior.state import Learned

Figures = dict[str, Any]
COLD = "cold"

# drafts at a low price: tokens that are not drafted teach little
_TRAINING = (
    DraftConfig("chain", max_tokens=64, min_prob=0.05, rule="learned"),
    DraftConfig("tree", max_tokens=32, min_prob=0.02, rule="learned"),
)
_LEARNED_CHAINS = tuple(learned_chain(price) for price in PRICES)
_TRIALS = (
    *(paper_chain(method, alpha) for alpha in ALPHAS for method in PAPER),
    *_LEARNED_CHAINS,
    *(tree(method, size) for size in TREE_SIZES for method in (*PAPER, LEARNED)),
    learned_chain(PRICE, is_distracted=True),
)

_UNTRAINED = ("accepted_gain_equal_drafts", "draft_ratio_equal_tokens", "ece")
_FOLDS = {
    "accepted_gain_equal_drafts": ("mean", "min"),
    "draft_ratio_equal_tokens": ("mean",),
    "tree_gain_equal_nodes": ("mean", "min"),
    "ece": ("mean", "max"),
    "ece_noise": ("mean", "max"),
    "distractor_loss": ("mean", "max"),
}


def learn(path: Path, num_calls: int) -> Learned:
    """Return what the stages of a set learn from its first calls, in a worker process."""
    encode = load_tokenizer(TEKKEN)
    calls = [encoded(record, encode) for record in Selection(limit=num_calls).chosen(path)]
    models: list[Learned] = []
    for draft in _TRAINING:
        drafter = ForestDrafter(draft, LEARNED_SOURCES, prior=ForestCore.untrained_model_state())
        replay(calls, drafter, 1, reporter())
        models += map(state.read, drafter.model_states())
    return state.together(models)


def learn_all(paths: Sequence[Path], sizes: Sizes, announce: Announce) -> dict[Path, Learned]:
    """Return what the stages of each set learn."""
    announce(f"learning from up to {sizes.training_calls} calls of each of {len(paths)} sets")
    arguments = [(path, sizes.training_calls) for path in paths]
    found = share_out(
        learn, arguments, sizes.num_processes, len(_TRAINING) * len(paths) * sizes.training_calls
    )
    return dict(zip(paths, found, strict=True))


def measure(name: str, learned: Mapping[Path, Learned], sizes: Sizes, announce: Announce) -> Figures:
    """Measure the part of this name: each set with the prior of other workflows' sets, and without one.

    Args:
        name: ``"cold"`` (the first calls of both halves), ``"first"`` or ``"second"`` (the halves).
    """
    halves = ("first", "second") if name == COLD else (name,)
    limit = sizes.cold_calls if name == COLD else sizes.num_calls
    by_set: Figures = {}
    for half in halves:
        num_trials = len(_TRIALS) + len(_LEARNED_CHAINS)
        announce(f"{name}: {num_trials} trials on up to {limit} calls of the {half} half of each set")
        selection = Selection(limit=limit, half=("first", "second").index(half))
        by_set.update(
            {f"{name_of(path)}, {half}": one for path, one in _half(learned, selection, sizes).items()}
        )
    return {**summed(by_set), "by_set": by_set}


def _half(learned: Mapping[Path, Learned], selection: Selection, sizes: Sizes) -> dict[Path, Figures]:
    untrained = ForestCore.untrained_model_state()
    arguments: list[tuple[Trial, Path, tuple[Path, ...], Selection, bytes]] = []
    for path in learned:
        others = tuple(other for other in learned if other != path)
        prior = state.state_of(state.pooled([learned[other] for other in strangers(path, others)]))
        arguments += [(trial, path, others, selection, prior) for trial in _TRIALS]
        arguments += [(trial, path, others, selection, untrained) for trial in _LEARNED_CHAINS]
    num_calls = len(arguments) * (selection.limit or 0)
    outcomes = iter(share_out(trials.run, arguments, sizes.num_processes, num_calls))
    found = {}
    for path in learned:
        with_prior = {trial: next(outcomes) for trial in _TRIALS}
        without = with_prior | {trial: next(outcomes) for trial in _LEARNED_CHAINS}
        found[path] = figures(with_prior) | {
            f"{name}_untrained": value for name, value in figures(without).items() if name in _UNTRAINED
        }
    return found


def strangers(path: Path, others: Sequence[Path]) -> list[Path]:
    """Return the other sets that are not of the same workflow: their names begin with another word.

    Raises:
        ConfigError: there are none.
    """
    found = [other for other in others if _workflow(other) != _workflow(path)]
    if not found:
        raise ConfigError(f"a prior for {path.name!r} needs a set of another workflow beside it")
    return found


def _workflow(path: Path) -> str:
    return re.split(r"[^a-z]", path.name, maxsplit=1)[0]


def figures(outcomes: Mapping[Trial, Outcome]) -> Figures:
    """Return the figures of one set."""
    tallies = {trial: outcome.tally for trial, outcome in outcomes.items()}
    plain = outcomes[learned_chain(PRICE)]
    return {
        "accepted_gain_equal_drafts": compare.accepted_gain(tallies),
        "draft_ratio_equal_tokens": compare.draft_ratio(tallies),
        "tree_gain_equal_nodes": compare.tree_gain(tallies),
        "ece": tallies[learned_chain(CALIBRATION_PRICE)].calibration_error,
        "ece_noise": calibration_noise(tallies[learned_chain(CALIBRATION_PRICE)]),
        "distractor_loss": compare.distractor_loss(tallies),
        "num_calls": plain.num_calls,
        "num_tokens": plain.num_tokens,
    }


def summed(by_set: Mapping[str, Figures]) -> Figures:
    """Return means and extremes over the sets; None for a figure that a set lacks."""

    def values(name: str) -> list[float]:
        return [one[name] for one in by_set.values()]

    found: Figures = {}
    for name, folds in (_FOLDS | {f"{name}_untrained": _FOLDS[name] for name in _UNTRAINED}).items():
        is_known = None not in values(name)
        found |= {f"{name}_{fold}": compare.FOLDS[fold](values(name)) if is_known else None for fold in folds}
    return found


def shipped(learned: Mapping[Path, Learned]) -> Learned:
    """Return the prior of all sets."""
    return state.pooled(list(learned.values()))


def calibration_noise(tally: Tally) -> float | None:
    """Return the expected calibration error of exact estimates, from chance only. None without estimates.

    The mean absolute deviation of each bin's hits, with its mean estimate as the probability.
    """
    num = sum(one.num for one in tally.bins)
    return sum(_mean_deviation(one) for one in tally.bins) / num if num else None


def _mean_deviation(one: Bin) -> float:
    """Return the mean absolute deviation of a binomial number of hits (De Moivre's formula)."""
    if not 0 < one.expected < one.num:
        return 0.0
    p = one.expected / one.num
    above = math.floor(one.expected) + 1
    log_ways = math.lgamma(one.num + 1) - math.lgamma(above + 1) - math.lgamma(one.num - above + 1)
    log_prob = log_ways + above * math.log(p) + (one.num - above + 1) * math.log1p(-p)
    return 2 * above * math.exp(log_prob)
