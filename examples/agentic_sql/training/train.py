"""The training loop: Muon on the matrices, AdamW on the rest, warm-up, plateau, linear decay.

Progress goes to standard output; a checkpoint is written at every report, and a run that was
stopped goes on from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer

from examples.agentic_sql.database import Database
from examples.agentic_sql.questions import HELD_OUT
from examples.agentic_sql.training import batches, samples
from examples.agentic_sql.training.network import Network, Shape, restore


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train."""

    num_steps: int = 3000
    batch_tokens: int = 6144
    muon_lr: float = 0.02
    adam_lr: float = 4e-3
    warmup: int = 50
    decay_share: float = 0.4
    report_every: int = 100
    seed: int = 1

    def scale(self, step: int) -> float:
        """The learning rate's factor at a step."""
        decay_steps = self.decay_share * self.num_steps
        return min(1.0, (step + 1) / self.warmup, (self.num_steps - step) / decay_steps)


def _precision(device: str) -> torch.autocast:
    return torch.autocast(device, torch.bfloat16)


@torch.no_grad()
def exact_match(network: Network, batch_list: list[batches.Batch], device: str = "cpu") -> dict[str, float]:
    """Share of samples per stage whose every target token is the argmax: exact greedy answers."""
    right: dict[str, list[bool]] = {}
    for batch in batch_list:
        with _precision(device):
            logits = network(batch.ids.to(device), batch.wanted.to(device))
        misses = torch.zeros(len(batch.stages), dtype=torch.int64)
        misses.index_add_(0, batch.rows, (logits.argmax(-1).cpu() != batch.labels).long())
        for stage, num_misses in zip(batch.stages, misses.tolist(), strict=True):
            right.setdefault(stage, []).append(num_misses == 0)
    return {stage: sum(hits) / len(hits) for stage, hits in sorted(right.items())}


def train(
    tokenizer: Tokenizer, databases: dict[str, Database], plan: Plan, directory: Path, device: str = "cpu"
) -> Network:
    """Train a network; writes ``checkpoint.safetensors`` and ``progress.jsonl`` into ``directory``."""
    torch.manual_seed(plan.seed)
    shape = Shape(vocab_size=tokenizer.get_vocab_size())
    checkpoint, start = directory / "checkpoint.safetensors", 0
    if checkpoint.exists():
        network = restore(checkpoint, shape)
        start = json.loads((directory / "progress.jsonl").read_text().splitlines()[-1])["step"]
    else:
        network = Network(shape)
    network.to(device)
    optimizers = [
        torch.optim.Muon(network.matrices(), lr=plan.muon_lr, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(network.others(), lr=plan.adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    held_out = list(islice(_held_out(tokenizer, databases), 12))
    batch_stream = batches.stream(samples.stream(databases, f"{plan.seed}-{start}"), tokenizer, plan.batch_tokens, plan.seed)
    started, losses = time.monotonic(), []
    for step, batch in zip(range(start, plan.num_steps), batch_stream, strict=False):
        losses.append(_step(network, optimizers, batch, plan, step, device))
        if (step + 1) % plan.report_every == 0 or step + 1 == plan.num_steps:
            report = {"step": step + 1, "loss": round(sum(losses) / len(losses), 4),
                      "minutes": round((time.monotonic() - started) / 60, 1),
                      "exact": {k: round(v, 3) for k, v in exact_match(network, held_out, device).items()}}
            losses = []
            print(json.dumps(report), flush=True)
            save_file({k: v.cpu().contiguous() for k, v in network.state_dict().items()}, checkpoint)
            with (directory / "progress.jsonl").open("a") as log:
                log.write(json.dumps(report) + "\n")
    return network


def _held_out(tokenizer: Tokenizer, databases: dict[str, Database]) -> Iterator[batches.Batch]:
    return batches.stream(samples.stream(databases, "held-out", HELD_OUT), tokenizer, 8192, 0)


def _step(
    network: Network, optimizers: list[torch.optim.Optimizer], batch: batches.Batch, plan: Plan, step: int, device: str
) -> float:
    for optimizer, lr in zip(optimizers, (plan.muon_lr, plan.adam_lr), strict=True):
        optimizer.param_groups[0]["lr"] = lr * plan.scale(step)
    with _precision(device):
        logits = network(batch.ids.to(device), batch.wanted.to(device))
    loss = F.cross_entropy(logits.float(), batch.labels.to(device))
    network.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()
