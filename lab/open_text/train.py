"""Training of the model of open-ended text, of its heads and of its draft model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer

from agentspec.engine.model.checkpoint import WEIGHTS_FILE, load_model
from agentspec.engine.model.checkpoint_config import TOKENIZER_FILE
from agentspec.reporting.report import Announce, announcer
from examples.agentic_sql.samples import Sample
from lab.drafters.training.loop import Plan as HeadPlan
from lab.open_text.samples import MEASURED, TRAINING, draw_prompts, recorded, stream, write_prompts
from lab.sql_model import batches, network, vocabulary
from lab.sql_model.draft_model import train_draft_model
from lab.sql_model.heads import DRAFT_MODEL, EAGLE, MEDUSA, MTP, as_texts, train_head
from lab.sql_model.train import Plan, train

HEADS = "heads"
HEAD_BATCH_TOKENS = 2048  # more steps in the time
MOST_STEPS = 100_000  # the time ends a training


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is trained.

    Attributes:
        minutes, head_minutes, draft_minutes: most time of the model, of each head and of its draft model.
        vocab_size: tokens of its tokenizer.
        num_prompts: of each set, to measure on.
    """

    minutes: float = 35.0
    head_minutes: float = 20.0
    draft_minutes: float = 40.0
    vocab_size: int = 4096
    num_prompts: int = 32


def build(traces: Path, out: Path, sizes: Sizes) -> None:
    """Train model, heads and draft model, and write them with prompts to ``out``.

    The folder is a checkpoint. What drafts for it is in ``heads``. What is there is not trained again.

    Raises:
        ConfigError: a recorded set is missing, or has too few prompts.
    """
    announce = announcer()
    training = recorded(traces, TRAINING)
    prompts = draw_prompts(recorded(traces, MEASURED), sizes.num_prompts)
    out.mkdir(parents=True, exist_ok=True)
    if not (out / WEIGHTS_FILE).is_file():
        _train_model(training, out, sizes, announce)
    write_prompts(prompts, out)
    for name in (EAGLE, MTP, MEDUSA):
        if not (out / HEADS / name).is_dir():
            announce(f"{name}: at most {sizes.head_minutes:g} minutes")
            _train_head(name, training, out, sizes)
    if not (out / HEADS / DRAFT_MODEL).is_dir():
        announce(f"draft model: at most {sizes.draft_minutes:g} minutes")
        plan = Plan(num_steps=MOST_STEPS, most_s=60 * sizes.draft_minutes)
        train_draft_model(out, partial(stream, training), plan, out / HEADS / DRAFT_MODEL)
    announce(f"written to {str(out)!r}")


def _train_model(training: list[Sample], out: Path, sizes: Sizes, announce: Announce) -> None:
    shape = network.Shape(vocab_size=sizes.vocab_size)
    announce(f"tokenizer: {sizes.vocab_size} tokens of {len(training)} answers")
    tokenizer = vocabulary.train(training, sizes.vocab_size)
    vocabulary.save(tokenizer, out, shape.max_len)
    announce(f"model: at most {sizes.minutes:g} minutes")
    plan = Plan(num_steps=MOST_STEPS, most_s=60 * sizes.minutes)
    with TemporaryDirectory() as work:
        trained = train(shape, partial(_batches, training, tokenizer, plan), [], plan, Path(work))
    eos_id, pad_id = (tokenizer.encode(token).ids[0] for token in (vocabulary.END, vocabulary.PAD))
    network.save(trained, out, eos_id, pad_id)


def _train_head(name: str, training: list[Sample], out: Path, sizes: Sizes) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(out / TOKENIZER_FILE))
    texts = as_texts(batches.stream(stream(training, name), tokenizer, HEAD_BATCH_TOKENS, 0))
    plan = HeadPlan(num_steps=MOST_STEPS, most_s=60 * sizes.head_minutes)
    train_head(name, load_model(out), out, texts, plan, out / HEADS / name)


def _batches(training: list[Sample], tokenizer: Tokenizer, plan: Plan, start: int) -> Iterator[batches.Batch]:
    samples = stream(training, f"{plan.seed}-{start}")
    return batches.with_copying(samples, tokenizer, plan.batch_tokens, plan.seed, plan.copying_steps - start)
