"""Medusa heads in training (the paper's Medusa-1: the served model stays as it is)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from lab.drafters.training.texts import Observed, ahead

HEAD_DISCOUNT = 0.8  # of the loss of each further head


class TrainableMedusa(nn.Module):
    """The heads of :class:`lab.drafters.medusa.MedusaHeads`, with gradients, one block each.

    A block starts as the identity, and the matrix to the vocabulary as the served model's.

    Args:
        vocabulary: the served model's matrix to the vocabulary, ``[vocab, hidden]``.
        num_heads: number of heads.

    Attributes:
        num_heads: number of heads.
        vocabulary_shape: sizes of the vocabulary and of the features.
    """

    def __init__(self, vocabulary: torch.Tensor, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.vocabulary_shape = vocabulary.shape[0], vocabulary.shape[1]
        size = vocabulary.shape[1]
        self._blocks = nn.ModuleList(nn.Linear(size, size) for _ in range(num_heads))
        self._vocabularies = nn.ParameterList(vocabulary.float().clone() for _ in range(num_heads))
        for block in self._blocks:
            assert isinstance(block, nn.Linear)
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)

    def loss(self, observed: Observed, num_steps: int) -> torch.Tensor:
        """Return the cross-entropy with the served model's chances, over the first heads.

        Args:
            observed: its features are those behind the last norm.
        """
        total, weights = observed.features.new_zeros(()), 0.0
        heads = list(zip(self._blocks, self._vocabularies, strict=True))[:num_steps]
        for step, (block, vocabulary) in enumerate(heads, 1):
            wanted = ahead(observed.texts.is_output, step + 1)
            rows = observed.features[wanted]
            scores = ((rows + functional.silu(block(rows))) @ vocabulary.T).float()
            expected = torch.roll(observed.chances, -step, 1)[wanted]
            weight = HEAD_DISCOUNT ** (step - 1)
            losses = -(expected * functional.log_softmax(scores, -1)).sum(-1)
            total = total + weight * losses.sum() / max(1, len(losses))
            weights += weight
        return total / weights

    def published(self) -> dict[str, torch.Tensor]:
        """Return the tensors under their published names."""
        tensors = {}
        for head, (block, vocabulary) in enumerate(zip(self._blocks, self._vocabularies, strict=True)):
            assert isinstance(block, nn.Linear)
            tensors[f"{head}.0.linear.weight"] = block.weight
            tensors[f"{head}.0.linear.bias"] = block.bias
            tensors[f"{head}.1.weight"] = vocabulary
        return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
