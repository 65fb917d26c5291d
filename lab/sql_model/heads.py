"""``python -m lab.sql_model.heads``: train what drafts for the bundled model.

They learn from the samples that the model was trained on, and from the chances that it gives to each token.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer

from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.model.transformer import Transformer
from agentspec.models import bundled_model_dir
from examples.agentic_sql import samples
from examples.agentic_sql.database import open_all
from lab.drafters.training.eagle import TrainableEagle
from lab.drafters.training.loop import Plan, Report, train
from lab.drafters.training.medusa import TrainableMedusa
from lab.drafters.training.mtp import TrainableMtp
from lab.drafters.training.publish import write_eagle, write_medusa, write_mtp
from lab.drafters.training.texts import Observed, Observer, Texts
from lab.sql_model import batches
from lab.sql_model.draft_model import train_draft_model
from lab.sql_model.train import Plan as ModelPlan

EAGLE, MEDUSA, MTP, DRAFT_MODEL = HEADS = ("eagle", "medusa", "mtp", "draft_model")
BATCH_TOKENS = 4096
EAGLE_LAYERS = (1, 2, 4)  # low, middle and high, of four
NUM_MEDUSA_HEADS = 3  # more would not fit 3 MB


def texts(work: Path, seed: str) -> Iterator[Texts]:
    """Return endless batches of training samples. Their databases are made in ``work``."""
    tokenizer = bundled_tokenizer()
    return as_texts(batches.stream(stream(work, seed), tokenizer, BATCH_TOKENS, 0))


def bundled_tokenizer() -> Tokenizer:
    """Return the bundled model's tokenizer."""
    return Tokenizer.from_file(str(bundled_model_dir() / "tokenizer.json"))


def stream(work: Path, seed: str) -> Iterator[samples.Sample]:
    """Return endless training samples."""
    return samples.stream(open_all(work / "databases"), seed)


def as_texts(found: Iterable[batches.Batch]) -> Iterator[Texts]:
    """Yield the texts of training batches."""
    for batch in found:
        is_output = torch.zeros_like(batch.wanted)
        places = batch.wanted.nonzero()[batch.is_target]
        is_output[places[:, 0], places[:, 1] + 1] = True  # the token after each wanted position
        yield Texts(batch.ids, is_output)


def train_head(
    name: str, model: Transformer, served: Path, texts: Iterator[Texts], plan: Plan, out: Path
) -> None:
    """Train heads of a model with four layers, and write them to ``out``.

    Args:
        name: one of ``HEADS``, but not a draft model.
        served: the directory of the model.
    """
    if name == EAGLE:
        train_eagle(model, texts, plan, out)
    elif name == MTP:
        train_mtp(model, served, texts, plan, out)
    else:
        train_medusa(model, texts, plan, out)


def train_eagle(model: Transformer, texts: Iterator[Texts], plan: Plan, out: Path) -> None:
    """Train an EAGLE-3 head of a model with four layers, and write it to ``out``."""
    config = model.config
    shape = replace(config, num_layers=1, layer_windows=(None,))
    features = len(EAGLE_LAYERS) * config.hidden_size
    head = TrainableEagle(shape, model.embed(torch.arange(config.vocab_size)).clone(), features)
    norm = model.normed(torch.ones(1, config.hidden_size, dtype=model.dtype))[0]
    head.start_from(model.vocabulary(), norm)
    observer = Observer(model, EAGLE_LAYERS)
    train(head, map(observer.observe, texts), plan, show)
    write_eagle(out, head, config, EAGLE_LAYERS)


def train_mtp(model: Transformer, served: Path, texts: Iterator[Texts], plan: Plan, out: Path) -> None:
    """Train a head for multi-token prediction, and write the model with it to ``out``."""
    config = model.config
    norm = model.normed(torch.ones(1, config.hidden_size, dtype=model.dtype))[0]
    shape = replace(config, num_layers=1, layer_windows=(None,), has_qkv_bias=True)
    embedding = model.embed(torch.arange(config.vocab_size)).clone()
    head = TrainableMtp(shape, embedding, model.vocabulary(), norm)
    observer = Observer(model, (config.num_layers,))
    train(head, map(observer.observe, texts), plan, show)
    write_mtp(out, head, served)


def train_medusa(model: Transformer, texts: Iterator[Texts], plan: Plan, out: Path) -> None:
    """Train Medusa heads and write them to ``out``."""
    observer = Observer(model, (model.config.num_layers,))

    def normed(one: Texts) -> Observed:
        observed = observer.observe(one)
        return replace(observed, features=model.normed(observed.features).clone())

    head = TrainableMedusa(model.vocabulary(), NUM_MEDUSA_HEADS)
    train(head, map(normed, texts), replace(plan, num_drafted=NUM_MEDUSA_HEADS), show)
    write_medusa(out, head)


def show(report: Report) -> None:
    """Print a line of progress."""
    print(f"step {report.step}: loss {report.loss:.4f}, {report.spent_s / 60:.1f} minutes", flush=True)


def main() -> None:
    """Train heads and a draft model into ``--out``, each in a folder of its name."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.sql_model.heads",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=HEADS, help="which to train")
    parser.add_argument("--out", type=Path, default=Path("out/heads"), help="folder for the heads")
    parser.add_argument("--work", type=Path, default=Path("out/training"), help="folder for databases")
    parser.add_argument("--steps", type=int, default=Plan().num_steps, help="of each head")
    parser.add_argument("--minutes", type=float, default=30.0, help="most of each head")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    model = load_model(bundled_model_dir())
    plan = Plan(num_steps=options.steps, most_s=60 * options.minutes)
    torch.manual_seed(0)
    for name in options.heads:
        print(f"training {name}: at most {options.minutes:g} minutes", flush=True)
        out = options.out / name
        if name == DRAFT_MODEL:
            model_plan = ModelPlan(num_steps=options.steps, most_s=plan.most_s)
            train_draft_model(bundled_model_dir(), partial(stream, options.work), model_plan, out)
        else:
            train_head(name, model, bundled_model_dir(), texts(options.work, name), plan, out)
    print(f"written to {str(options.out)!r}", flush=True)


if __name__ == "__main__":
    main()
