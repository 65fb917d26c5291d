"""Reading an EAGLE-3 head in the published format. Every fault of the files is a CheckpointError."""

from __future__ import annotations

from pathlib import Path

import torch

from agentspec.engine.model.checkpoint_config import CONFIG_FILE, read_json
from agentspec.engine.model.transformer import Transformer
from agentspec.errors import CheckpointError
from lab.drafters.eagle import EagleHead
from lab.drafters.eagle_config import EagleConfig
from lab.drafters.head_weights import HeadWeights

WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")


def load_eagle(path: str | Path, target: Transformer) -> EagleHead:
    """Load the head in directory ``path`` for a served model, with its dtype and on its device.

    Raises:
        CheckpointError: a file is missing or damaged, the head is of another model, or a tensor is missing or
            has another shape.
    """
    directory = Path(path)
    config = EagleConfig.from_json(read_json(directory / CONFIG_FILE), target.config)
    weights = HeadWeights(directory, WEIGHTS_FILES, target.device, target.dtype)
    return EagleHead(
        config,
        weights,
        target,
        _target_ids(weights, config),
        has_embeddings="embed_tokens.weight" in weights,
    )


def _target_ids(weights: HeadWeights, config: EagleConfig) -> torch.Tensor:
    """Return the served model's ids of the tokens that the head can draft, int64 ``[draft_vocab]``.

    The file has the differences between both ids (``d2t``).

    Raises:
        CheckpointError: they are missing though the vocabularies differ, or ids are out of range.
    """
    size = config.draft_vocab_size
    if size == config.model.vocab_size and "d2t" not in weights:
        return torch.arange(size)
    offsets = weights.take_raw("d2t")
    if tuple(offsets.shape) != (size,) or offsets.is_floating_point():
        raise CheckpointError(f"d2t is {offsets.dtype} {tuple(offsets.shape)}, not integers ({size},)")
    ids = torch.arange(size) + offsets.to("cpu", torch.int64)
    if int(ids.min()) < 0 or int(ids.max()) >= config.model.vocab_size:
        raise CheckpointError(
            f"d2t leads to the tokens {int(ids.min())} to {int(ids.max())} of {config.model.vocab_size}"
        )
    return ids
