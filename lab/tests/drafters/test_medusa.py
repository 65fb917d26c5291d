"""Medusa heads in the published format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from agentspec.engine.model.transformer import Transformer
from agentspec.errors import CheckpointError
from lab.drafters.medusa import load_medusa

HIDDEN, VOCAB = 64, 384


def write(
    directory: Path, num_heads: int = 3, num_layers: int = 1, **changed: Any
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    tensors = {}
    for head in range(num_heads):
        for block in range(num_layers):
            tensors[f"{head}.{block}.linear.weight"] = torch.randn(HIDDEN, HIDDEN, generator=generator) / 8
            tensors[f"{head}.{block}.linear.bias"] = torch.randn(HIDDEN, generator=generator)
        tensors[f"{head}.{num_layers}.weight"] = torch.randn(VOCAB, HIDDEN, generator=generator) / 8
    config = {"medusa_num_heads": num_heads, "medusa_num_layers": num_layers, **changed}
    (directory / "config.json").write_text(json.dumps(config))
    torch.save(tensors, directory / "medusa_lm_head.pt")
    return tensors


@pytest.mark.parametrize("num_layers", [1, 2])
def test_heads_as_their_definition(exact_model: Transformer, tmp_path: Path, num_layers: int) -> None:
    tensors = write(tmp_path, num_layers=num_layers)
    heads = load_medusa(tmp_path, exact_model)
    assert heads.hidden_layers == (3,)
    features = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    carried = heads.read(features)
    for head in range(3):
        rows = exact_model.normed(features)
        for block in range(num_layers):
            weight, bias = (tensors[f"{head}.{block}.linear.{kind}"].double() for kind in ("weight", "bias"))
            rows = rows + functional.silu(rows @ weight.T + bias)
        expected = torch.log_softmax(rows @ tensors[f"{head}.{num_layers}.weight"].double().T, 1)
        assert torch.allclose(heads.log_probs(carried, head + 1).double(), expected, atol=1e-5)
    assert heads.most_levels == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"medusa_num_heads": 0}, "medusa_num_heads must be 1 to 16, not 0"),
        ({"medusa_num_layers": None}, "medusa_num_layers must be 1 to 16, not None"),
        ({"medusa_num_heads": 5}, r"'3\.0\.linear\.weight' is missing"),
    ],
)
def test_bad_configurations(
    exact_model: Transformer, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    write(tmp_path, **changed)
    with pytest.raises(CheckpointError, match=message):
        load_medusa(tmp_path, exact_model)


def test_a_damaged_file(exact_model: Transformer, tmp_path: Path) -> None:
    write(tmp_path)
    torch.save([1, 2], tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match="holds more than tensors by name"):
        load_medusa(tmp_path, exact_model)
    (tmp_path / "medusa_lm_head.pt").unlink()
    with pytest.raises(CheckpointError, match=r"none of medusa_lm_head\.safetensors"):
        load_medusa(tmp_path, exact_model)
