"""The state of an acceptance model as arrays, and the mean of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec._native import ForestCore
from agentspec.errors import ConfigError

Floats = NDArray[np.float64]
Integers = NDArray[np.int_]

# as in core/drafting/evidence.hpp, cells.hpp and acceptance_model.hpp
NUM_CONTEXT_CELLS = 10 * 7 * 7 * 8 + 6 * 5 * 7  # contexts, lengths, totals, shares; the own text
NUM_HASHED_CELLS = 12_288
NUM_WEIGHT_SETS = 64 + 32  # of each set of trees, of each kind
NUM_INPUTS = 17
NUM_DEPTHS, NUM_STEPS = 8, 33
UNITS = 55.0
_COUNT_BIT = 10  # of a context's cell: the count's first bit; those before it are the stretched share
_MOST = np.rint(np.log((1 - 1e-4) / 1e-4) * UNITS)  # of a cell
PRIOR_COUNT, PRIOR_LEARNED = 20, 200
# of the shipped source, as in core/drafting/acceptance_prior.hpp
CONTEXT_UNITS, WEIGHT_UNITS, CALIBRATION_UNITS = 11, 1000, 10000
_MOST_SEEN = 60  # outcomes of a cell that count in the mean
_HALF_WEIGHT_AT = 200  # outcomes
_CELLS_OWN = 20  # weight of a cell's estimate without a prior, in outcomes

_STATE = np.dtype(
    [
        ("contexts", "<u2", NUM_CONTEXT_CELLS),
        ("hashed", "<u2", NUM_HASHED_CELLS),
        # with the bias and the number of outcomes
        ("weights", [("of", "<f4", NUM_INPUTS + 1), ("num", "<f4")], NUM_WEIGHT_SETS),
        ("calibration", "<f4", (NUM_DEPTHS, NUM_STEPS)),
    ]
)


@dataclass(frozen=True, slots=True)
class Learned:
    """What models have learned, in means. Hashed cells are left out: they belong to a vocabulary.

    Attributes:
        contexts: ``[cells]``, log(p / (1 - p)) of each.
        num_contexts: ``[cells]``, outcomes in each.
        weights: ``[weight sets, inputs + 1]``, with the bias.
        num_weights: ``[weight sets]``, outcomes of each.
        calibration: ``[depths, steps]``, probabilities.
    """

    contexts: Floats
    num_contexts: Floats
    weights: Floats
    num_weights: Floats
    calibration: Floats


def read(state: bytes) -> Learned:
    """Return what a model has learned. Raises ConfigError if the bytes are not the state of a model."""
    one, before = _record(state), _record(ForestCore.untrained_model_state())
    counts = np.minimum(_counts(one["contexts"]), _MOST_SEEN).astype(float)
    return Learned(
        _stretched(one["contexts"]) / UNITS,
        counts - _counts(before["contexts"]),
        one["weights"]["of"].astype(float),
        one["weights"]["num"].astype(float),
        one["calibration"].astype(float),
    )


def together(models: Sequence[Learned]) -> Learned:
    """Return the mean of the models of one set's stages, each weighted by its outcomes."""
    num_contexts = np.sum([one.num_contexts for one in models], axis=0)
    num_weights = np.sum([one.num_weights for one in models], axis=0)
    totals = np.array([one.num_weights.sum() for one in models]) + 1e-9  # stages may have no outcomes
    return Learned(
        _mean([one.contexts for one in models], [one.num_contexts for one in models]),
        np.minimum(num_contexts, _MOST_SEEN),
        _mean([one.weights for one in models], [one.num_weights[:, None] for one in models]),
        num_weights,
        np.average([one.calibration for one in models], axis=0, weights=totals),
    )


def pooled(sets: Sequence[Learned]) -> Learned:
    """Return the prior of several sets: each counts as much, and the estimates without a prior a little."""
    blank = read(ForestCore.untrained_model_state())
    trust = [one.num_weights / (one.num_weights + _HALF_WEIGHT_AT) for one in sets]
    return Learned(
        _mean([*(one.contexts for one in sets), blank.contexts],
              [*(one.num_contexts for one in sets), np.full(NUM_CONTEXT_CELLS, _CELLS_OWN)]),
        blank.num_contexts,
        _mean([*(one.weights for one in sets), blank.weights],
              [*(one[:, None] for one in trust), np.ones((NUM_WEIGHT_SETS, 1))]),
        blank.num_weights,
        np.mean([one.calibration for one in sets], axis=0),
    )  # fmt: skip


def integers(prior: Learned) -> tuple[Integers, Integers, Integers]:
    """Return the contexts, weights and calibration of a prior as the source has them."""
    return (
        _rounded(prior.contexts * CONTEXT_UNITS, np.int8),
        _rounded(prior.weights * WEIGHT_UNITS, np.int16),
        _rounded(prior.calibration * CALIBRATION_UNITS, np.int16),
    )


def state_of(prior: Learned) -> bytes:
    """Return the state of a model that starts from a prior, rounded as in the source."""
    contexts, weights, calibration = integers(prior)
    state = _record(ForestCore.untrained_model_state()).copy()
    stretched = np.clip(np.rint(contexts / CONTEXT_UNITS * UNITS), -_MOST, _MOST).astype(int)
    state["contexts"] = stretched % (1 << _COUNT_BIT) | PRIOR_COUNT << _COUNT_BIT
    state["weights"]["of"] = weights / WEIGHT_UNITS
    state["weights"]["num"] = PRIOR_LEARNED
    state["calibration"] = calibration / CALIBRATION_UNITS
    return state.tobytes()


def _stretched(cells: NDArray[np.uint16]) -> Integers:
    low = cells.astype(int) % (1 << _COUNT_BIT)
    return np.where(low < 1 << (_COUNT_BIT - 1), low, low - (1 << _COUNT_BIT))


def _counts(cells: NDArray[np.uint16]) -> Integers:
    return cells.astype(int) >> _COUNT_BIT


def _rounded(values: Floats, dtype: type[np.integer[Any]]) -> Integers:
    limits = np.iinfo(dtype)
    return np.clip(np.rint(values), limits.min, limits.max).astype(int)


def _mean(values: Sequence[Floats], weights: Sequence[Floats]) -> Floats:
    """Return the weighted mean; the first value where no weight is positive."""
    total = sum(np.broadcast_to(one, values[0].shape) for one in weights)
    summed = sum(value * weight for value, weight in zip(values, weights, strict=True))
    return np.where(total > 0, summed / np.maximum(total, 1e-9), values[0])


def _record(state: bytes) -> NDArray[np.void]:
    if len(state) != _STATE.itemsize:
        raise ConfigError(f"the state of a model has {_STATE.itemsize} bytes, not {len(state)}")
    record: NDArray[np.void] = np.frombuffer(state, _STATE)[0]
    return record
