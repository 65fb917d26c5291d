"""A multi-token prediction (MTP) head from the checkpoint of the served model, in the layout of MiMo.

The head is that of DeepSeek-V3 (arXiv 2412.19437, section 2.2) with one dense layer (MiMo, arXiv 2505.07608).
At position i it reads the served model's last features of token i, or its own output there, and the embedding
of token i + 1. From these it predicts token i + 2. If the checkpoint has several heads, the first one drafts
all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from agentspec.engine.batch import Segment
from agentspec.engine.model.attention import AttentionPlan
from agentspec.engine.model.checkpoint import SafetensorsFiles
from agentspec.engine.model.checkpoint_config import check_has_heads, load_config
from agentspec.engine.model.config import ModelConfig
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.layer import DecoderLayer, Weights
from agentspec.engine.model.linear import Linear, has_room_to_pack
from agentspec.engine.model.norm import RMSNorm
from agentspec.engine.model.rotary import RotaryTable
from agentspec.engine.model.transformer import Transformer, num_parameters
from agentspec.errors import CheckpointError

PREFIX = "model.mtp_layers.0."


class MtpHead:
    """A :class:`~agentspec.engine.drafters.model_drafter.DraftNetwork` of one layer.

    Embeddings and the matrix to the vocabulary are the served model's.

    Args:
        config: of the checkpoint.
        weights: its tensors.
        target: the served model.

    Attributes:
        vocab_size: of the served model.
        hidden_layers: the served model's last output, before its norm.
        most_levels: None: it can draft any number of tokens.

    Raises:
        CheckpointError: a tensor is missing or misshapen.
    """

    def __init__(self, config: ModelConfig, weights: Weights, target: Transformer) -> None:
        self.vocab_size = target.config.vocab_size
        self.hidden_layers: tuple[int, ...] = (target.config.num_layers,)
        self.most_levels: int | None = None
        self._config = replace(config, num_layers=1, layer_windows=(None,))
        self._target = target
        hidden, eps = config.hidden_size, config.rms_norm_eps

        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights.take(f"{PREFIX}{name}.weight", hidden), eps)

        with torch.inference_mode():
            self._features_norm, self._token_norm = norm("hidden_layernorm"), norm("token_layernorm")
            combine = weights.take(f"{PREFIX}input_proj.weight", hidden, 2 * hidden)
            features, token = self._features_norm.fold(combine[:, :hidden]), combine[:, hidden:]
            self._combine = Linear(torch.cat([features, self._token_norm.fold(token)], 1))
            self._layer = DecoderLayer(
                self._config, weights, PREFIX, has_room_to_pack(num_parameters(self._config))
            )
            self._norm = norm("final_layernorm")
            self._rotary = RotaryTable(self._config, weights.device)

    def make_cache(self, num_slots: int, max_len: int) -> KVCache:
        """Return a cache of its own keys and values, for as many slots as the served model has."""
        return KVCache(self._config, num_slots, max_len, self._target.dtype, self._target.device)

    def read(self, features: torch.Tensor | None) -> torch.Tensor:
        """Return what rows carry whose features ``[rows, hidden]`` are known: these features."""
        assert features is not None
        return features

    def forward(
        self, segments: Sequence[Segment], carried: torch.Tensor, cache: KVCache | None
    ) -> torch.Tensor:
        """Return what each row hands on to the next, ``[rows, hidden]``: its output behind the last norm.

        Args:
            segments: the tokens after those that the rows stand for.
            carried: ``[rows, hidden]``, of :meth:`read`, or of this method for the row of the parent.
        """
        assert cache is not None
        cache.check_bounds(segments)
        with torch.inference_mode():
            ids = torch.from_numpy(np.concatenate([segment.token_ids for segment in segments]))
            embedded = self._target.embed(ids.to(self._target.device))
            rows = self._combine(torch.cat([self._features_norm(carried), self._token_norm(embedded)], 1))
            plan = AttentionPlan(segments, cache, (None,))
            return self._norm.whole(self._layer.forward(0, rows, self._rotary.of(segments), plan))

    def log_probs(self, carried: torch.Tensor, level: int = 1) -> torch.Tensor:
        """Return log chances of the next tokens, float32 ``[rows, vocab]``, alike for all levels."""
        return functional.log_softmax(self._target.logits_of_normed(carried), 1)

    def token_ids(self, drafted: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the tokens as int32: both vocabularies are the same."""
        return drafted.astype(np.int32)


def load_mtp(path: str | Path, target: Transformer) -> MtpHead:
    """Load the first MTP head of the checkpoint in directory ``path``, with the target's dtype and device.

    Args:
        target: the served model, of this checkpoint or the same one without heads.

    Raises:
        CheckpointError: the checkpoint has no MTP head or is of another model, a file is missing or damaged,
            or a tensor is missing or has another shape.
    """
    check_has_heads(path)
    config, served = load_config(path), target.config
    if (config.vocab_size, config.hidden_size) != (served.vocab_size, served.hidden_size):
        raise CheckpointError(
            f"the head in {str(path)!r} is for {config.vocab_size} tokens and hidden size "
            f"{config.hidden_size}, the served model has {served.vocab_size} and {served.hidden_size}"
        )
    return MtpHead(config, SafetensorsFiles(Path(path), target.device, target.dtype), target)
