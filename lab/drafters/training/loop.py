"""The training loop of a drafting head: AdamW, warm-up, linear decay, and a report from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from lab.drafters.training.precision import autocast
from lab.drafters.training.texts import Observed


class TrainableHead(Protocol):
    """A head with gradients."""

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Return what is trained."""

    def loss(self, observed: Observed, num_steps: int) -> torch.Tensor:
        """Return the loss over some draft tokens behind every token."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a training.

    Attributes:
        num_steps: steps of the optimizer.
        num_drafted: draft tokens behind every token, over which the loss is taken.
        rate: highest learning rate.
        warm_up: steps until it is reached.
        most_s: time after which training ends early; the rate then falls with the time that is left.
        report_every: steps between two reports.
    """

    num_steps: int = 2_000
    num_drafted: int = 5
    rate: float = 1e-3
    warm_up: int = 50
    most_s: float = float("inf")
    report_every: int = 50

    def scale(self, step: int, spent_s: float) -> float:
        """Return the learning rate's factor."""
        left = min(1 - step / self.num_steps, 1 - spent_s / self.most_s)
        return max(0.0, min((step + 1) / self.warm_up, left))


@dataclass(frozen=True, slots=True)
class Report:
    """How far a training is.

    Attributes:
        step: steps taken.
        loss: mean since the last report.
        spent_s: seconds since the beginning.
    """

    step: int
    loss: float
    spent_s: float


def train(
    head: TrainableHead,
    batches: Iterator[Observed],
    plan: Plan,
    report: Callable[[Report], object],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Train a head on batches until the plan's steps or time are over.

    It computes in bfloat16 where the hardware does; its weights are float32.

    Raises:
        FloatingPointError: the loss is not finite.
    """
    optimizer = torch.optim.AdamW(head.parameters(), lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.01)
    begin_s, losses = clock(), []
    for step, observed in zip(range(plan.num_steps), batches, strict=False):
        scale = plan.scale(step, clock() - begin_s)
        if scale == 0:
            break
        optimizer.param_groups[0]["lr"] = plan.rate * scale
        with autocast(observed.features.device.type):
            loss = head.loss(observed, plan.num_drafted)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss of step {step + 1} is {loss.item()}: lower the learning rate")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % plan.report_every == 0 or step + 1 == plan.num_steps:
            report(Report(step + 1, sum(losses) / len(losses), clock() - begin_s))
            losses = []
