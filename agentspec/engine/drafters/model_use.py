"""The choice of requests for which a model drafts, in addition to the trees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentspec.stages import StageKey

MOST_STAGES = 1024  # clients name them; further ones have the gains of all
FEWEST = 4  # outcomes before a mean counts
EXPLORE_EVERY = 32  # steps, and requests, without the model
_NUM_STEPS = 8
_OUTLIER = 2.0  # times the mean: more is a pause of the machine
_UNKNOWN = 1e6  # a gain that is to be measured: more than any cost
_FADE = 0.999  # each time the model reads
_LEAST_RATE = 0.02  # of learning: older outcomes fade

Situation = tuple[StageKey | None, int]


@dataclass(slots=True)
class _Mean:
    """A mean in which older values fade."""

    value: float = 0.0
    num: int = 0

    def add(self, value: float, most: float | None = None) -> None:
        """Add a value. Beyond the first few it counts as at most ``most`` times the mean."""
        self.num += 1
        if most is not None and self.num > FEWEST:
            value = min(value, most * self.value)
        self.value += max(_LEAST_RATE, 1 / self.num) * (value - self.value)


class ModelUse:
    """Decides by stage, and by how many accepted tokens the trees expect.

    A pass of the model delays all requests of a step. So it drafts for those requests whose gain together
    exceeds what the engine gives in that time. The model reads the prompts of a stage if its drafts are
    worth that time as well. Gains and times are measured. A stage begins with the gains of all stages. Now
    and then the model drafts where it was not worth its time.
    """

    def __init__(self) -> None:
        # tokens accepted beyond the trees' own, by stage and for all stages (None)
        self._gains: dict[StageKey | None, list[_Mean]] = {None: [_Mean() for _ in range(_NUM_STEPS)]}
        self._passes_s: dict[int, _Mean] = {}  # time of a model's drafts, by the size of their number
        self._token_s = _Mean()  # time per output token, of all requests together
        self._reading_s = self._num_drafts = 0.0  # of late
        self._num_steps = self._num_requests = 0  # without the model

    def price(self, num_requests: int) -> float:
        """Return the tokens that the engine gives while the model drafts for ``num_requests`` requests."""
        if self._token_s.value <= 0:
            return 0.0
        return self._pass_s(num_requests) / self._token_s.value

    def wants(self, stage: StageKey) -> bool:
        """Return False if the model is never worth its time for a stage: it need not read the prompt."""
        met = [gain for gain in self._gains.get(stage, ()) if gain.num]
        price = self.price(1) + self._reading()
        if not met or any(gain.num < FEWEST or gain.value > price for gain in met):
            return True
        self._num_requests += 1
        return self._num_requests % EXPLORE_EVERY == 0

    def choose(self, expected: Sequence[tuple[StageKey, float]]) -> list[Situation | None]:
        """Return for each request a situation to be learned from if the model is to draft, else None.

        Args:
            expected: stage, and tokens of the trees' draft that will be accepted, for each request.
        """
        situations = [self._situation(stage, tokens) for stage, tokens in expected]
        worth = [self._gain(one) for one in situations]
        order = sorted(range(len(worth)), key=lambda place: -worth[place])
        best, num_chosen, together = 0.0, 0, 0.0
        for number, place in enumerate(order, 1):
            together += worth[place]
            if together - self.price(number) > best:
                best, num_chosen = together - self.price(number), number
        if not num_chosen and expected:
            self._num_steps += 1
            if self._num_steps % EXPLORE_EVERY == 0:
                num_chosen = len(expected)
        chosen = set(order[:num_chosen])
        return [one if place in chosen else None for place, one in enumerate(situations)]

    def learn(self, situation: Situation, gained: float) -> None:
        """Learn how many more tokens were accepted than of the trees' draft, less those that they cost."""
        for stage in {situation[0], None}:
            self._gains[stage][situation[1]].add(gained)

    def time_model(self, seconds: float, num_requests: int) -> None:
        """Note the time of the model's drafts for some requests."""
        self._passes_s.setdefault(num_requests.bit_length(), _Mean()).add(seconds, _OUTLIER)
        self._num_drafts += num_requests

    def time_reading(self, seconds: float) -> None:
        """Note the time in which the model read prompts and outputs."""
        self._reading_s = _FADE * self._reading_s + seconds
        self._num_drafts *= _FADE

    def time_step(self, seconds: float, num_tokens: int) -> None:
        """Note the time between two decode steps of the same requests, and their output tokens."""
        if num_tokens:
            self._token_s.add(seconds / num_tokens, _OUTLIER)

    def _reading(self) -> float:
        """Return the tokens that the engine gives while the model reads, for each of its drafts."""
        if self._token_s.value <= 0:
            return 0.0
        return self._reading_s / max(1.0, self._num_drafts) / self._token_s.value

    def _gain(self, situation: Situation) -> float:
        stage, step = situation
        known = (self._gains[one][step] for one in (stage, None))
        return next((gain.value for gain in known if gain.num >= FEWEST), _UNKNOWN)

    def _situation(self, stage: StageKey, expected: float) -> Situation:
        known = stage if stage in self._gains or len(self._gains) <= MOST_STAGES else None
        if known not in self._gains:
            self._gains[known] = [_Mean() for _ in range(_NUM_STEPS)]
        return known, min(_NUM_STEPS - 1, int(2 * math.log2(1 + expected)))

    def _pass_s(self, num_requests: int) -> float:
        """Return the time for a number of requests: that of the nearest measured size."""
        size = num_requests.bit_length()
        nearest = min(self._passes_s, key=lambda known: abs(known - size), default=None)
        return 0.0 if nearest is None else self._passes_s[nearest].value
