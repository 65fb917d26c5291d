"""The forward pass of a Llama-family model over a batch of segments.

It does not know requests, sampling or files: ``checkpoint`` loads the weights, ``kv_cache`` stores keys and
values, ``attention`` computes which entries each token may attend to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agentspec.engine.batch import Segment
from agentspec.engine.model.attention import AttentionPlan
from agentspec.engine.model.config import ModelConfig
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.layer import DecoderLayer, Weights
from agentspec.engine.model.linear import Linear, has_room_to_pack
from agentspec.engine.model.norm import RMSNorm
from agentspec.engine.model.rotary import RotaryTable


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """The result of one forward pass.

    Attributes:
        logits: float32 ``[sum(n - logits_from), vocab]``, in segment order.
        hidden: ``[rows, wanted layers * hidden]``, the residual stream of every row; None if not wanted.
    """

    logits: torch.Tensor
    hidden: torch.Tensor | None


class Transformer:
    """A decoder-only Llama-family model."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.dtype = weights.dtype
        self.device = weights.device
        has_packing = has_room_to_pack(num_parameters(config))
        hidden, vocab = config.hidden_size, config.vocab_size
        with torch.inference_mode():
            self._embedding = weights.take("model.embed_tokens.weight", vocab, hidden)
            self._layers = [
                DecoderLayer(config, weights, f"model.layers.{index}.", has_packing)
                for index in range(config.num_layers)
            ]
            self._norm = RMSNorm(weights.take("model.norm.weight", hidden), config.rms_norm_eps)
            head = (
                self._embedding
                if config.has_tied_embeddings
                else weights.take("lm_head.weight", vocab, hidden)
            )
            self._head = Linear(self._norm.fold(head), has_packing=has_packing)
            self._rotary = RotaryTable(config, self.device)

    def forward(self, segments: Sequence[Segment], cache: KVCache) -> torch.Tensor:
        """Return the logits of :meth:`run`."""
        return self.run(segments, cache).logits

    def run(self, segments: Sequence[Segment], cache: KVCache, hidden_layers: Sequence[int] = ()) -> Pass:
        """Run a forward pass.

        Writes K and V of token j of a segment at entry ``start + j`` of its slot. Its rotary position is the
        length of the committed context plus its depth in the tree. It attends to that context, to its
        ancestors and to itself.

        Args:
            hidden_layers: layers with inputs to return; the number of layers means the output of the last
                one.

        Raises:
            EngineError: a segment does not fit its slot, or two segments share one.
        """
        cache.check_bounds(segments)
        with torch.inference_mode():
            plan = AttentionPlan(segments, cache, self.config.layer_windows)
            hidden = self.embed(self._tokens(segments))
            rotation = self._rotary.of(segments)
            taken = {}
            for index, layer in enumerate(self._layers):
                if index in hidden_layers:
                    taken[index] = hidden
                hidden = layer.forward(index, hidden, rotation, plan)
            taken[len(self._layers)] = hidden
            logits = self.logits(self._wanted(hidden, segments))
            return Pass(
                logits, torch.cat([taken[layer] for layer in hidden_layers], 1) if hidden_layers else None
            )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits ``[rows, vocab]`` of the residual stream behind the last layer."""
        with torch.inference_mode():
            return self._head(self._norm(hidden)).float()

    def logits_of_normed(self, normed: torch.Tensor) -> torch.Tensor:
        """Return float32 logits ``[rows, vocab]`` of rows behind a last norm, such as :meth:`normed`."""
        with torch.inference_mode():
            return self._head(self._norm.without_scale(normed)).float()

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the residual stream ``[rows, hidden]`` behind the last norm."""
        with torch.inference_mode():
            return self._norm.whole(hidden)

    def vocabulary(self) -> torch.Tensor:
        """Return the matrix ``[vocab, hidden]`` from :meth:`normed` to logits."""
        with torch.inference_mode(False):
            return self._norm.without_scale(self._head.weight.t().clone()).clone()

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings ``[n, hidden]`` of int tokens ``[n]``."""
        return self._embedding.index_select(0, token_ids)

    def _tokens(self, segments: Sequence[Segment]) -> torch.Tensor:
        ids = np.concatenate([segment.token_ids for segment in segments])
        return torch.from_numpy(ids).to(self.device)

    def _wanted(self, hidden: torch.Tensor, segments: Sequence[Segment]) -> torch.Tensor:
        """The rows for which logits are computed."""
        if not any(segment.logits_from for segment in segments):
            return hidden
        pieces = hidden.split_with_sizes([len(segment) for segment in segments])
        wanted = [piece[s.logits_from :] for piece, s in zip(pieces, segments, strict=True)]
        return wanted[0] if len(wanted) == 1 else torch.cat(wanted)


def num_parameters(config: ModelConfig) -> int:
    """Approximate number of weights in matrices, to decide if a second copy is affordable."""
    attention = 2 * config.hidden_size * config.head_dim * (config.num_heads + config.num_kv_heads)
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * (attention + mlp) + config.vocab_size * config.hidden_size
