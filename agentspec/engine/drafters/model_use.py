"""The choice of requests for which a model drafts, in addition to the trees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentspec.stages import StageKey

MOST_STAGES = 1024  # clients name them; further ones share what is known of all
FEWEST = 4  # outcomes, or requests, before a mean counts
EXPLORE_EVERY = 32  # steps, and requests, without the model
_NUM_STEPS = 8
_OUTLIER = 2.0  # times the mean: more is a pause of the machine
_UNKNOWN = 1e6  # a gain that is to be measured: more than any cost
_HOPED = 4.0  # tokens: an unknown gain, where the reading of a prompt depends on it
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


def _means() -> list[_Mean]:
    return [_Mean() for _ in range(_NUM_STEPS)]


@dataclass(slots=True)
class _Stage:
    """What is known of a stage, or of all stages.

    Attributes:
        gains: tokens accepted beyond the trees' own, by what the trees expect.
        met: steps of a request, by what the trees expect.
        reading_s: time in which the model reads a request's prompt.
    """

    gains: list[_Mean] = field(default_factory=_means)
    met: list[_Mean] = field(default_factory=_means)
    reading_s: _Mean = field(default_factory=_Mean)

    @property
    def num_requests(self) -> int:
        """Requests that have ended."""
        return self.met[0].num


class ModelUse:
    """Decides by stage, and by how many accepted tokens the trees expect.

    A pass of the model delays all requests of a step. So it drafts for those requests whose gain together
    exceeds what the engine gives in that time. The model reads the prompt of a request if its drafts for
    such requests gain more than the engine gives in the time of the reading. Gains and times are measured. A
    stage begins with what is known of all stages. Now and then the model drafts where it was not worth its
    time.
    """

    def __init__(self) -> None:
        self._all = _Stage()
        self._stages: dict[StageKey, _Stage] = {}
        self._passes_s: dict[int, _Mean] = {}  # time of a model's drafts, by the size of their number
        self._draft_s = _Mean()  # time of a draft, if others share its passes
        self._token_s = _Mean()  # time per output token, of all requests together
        self._num_steps = self._num_requests = 0  # without the model

    def price(self, num_requests: int) -> float:
        """Return the tokens that the engine gives while the model drafts for ``num_requests`` requests."""
        return self._tokens_in(self._pass_s(num_requests))

    def wants(self, stage: StageKey) -> bool:
        """Return False if the model's drafts for a request will not be worth the reading of its prompt."""
        one = self._stages.get(stage, self._all)
        known = one if one.num_requests >= FEWEST else self._all
        reading_s = one.reading_s if one.reading_s.num else self._all.reading_s
        price = self._tokens_in(self._draft_s.value)
        gains = (self._gain((stage, step), unknown=_HOPED) for step in range(_NUM_STEPS))
        worth = sum(met.value * max(0.0, gain - price) for met, gain in zip(known.met, gains, strict=True))
        if known.num_requests < FEWEST or worth > self._tokens_in(reading_s.value):
            return True
        self._num_requests += 1
        return self._num_requests % EXPLORE_EVERY == 0

    def situation(self, stage: StageKey, expected: float) -> Situation:
        """Return the situation of a request whose tree draft will have ``expected`` accepted tokens."""
        step = min(_NUM_STEPS - 1, int(2 * math.log2(1 + expected)))
        if stage not in self._stages and len(self._stages) >= MOST_STAGES:
            return None, step
        self._stages.setdefault(stage, _Stage())
        return stage, step

    def choose(self, situations: Sequence[Situation]) -> list[bool]:
        """Return for each request whether the model is to draft for it."""
        worth = [self._gain(one) for one in situations]
        order = sorted(range(len(worth)), key=lambda place: -worth[place])
        best, num_chosen, together = 0.0, 0, 0.0
        for number, place in enumerate(order, 1):
            together += worth[place]
            if together - self.price(number) > best:
                best, num_chosen = together - self.price(number), number
        if not num_chosen and situations:
            self._num_steps += 1
            if self._num_steps % EXPLORE_EVERY == 0:
                num_chosen = len(situations)
        chosen = set(order[:num_chosen])
        return [place in chosen for place in range(len(situations))]

    def learn(self, situation: Situation, gained: float) -> None:
        """Learn how many more tokens were accepted than of the trees' draft, less those that they cost."""
        for one in self._both(situation[0]):
            one.gains[situation[1]].add(gained)

    def learn_request(self, stage: StageKey, num_met: Mapping[int, int], reading_s: float | None) -> None:
        """Learn from a request that has ended.

        Args:
            num_met: its steps, by the number in their situation.
            reading_s: time in which the model read its prompt; None = it did not.
        """
        if not num_met:
            return
        for one in self._both(stage):
            for step, met in enumerate(one.met):
                met.add(num_met.get(step, 0))
            if reading_s is not None:
                one.reading_s.add(reading_s, _OUTLIER)

    def time_model(self, seconds: float, num_requests: int) -> None:
        """Note the time of the model's drafts for some requests."""
        self._passes_s.setdefault(num_requests.bit_length(), _Mean()).add(seconds, _OUTLIER)
        self._draft_s.add(seconds / num_requests, _OUTLIER)

    def time_step(self, seconds: float, num_tokens: int) -> None:
        """Note the time between two decode steps of the same requests, and their output tokens."""
        if num_tokens:
            self._token_s.add(seconds / num_tokens, _OUTLIER)

    def _both(self, stage: StageKey | None) -> list[_Stage]:
        known = None if stage is None else self._stages.get(stage)
        return [self._all] if known is None else [known, self._all]

    def _gain(self, situation: Situation, unknown: float = _UNKNOWN) -> float:
        stage, step = situation
        known = self._all if stage is None else self._stages.get(stage, self._all)
        gains = (one.gains[step] for one in (known, self._all))
        return next((gain.value for gain in gains if gain.num >= FEWEST), unknown)

    def _tokens_in(self, seconds: float) -> float:
        """Return the tokens that the engine gives in this time."""
        return seconds / self._token_s.value if self._token_s.value > 0 else 0.0

    def _pass_s(self, num_requests: int) -> float:
        """Return the time for a number of requests: that of the nearest measured size."""
        size = num_requests.bit_length()
        nearest = min(self._passes_s, key=lambda known: abs(known - size), default=None)
        return 0.0 if nearest is None else self._passes_s[nearest].value
