"""The chance of a draft token by what two drafters say of it, learned from accepted tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

_MOST_LOG_ODDS = 8.0
_LEAST_REST = 0.01  # of the chance that a drafter leaves to tokens that it does not draft
_FIRST_RATE = 0.1  # of learning; it falls with the outcomes
_LEAST_RATE = 0.005
_HALF_RATE_AT = 200
_USUAL_SIZE = 16.0  # of the inputs, squared: steps for these are half as long
_LEAST_WEIGHT = 0.2  # of an input


class Opinions(NamedTuple):
    """What the drafters say of a token, if the tokens before it are accepted.

    Attributes:
        trees, model: the chances that they give it; 0 = they gave none.
        trees_rest, model_rest: the chance that they leave to tokens to which they gave none; 1 = they
            gave none at this place.
    """

    trees: float
    model: float
    trees_rest: float
    model_rest: float


@dataclass(slots=True)
class _Weights:
    own: list[float]  # of the inputs
    bias: float = 0.0
    num_learned: int = 0


class JointChance:
    """Mixes the drafters' estimates in the logistic domain, as the learned rule does with its trees'.

    Where both estimate a token, both count. Where one does, so does the chance that the other one leaves to
    tokens without an estimate. Weights are learned by gradient descent on coding cost, for each of these
    three cases. Steps are normalized by their inputs and weights stay positive, so that a few confident
    mistakes do not turn the order of estimates round.
    """

    def __init__(self) -> None:
        self._both = _Weights([0.6, 0.6])
        self._trees = _Weights([1.0, 0.5])
        self._model = _Weights([1.0, 0.25])

    def __call__(self, said: Opinions) -> float:
        """Return the chance, strictly between 0 and 1, that the token is accepted if those before it are."""
        weights, inputs = self._case(said)
        return _mixed(weights, inputs)

    def learn(self, said: Opinions, is_accepted: bool) -> None:
        """Learn whether a token was accepted; those before it were."""
        weights, inputs = self._case(said)
        rate = max(_LEAST_RATE, _FIRST_RATE / (1 + weights.num_learned / _HALF_RATE_AT))
        step = rate * (is_accepted - _mixed(weights, inputs))
        weights.bias += step
        step /= 1 + sum(value * value for value in inputs) / _USUAL_SIZE
        for place, value in enumerate(inputs):
            weights.own[place] = max(_LEAST_WEIGHT, weights.own[place] + step * value)
        weights.num_learned += 1

    def _case(self, said: Opinions) -> tuple[_Weights, tuple[float, float]]:
        if said.trees and said.model:
            return self._both, (_log_odds(said.trees), _log_odds(said.model))
        if said.trees:
            return self._trees, (_log_odds(said.trees), math.log(max(_LEAST_REST, said.model_rest)))
        return self._model, (_log_odds(said.model), math.log(max(_LEAST_REST, said.trees_rest)))


def _mixed(weights: _Weights, inputs: tuple[float, float]) -> float:
    x = weights.bias + weights.own[0] * inputs[0] + weights.own[1] * inputs[1]
    return 1 / (1 + math.exp(-max(-_MOST_LOG_ODDS, min(_MOST_LOG_ODDS, x))))


def _log_odds(chance: float) -> float:
    least = 1 / (1 + math.exp(_MOST_LOG_ODDS))
    chance = min(1 - least, max(least, chance))
    return math.log(chance / (1 - chance))
