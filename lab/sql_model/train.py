"""The training loop: Muon on the matrices, AdamW on the rest, warm-up, plateau, linear decay.

Progress is printed to standard output. Every report writes a checkpoint, from which an interrupted run
continues.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from lab.drafters.training.precision import autocast
from lab.sql_model import batches
from lab.sql_model.muon import muon
from lab.sql_model.network import Network, Shape, restore


@dataclass(frozen=True)
class Plan:
    """Number of steps, learning rates and other training settings."""

    num_steps: int = 4500
    batch_tokens: int = 4096
    copying_steps: int = 150  # in these first steps every second sample is one of ``samples.copying``
    most_s: float = math.inf  # of training; the learning rate then falls with the time
    prompt_weight: float = 0.25  # loss weight of prompt tokens; answer tokens have weight 1
    muon_lr: float = 0.015
    adam_lr: float = 4e-3
    warmup: int = 50
    decay_share: float = 0.65
    report_every: int = 100
    num_evaluation_batches: int = 12
    seed: int = 1

    def scale(self, step: int, spent_s: float = 0.0) -> float:
        """Return the learning rate's factor at a step, after so much time."""
        left = min((self.num_steps - step) / self.num_steps, 1 - spent_s / self.most_s)
        return max(0.0, min(1.0, (step + 1) / self.warmup, left / self.decay_share))


@torch.no_grad()
def exact_match(
    network: Callable[[Tensor, Tensor], Tensor], batch_list: list[batches.Batch], device: str = "cpu"
) -> dict[str, float]:
    """Return the share of samples per stage with the argmax at every target token: exact greedy answers."""
    right: dict[str, list[bool]] = {}
    for batch in batch_list:
        with autocast(device):
            logits = network(batch.ids.to(device), batch.wanted.to(device))
        misses = torch.zeros(len(batch.stages), dtype=torch.int64)
        is_miss = (logits.argmax(-1).cpu() != batch.labels) & batch.is_target
        misses.index_add_(0, batch.rows, is_miss.long())
        for stage, num_misses in zip(batch.stages, misses.tolist(), strict=True):
            right.setdefault(stage, []).append(num_misses == 0)
    return {stage: sum(hits) / len(hits) for stage, hits in sorted(right.items())}


def train(
    shape: Shape,
    training: Callable[[int], Iterator[batches.Batch]],
    held_out: list[batches.Batch],
    plan: Plan,
    directory: Path,
    device: str = "cpu",
    *,
    teacher: Network | None = None,
    is_compiled: bool = False,
) -> Network:
    """Train a network; write ``checkpoint.safetensors`` and ``progress.jsonl`` into ``directory``.

    Args:
        training: returns endless batches, from a step on.
        held_out: batches for the reports.
        teacher: its chances of each token are learned in place of the tokens (DistillSpec, Zhou et al. 2023).
    """
    torch.manual_seed(plan.seed)
    network, start = _restored(shape, directory)
    network.to(device)
    forward = torch.compile(network, dynamic=True) if is_compiled else network
    optimizers = [
        muon(network.matrices(), plan.muon_lr, device),
        torch.optim.AdamW(network.others(), lr=plan.adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    started, losses = time.monotonic(), []
    for step, batch in zip(range(start, plan.num_steps), training(start), strict=False):
        spent_s = time.monotonic() - started
        scale = plan.scale(step, spent_s)
        wanted = batch.labels if teacher is None else _chances(teacher, batch)
        losses.append(_step(network, forward, optimizers, batch, wanted, plan, scale, device))
        is_last = step + 1 == plan.num_steps or spent_s > plan.most_s
        if (step + 1) % plan.report_every == 0 or is_last:
            exact = exact_match(network, held_out, device)
            report = {
                "step": step + 1,
                "loss": round(sum(losses) / len(losses), 4),
                "minutes": round((time.monotonic() - started) / 60, 1),
                "exact": {stage: round(share, 3) for stage, share in exact.items()},
            }
            losses = []
            _record(network, report, directory)
        if is_last:
            break
    return network


def _restored(shape: Shape, directory: Path) -> tuple[Network, int]:
    """Return the network to continue with, and its number of completed steps."""
    checkpoint = directory / "checkpoint.safetensors"
    if not checkpoint.exists():
        return Network(shape), 0
    last = (directory / "progress.jsonl").read_text().splitlines()[-1]
    return restore(checkpoint, shape), int(json.loads(last)["step"])


def _record(network: Network, report: dict[str, object], directory: Path) -> None:
    print(json.dumps(report), flush=True)
    weights = {name: value.cpu().contiguous() for name, value in network.state_dict().items()}
    save_file(weights, directory / "checkpoint.tmp")
    (directory / "checkpoint.tmp").replace(directory / "checkpoint.safetensors")
    with (directory / "progress.jsonl").open("a") as log:
        log.write(json.dumps(report) + "\n")


@torch.no_grad()
def _chances(teacher: Network, batch: batches.Batch) -> Tensor:
    return torch.softmax(teacher(batch.ids, batch.wanted).float(), -1)


def _step(
    network: Network,
    forward: Callable[[Tensor, Tensor], Tensor],
    optimizers: list[torch.optim.Optimizer],
    batch: batches.Batch,
    wanted: Tensor,
    plan: Plan,
    scale: float,
    device: str,
) -> float:
    """Take a step towards ``wanted``: a token of each position, or the chance of every token."""
    for optimizer, lr in zip(optimizers, (plan.muon_lr, plan.adam_lr), strict=True):
        optimizer.param_groups[0]["lr"] = lr * scale
    with autocast(device):
        logits = forward(batch.ids.to(device), batch.wanted.to(device))
    losses = F.cross_entropy(logits.float(), wanted.to(device), reduction="none")
    weights = torch.where(batch.is_target, 1.0, plan.prompt_weight).to(device)
    loss = (losses * weights).sum() / weights.sum()
    network.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return (losses.detach() * batch.is_target.to(device)).sum().item() / int(batch.is_target.sum())
