"""Requests that start and finish: all live ones step together, and a finished one is replaced."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count

from agentspec import Forest
from agentspec.forest import Tokens
from lab.churn.meter import WITHDRAWAL, Meter
from lab.churn.scopes import Scope
from lab.churn.texts import Texts

NUM_LIVE = 32
STEP_TOKENS = 16  # accepted by every request in every step
WITHDRAWN = 0.1  # share of the outputs that are withdrawn from learning when they finish

NO_PROMPT = slice(0, 0)


@dataclass(slots=True)
class _Live:
    """A live request, its whole output, and the number of its accepted tokens."""

    name: str
    output: Tokens
    size: int = 0

    def advance(self) -> Tokens:
        """Return the next accepted tokens."""
        begin = self.size
        self.size = min(begin + STEP_TOKENS, len(self.output))
        return self.output[begin : self.size]


class Traffic:
    """A constant number of live requests; a dataset's outputs belong to one stage, of any tenant."""

    def __init__(self, forest: Forest, scope: Scope, texts: Texts, meter: Meter) -> None:
        self._forest = forest
        self._scope = scope
        self._texts = texts
        self._meter = meter
        self._random = random.Random(0)
        self._numbers = count()
        self._live = [self._start(0.0) for _ in range(NUM_LIVE)]
        self.num_learned = 0

    def step(self, progress: float) -> int:
        """Run one decode step of all live requests; return its number of tokens."""
        updates = [(request.name, request.advance()) for request in self._live]
        self._meter.call("step", self._forest.step, updates)
        for i, request in enumerate(self._live):
            if request.size == len(request.output):
                self._finish(request)
                self._live[i] = self._start(progress)
        return sum(len(accepted) for _, accepted in updates)

    def _start(self, progress: float) -> _Live:
        dataset, output = self._texts.next(progress)
        stage = self._scope.stage(self._random.choice(self._scope.tenants), dataset % self._scope.num_stages)
        request = _Live(f"request-{next(self._numbers)}", output)
        self._meter.call("start", self._forest.start, request.name, stage, output[NO_PROMPT])
        return request

    def _finish(self, request: _Live) -> None:
        """Finish a request; withdrawals have their own kind, since they are no part of keeping budgets."""
        if self._random.random() < WITHDRAWN:
            self._meter.call(WITHDRAWAL, self._forest.finish, request.name, learn=False)
        else:
            self._meter.call("finish", self._forest.finish, request.name)
            self.num_learned += 1
