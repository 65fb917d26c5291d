"""The choice of requests for which a model drafts, in addition to the trees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from agentspec.stages import StageKey

MOST_STAGES = 1024  # clients name them; further ones share the figures of all
FEWEST = 4  # outcomes, or requests, before a mean counts
FEWEST_READ = 2  # prompts of each stage that the model reads in any case
_TRIED = 1 / 32  # of the steps, and of the requests, for which the model is not worth its time
_TRIED_NEW = 1 / 4  # of such steps, if the stage has few outcomes of its own
_NUM_STEPS = 8
_OUTLIER = 2.0  # times the mean: more is a pause of the machine
_UNKNOWN = 1e6  # a gain that is to be measured: more than any cost
_HOPE = 1.0  # tokens by which the mean of one outcome may be too low
_HOPED = 4.0  # tokens: an unknown gain, where the reading of a prompt depends on it
_LEAST_RATE = 0.02  # of learning: older outcomes fade

Situation = tuple[StageKey | None, int]


@dataclass(slots=True)
class _Mean:
    """A mean in which older values fade."""

    value: float = 0.0
    num: int = 0

    def add(self, value: float) -> None:
        """Add a value."""
        self.num += 1
        self.value += max(_LEAST_RATE, 1 / self.num) * (value - self.value)

    def add_time(self, seconds: float) -> None:
        """Add a time. Of the first, slow ones the least counts; of the others at most twice the mean."""
        if self.num < FEWEST:
            self.value = min(seconds, self.value) if self.num else seconds
            self.num += 1
        else:
            self.add(min(seconds, _OUTLIER * self.value))


def _means() -> list[_Mean]:
    return [_Mean() for _ in range(_NUM_STEPS)]


@dataclass(slots=True)
class _Stage:
    """Figures of a stage, or of all stages.

    Attributes:
        gains: tokens accepted beyond the trees' own, by what the trees expect.
        met: steps of a request, by what the trees expect.
        read: share of a prompt's tokens that the model reads: the first ones may have been in the slot.
    """

    gains: list[_Mean] = field(default_factory=_means)
    met: list[_Mean] = field(default_factory=_means)
    read: _Mean = field(default_factory=_Mean)

    @property
    def num_requests(self) -> int:
        """Requests that have ended."""
        return self.met[0].num


class ModelUse:
    """Decides by stage, and by how many accepted tokens the trees expect.

    A pass of the model delays all requests of a step. So it drafts for those requests whose gain together
    exceeds what the engine gives in that time. The model reads the prompt of a request if its drafts for
    such requests gain more, beyond their passes, than the engine gives in the time of the reading. Gains and
    times are measured. A stage begins with the figures of all stages. Now and then the model drafts where
    it was not worth its time, more often in stages that are new.
    """

    def __init__(self) -> None:
        self._all = _Stage()
        self._stages: dict[StageKey, _Stage] = {}
        self._passes_s: dict[int, _Mean] = {}  # time of a model's drafts, by the size of their number
        self._draft_s = _Mean()  # time of a draft, if others share its passes
        self._read_s = _Mean()  # time in which the model reads a token of a prompt
        self._token_s = _Mean()  # time per output token, of all requests together
        self._random = Random(0)  # not every n-th: stages may come in a fixed order

    def price(self, num_requests: int) -> float:
        """Return the tokens that the engine gives while the model drafts for ``num_requests`` requests."""
        return self._tokens_in(self._pass_s(num_requests))

    def wants(self, stage: StageKey, num_prompt: int) -> bool:
        """Return False if the drafts for a request will not be worth the reading of ``num_prompt`` tokens."""
        one = self._stages.get(stage, self._all if self._is_full() else _Stage())
        if one.read.num < FEWEST_READ:
            return True
        known = one if one.num_requests >= FEWEST else self._all
        price = self._tokens_in(self._draft_s.value)
        gains = (self._gain((stage, step), unknown=_HOPED) for step in range(_NUM_STEPS))
        worth = sum(met.value * max(0.0, gain - price) for met, gain in zip(known.met, gains, strict=True))
        reading_s = self._read_s.value * one.read.value * num_prompt
        return worth > self._tokens_in(reading_s) or self._random.random() < _TRIED

    def situation(self, stage: StageKey, expected: float) -> Situation:
        """Return the situation of a request whose tree draft will have ``expected`` accepted tokens."""
        step = min(_NUM_STEPS - 1, int(2 * math.log2(1 + expected)))
        if stage not in self._stages and self._is_full():
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
        chosen = set(order[:num_chosen])
        if not chosen:
            is_new = [self._is_new(one) for one in situations]
            if self._random.random() < (_TRIED_NEW if any(is_new) else _TRIED):
                return is_new if any(is_new) else [True] * len(situations)
        return [place in chosen for place in range(len(situations))]

    def learn(self, situation: Situation, gained: float) -> None:
        """Learn how many more tokens were accepted than of the trees' draft, less those that they cost."""
        for one in self._both(situation[0]):
            one.gains[situation[1]].add(gained)

    def learn_request(self, stage: StageKey, num_met: Mapping[int, int], read: float | None) -> None:
        """Learn from a request that has ended.

        Args:
            num_met: its steps, by the number in their situation.
            read: share of its prompt that the model read; None = the model did without it.
        """
        if not num_met:
            return
        for one in self._both(stage):
            for step, met in enumerate(one.met):
                met.add(num_met.get(step, 0))
            if read is not None:
                one.read.add(read)

    def time_model(self, seconds: float, num_requests: int) -> None:
        """Note the time of the model's drafts for some requests."""
        self._passes_s.setdefault(num_requests.bit_length(), _Mean()).add_time(seconds)
        self._draft_s.add_time(seconds / num_requests)

    def time_reading(self, seconds: float, num_tokens: int) -> None:
        """Note the time in which the model read tokens of prompts."""
        if num_tokens:
            self._read_s.add_time(seconds / num_tokens)

    def time_step(self, seconds: float, num_tokens: int) -> None:
        """Note the time between two decode steps of the same requests, and their output tokens."""
        if num_tokens:
            self._token_s.add_time(seconds / num_tokens)

    def _is_full(self) -> bool:
        return len(self._stages) >= MOST_STAGES

    def _is_new(self, situation: Situation) -> bool:
        """Return True if the stage has few outcomes of its own in a situation."""
        stage, step = situation
        return stage is not None and self._stages[stage].gains[step].num < FEWEST

    def _both(self, stage: StageKey | None) -> list[_Stage]:
        known = None if stage is None else self._stages.get(stage)
        return [self._all] if known is None else [known, self._all]

    def _gain(self, situation: Situation, unknown: float = _UNKNOWN) -> float:
        stage, step = situation
        known = self._all if stage is None else self._stages.get(stage, self._all)
        gains = (one.gains[step] for one in (known, self._all))
        gain = next((gain for gain in gains if gain.num >= FEWEST), None)
        return unknown if gain is None else gain.value + _HOPE / math.sqrt(min(gain.num, 1 / _LEAST_RATE))

    def _tokens_in(self, seconds: float) -> float:
        """Return the tokens that the engine gives in this time."""
        return seconds / self._token_s.value if self._token_s.value > 0 else 0.0

    def _pass_s(self, num_requests: int) -> float:
        """Return the time for a number of requests: that of the nearest measured size."""
        size = num_requests.bit_length()
        nearest = min(self._passes_s, key=lambda known: abs(known - size), default=None)
        return 0.0 if nearest is None else self._passes_s[nearest].value
