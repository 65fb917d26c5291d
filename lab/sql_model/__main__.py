"""``python -m lab.sql_model``: rebuild the bundled model from scratch.

Databases, tokenizer, training, export, evaluation. An interrupted run continues from its checkpoint.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer

from agentspec.models import bundled_model_dir
from examples.agentic_sql import samples
from examples.agentic_sql.database import Database, open_all
from examples.agentic_sql.questions import HELD_OUT
from lab.sql_model import batches, network, vocabulary
from lab.sql_model.train import Plan, exact_match, train

_VOCABULARY_SAMPLES = 20_000
_EVALUATION_BATCHES = 60


def _tokenizer(work: Path, databases: dict[str, Database], size: int, max_len: int) -> Tokenizer:
    path = work / "tokenizer.json"
    if not path.exists():
        print(f"training a tokenizer of {size} tokens on {_VOCABULARY_SAMPLES} samples", flush=True)
        tokenizer = vocabulary.train(
            islice(samples.stream(databases, "vocabulary"), _VOCABULARY_SAMPLES), size
        )
        vocabulary.save(tokenizer, work, max_len)
    return Tokenizer.from_file(str(path))


def training(
    tokenizer: Tokenizer, databases: dict[str, Database], plan: Plan, start: int
) -> Iterator[batches.Batch]:
    """Yield the batches of training from a step on."""
    questions = samples.stream(databases, f"{plan.seed}-{start}")
    return batches.with_copying(
        questions, tokenizer, plan.batch_tokens, plan.seed, plan.copying_steps - start
    )


def held_out(tokenizer: Tokenizer, databases: dict[str, Database]) -> Iterator[batches.Batch]:
    """Yield batches of questions that training does not see."""
    return batches.stream(samples.stream(databases, "held-out", HELD_OUT), tokenizer, 8192, 0)


def evaluate(
    trained: network.Network, tokenizer: Tokenizer, databases: dict[str, Database]
) -> dict[str, float]:
    """Return the share of exact greedy answers per stage on held-out samples, with gold inputs."""
    stream: Iterator[batches.Batch] = batches.stream(
        samples.stream(databases, "evaluation", HELD_OUT), tokenizer, 8192, 0
    )
    return exact_match(trained, list(islice(stream, _EVALUATION_BATCHES)))


def main() -> None:
    """Build the model into ``--out``."""
    parser = argparse.ArgumentParser(prog="python -m lab.sql_model", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=bundled_model_dir(), help="folder for the model (default: %(default)s)"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("out/training"), help="checkpoints and log (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=Plan.num_steps, help="training steps (default: %(default)s)"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile: a third faster, a minute to start"
    )
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    databases = open_all(options.work / "databases")
    shape = network.Shape()
    tokenizer = _tokenizer(options.work, databases, shape.vocab_size, shape.max_len)
    started = time.monotonic()
    plan = Plan(num_steps=options.steps)
    trained = train(
        shape,
        partial(training, tokenizer, databases, plan),
        list(islice(held_out(tokenizer, databases), plan.num_evaluation_batches)),
        plan,
        options.work,
        options.device,
        is_compiled=options.compile,
    ).cpu()
    print(f"trained in {(time.monotonic() - started) / 60:.0f} minutes", flush=True)
    vocabulary.save(tokenizer, options.out, shape.max_len)
    eos_id, pad_id = (tokenizer.encode(token).ids[0] for token in (vocabulary.END, vocabulary.PAD))
    network.save(trained, options.out, eos_id, pad_id)
    exact = evaluate(trained, tokenizer, databases)
    print(json.dumps({"held_out_exact": {k: round(v, 4) for k, v in exact.items()}}), flush=True)


if __name__ == "__main__":
    main()
