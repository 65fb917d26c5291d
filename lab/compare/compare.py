"""Comparison of the learned rule with the paper's at matched budgets: figures per data set, and a summary."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from agentspec.replay.tally import Tally
from lab.compare.trials import (
    ALL_TREES,
    CALIBRATION_PRICE,
    LEARNED,
    PAPER,
    PRICE,
    PRICES,
    STAGE_PRICES,
    TREE_SIZES,
    Outcome,
    Trial,
    learned_chain,
    limit_bytes,
    paper_chain,
    tree,
)
from lab.replay.curve import Curve, Point

Outcomes = Mapping[Trial, Outcome]
Figures = Mapping[str, Mapping[str, Any]]  # by data set, then by figure

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "≥": operator.ge,
    ">": operator.gt,
    "≤": operator.le,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A figure over all data sets, and its acceptance criterion.

    Attributes:
        label: the measured quantity, for the table.
        figure: its name among a data set's figures.
        fold: reduction over the data sets: ``"mean"``, ``"min"`` or ``"max"``.
        sign: comparison of the result with the bar: a key of COMPARISONS.
        key: the result's name in the summary.
    """

    label: str
    figure: str
    fold: str
    sign: str
    bar: float
    key: str

    def result(self, figures: Figures) -> float | None:
        """Return the folded figure, or None if any data set lacks it. An unreached figure is not skipped."""
        values = [one[self.figure] for one in figures.values()]
        if not values or None in values:
            return None
        return float(FOLDS[self.fold](values))

    def passes(self, figures: Figures) -> bool:
        """Return True if the bar is met. A missing result does not meet it."""
        result = self.result(figures)
        return result is not None and COMPARISONS[self.sign](result, self.bar)

    def worst(self, figures: Figures) -> str:
        """Return the data set that is farthest on the wrong side, or one without the figure."""
        lacking = [name for name, one in figures.items() if one[self.figure] is None]
        if lacking:
            return lacking[0]
        pick = max if self.sign == "≤" else min
        return pick(figures, key=lambda name: figures[name][self.figure])


FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": fmean, "min": min, "max": max}

_GAIN, _STAGE = "accepted_gain_equal_drafts", "stage_gain"
_TREES_GAIN = "accepted_gain_vs_all_trees"
_RATIO, _TREE = "draft_ratio_equal_tokens", "tree_gain_equal_nodes"
ROWS = (
    Row("accepted tokens at equal drafts, gain, mean", _GAIN, "mean", "≥", 0.18, f"{_GAIN}_mean"),
    Row("  least", _GAIN, "min", "≥", 0.06, f"{_GAIN}_min"),
    Row("  the paper's rule has all trees, mean", _TREES_GAIN, "mean", "≥", 0.0, f"{_TREES_GAIN}_mean"),
    Row("  least", _TREES_GAIN, "min", "≥", 0.0, f"{_TREES_GAIN}_min"),
    Row("drafts for equal tokens, ratio, mean", _RATIO, "mean", "≤", 0.42, f"{_RATIO}_mean"),
    Row("tokens per step of trees of equal size, gain, mean", _TREE, "mean", "≥", 0.05, f"{_TREE}_mean"),
    Row("stage trees at equal memory, gain, mean", _STAGE, "mean", ">", 0.0, f"{_STAGE}_mean"),
    Row("  least", _STAGE, "min", "≥", -0.01, f"{_STAGE}_min"),
    Row("calibration error, largest", "ece", "max", "≤", 0.05, "ece_max"),
    Row("loss to an unrelated stage, largest", "distractor_loss", "max", "≤", 0.01, "distractor_loss_max"),
)


def summary(figures: Figures) -> dict[str, float | None]:
    """Return the rows' results by key."""
    return {row.key: row.result(figures) for row in ROWS}


def figures(outcomes: Outcomes) -> dict[str, Any]:
    """Return the figures of one data set's trials, and every point that was run.

    Shares are fractions: 0.1 is a tenth more. A figure is None if there is no peer to compare with, or if no
    price that was run reaches the peer.
    """
    tallies = {trial: outcome.tally for trial, outcome in outcomes.items()}
    plain = outcomes[learned_chain(PRICE)]
    one_tree_bytes = outcomes[_one_tree()].one_tree_bytes
    return {
        "accepted_gain_equal_drafts": accepted_gain(tallies),
        "accepted_gain_vs_all_trees": accepted_gain(tallies, (ALL_TREES,)),
        "draft_ratio_equal_tokens": draft_ratio(tallies),
        "tree_gain_equal_nodes": tree_gain(tallies),
        "stage_gain": stage_gain(tallies),
        "ece": tallies[learned_chain(CALIBRATION_PRICE)].calibration_error,
        "calibration": tallies[learned_chain(CALIBRATION_PRICE)].calibration,
        "distractor_loss": distractor_loss(tallies),
        "num_calls": plain.num_calls,
        "num_tokens": plain.num_tokens,
        "one_tree_bytes": one_tree_bytes,
        "limit_bytes": limit_bytes(one_tree_bytes),
        "distractor_tokens": outcomes[_distracted()].distractor_tokens,
        "points": [_point(trial, tally) for trial, tally in tallies.items()],
    }


def accepted_gain(tallies: Mapping[Trial, Tally], peers: Sequence[str] = PAPER) -> float | None:
    """Return the gain in accepted draft tokens per step over the paper's rule, alpha 1, at equal drafts."""
    peer = _peer(tallies, 1.0, peers)
    return _gain(_accepted(tallies).gained(peer.drafted_per_step), peer.accepted_per_step)


def draft_ratio(tallies: Mapping[Trial, Tally]) -> float | None:
    """Return the ratio of two numbers of draft tokens: the learned rule's, and the paper's with alpha 4.

    Both rules accept the same number of draft tokens.
    """
    peer = _peer(tallies, 4.0)
    drafted = _accepted(tallies).drafted(peer.accepted_per_step)
    return None if drafted is None or not peer.drafted else drafted / peer.drafted_per_step


def tree_gain(tallies: Mapping[Trial, Tally]) -> float | None:
    """Return the gain in tokens per step with trees of equal maximum size, as a mean over the sizes."""
    gains = []
    for size in TREE_SIZES:
        peer = max(tallies[tree(method, size)].tokens_per_step for method in PAPER)
        gains.append(_gain(tallies[tree(LEARNED, size)].tokens_per_step, peer))
    known = [gain for gain in gains if gain is not None]
    return fmean(known) if len(known) == len(gains) else None


def stage_gain(tallies: Mapping[Trial, Tally]) -> float | None:
    """Return the gain in tokens per step of a tree per stage over one tree.

    Both have the same memory limit and the same number of draft tokens.
    """
    staged = [tallies[learned_chain(price, is_limited=True)] for price in STAGE_PRICES]
    curve = Curve([Point(one.drafted_per_step, one.tokens_per_step) for one in staged], at_zero=1.0)
    together = tallies[_one_tree()]
    return _gain(curve.gained(together.drafted_per_step), together.tokens_per_step)


def distractor_loss(tallies: Mapping[Trial, Tally]) -> float | None:
    """Return the loss in tokens per step if a sibling stage has learned an unrelated corpus."""
    gain = _gain(tallies[_distracted()].tokens_per_step, tallies[learned_chain(PRICE)].tokens_per_step)
    return None if gain is None else -gain


def _one_tree() -> Trial:
    return learned_chain(PRICE, by_stage=False, is_limited=True)


def _distracted() -> Trial:
    return learned_chain(PRICE, is_distracted=True)


def _peer(tallies: Mapping[Trial, Tally], alpha: float, peers: Sequence[str] = PAPER) -> Tally:
    """Return the best of some methods with the paper's rule; by default, with one tree or one per stage."""
    return max((tallies[paper_chain(one, alpha)] for one in peers), key=lambda one: one.accepted_per_step)


def _accepted(tallies: Mapping[Trial, Tally]) -> Curve:
    run = [tallies[learned_chain(price)] for price in PRICES]
    return Curve(Point(one.drafted_per_step, one.accepted_per_step) for one in run)


def _gain(ours: float | None, theirs: float) -> float | None:
    return None if ours is None or not theirs else ours / theirs - 1


def _point(trial: Trial, tally: Tally) -> dict[str, Any]:
    return {
        "method": trial.method,
        "mode": trial.rule.mode,
        "max_tokens": trial.rule.max_tokens,
        "alpha": trial.rule.alpha,
        "min_prob": trial.rule.min_prob,
        "by_stage": trial.by_stage,
        "is_limited": trial.is_limited,
        "is_distracted": trial.is_distracted,
        "steps": tally.steps,
        "tokens": tally.tokens,
        "tokens_per_step": tally.tokens_per_step,
        "drafted_per_step": tally.drafted_per_step,
        "accepted_per_step": tally.accepted_per_step,
        "calibration_error": tally.calibration_error,
    }
