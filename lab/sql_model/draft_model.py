"""A small model that drafts for another one of the same vocabulary, distilled from it on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer

from examples.agentic_sql.samples import Sample
from lab.sql_model import batches, network, vocabulary
from lab.sql_model.train import Plan, train

HIDDEN, INTERMEDIATE, NUM_LAYERS, NUM_HEADS = 128, 320, 2, 4  # 0.7 M parameters with 1,280 tokens


def train_draft_model(
    served: Path,
    samples: Callable[[str], Iterator[Sample]],
    plan: Plan,
    out: Path,
) -> None:
    """Train a model of two layers, and write it to ``out`` as a checkpoint of its own.

    Args:
        served: folder of the model that it drafts for, written by ``network.save``, with its tokenizer.
        samples: returns endless samples for a seed.
    """
    teacher = network.load(served)
    tokenizer = Tokenizer.from_file(str(served / "tokenizer.json"))
    shape = network.Shape(teacher.shape.vocab_size, HIDDEN, INTERMEDIATE, NUM_LAYERS, NUM_HEADS)

    def training(start: int) -> Iterator[batches.Batch]:
        found = samples(f"draft model {plan.seed}-{start}")
        left = plan.copying_steps - start
        return batches.with_copying(found, tokenizer, plan.batch_tokens, plan.seed, left)

    with TemporaryDirectory() as work:
        trained = train(shape, training, [], plan, Path(work), teacher=teacher)
    out.mkdir(parents=True, exist_ok=True)
    vocabulary.save(tokenizer, out, shape.max_len)
    eos_id, pad_id = (tokenizer.encode(token).ids[0] for token in (vocabulary.END, vocabulary.PAD))
    network.save(trained, out, eos_id, pad_id)
