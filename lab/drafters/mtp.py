"""A multi-token prediction (MTP) head from the checkpoint of the served model, in the layout of MiMo.

The head is that of DeepSeek-V3 (arXiv 2412.19437, section 2.2) with one dense layer (MiMo, arXiv 2505.07608).
At position i it reads the embedding of token i + 1, and the served model's last features of token i or its
own output there. From these it predicts token i + 2. If the checkpoint has several heads, the first one
drafts all tokens. vLLM leaves out the token at the first position of a text; here the head reads it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from agentspec.engine.model.attention import AttentionPlan
from agentspec.engine.model.checkpoint import SafetensorsFiles
from agentspec.engine.model.checkpoint_config import CONFIG_FILE, load_config, read_json
from agentspec.engine.model.config import ModelConfig
from agentspec.engine.model.layer import DecoderLayer, Weights
from agentspec.engine.model.linear import Linear, has_room_to_pack
from agentspec.engine.model.norm import RMSNorm
from agentspec.engine.model.transformer import Transformer, num_parameters
from agentspec.errors import CheckpointError
from lab.drafters.layer_head import LayerHead

PREFIX = "model.mtp_layers.0."


class MtpHead(LayerHead):
    """The head, with the served model's embeddings and matrix to the vocabulary.

    It reads the served model's last output before its norm, and hands on its own behind a norm.

    Args:
        config: of the checkpoint.
        weights: its tensors.
        target: the served model.

    Raises:
        CheckpointError: a tensor is missing or misshapen.
    """

    def __init__(self, config: ModelConfig, weights: Weights, target: Transformer) -> None:
        shape = replace(config, num_layers=1, layer_windows=(None,))
        super().__init__(shape, target, (target.config.num_layers,))
        hidden, eps = config.hidden_size, config.rms_norm_eps

        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights.take(f"{PREFIX}{name}.weight", hidden), eps)

        with torch.inference_mode():
            self._features_norm, self._token_norm = norm("hidden_layernorm"), norm("token_layernorm")
            combine = weights.take(f"{PREFIX}input_proj.weight", hidden, 2 * hidden)
            features, token = self._features_norm.fold(combine[:, :hidden]), combine[:, hidden:]
            has_packing = has_room_to_pack(num_parameters(shape))
            combine = torch.cat([features, self._token_norm.fold(token)], 1)
            self._combine = Linear(combine, has_packing=has_packing)
            self._layer = DecoderLayer(shape, weights, PREFIX, has_packing)
            self._norm = norm("final_layernorm")

    def read(self, features: torch.Tensor | None) -> torch.Tensor:
        """Return what rows carry whose features ``[rows, hidden]`` are known: these features."""
        assert features is not None
        return features

    def log_probs(self, carried: torch.Tensor, level: int = 1) -> torch.Tensor:
        """Return log chances of the next tokens, float32 ``[rows, vocab]``, alike for all levels."""
        return functional.log_softmax(self._target.logits_of_normed(carried), 1)

    def token_ids(self, drafted: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the tokens as int32: both vocabularies are the same."""
        return drafted.astype(np.int32)

    def _continued(
        self, embedded: torch.Tensor, carried: torch.Tensor, rotation: torch.Tensor, plan: AttentionPlan
    ) -> torch.Tensor:
        rows = self._combine(torch.cat([self._features_norm(carried), self._token_norm(embedded)], 1))
        return self._norm.whole(self._layer.forward(0, rows, rotation, plan))


def load_mtp(path: str | Path, target: Transformer) -> MtpHead:
    """Load the first MTP head of the checkpoint in directory ``path``, with the target's dtype and device.

    Args:
        target: the served model, of this checkpoint or the same one without heads.

    Raises:
        CheckpointError: the checkpoint has no MTP head or is of another model, a file is missing or damaged,
            or a tensor is missing or has another shape.
    """
    _check_has_heads(path)
    config, served = load_config(path), target.config
    if (config.vocab_size, config.hidden_size) != (served.vocab_size, served.hidden_size):
        raise CheckpointError(
            f"the head in {str(path)!r} is for {config.vocab_size} tokens and hidden size "
            f"{config.hidden_size}, the served model has {served.vocab_size} and {served.hidden_size}"
        )
    return MtpHead(config, SafetensorsFiles(Path(path), target.device, target.dtype), target)


def _check_has_heads(path: str | Path) -> None:
    """Check that the checkpoint in directory ``path`` has MTP heads, by its configuration.

    Raises:
        CheckpointError: config.json is missing or broken, or names no such heads.
    """
    file = Path(path) / CONFIG_FILE
    number = read_json(file).get("num_nextn_predict_layers")
    if type(number) is not int or number < 1:
        raise CheckpointError(
            f"{str(file)!r}: the model has no MTP heads, its num_nextn_predict_layers is {number!r}"
        )
