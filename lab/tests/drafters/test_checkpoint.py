"""What a folder holds decides what drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.engine.model.transformer import Transformer
from agentspec.errors import CheckpointError
from lab.drafters.checkpoint import load_network
from lab.drafters.draft_model import DraftModel
from lab.drafters.eagle import EagleHead
from lab.drafters.medusa import MedusaHeads
from lab.drafters.training.medusa import TrainableMedusa
from lab.drafters.training.publish import write_medusa
from tests.support.eagle_heads import head_config, head_tensors, write_head


def test_a_head_for_each_format(exact_model: Transformer, llama_checkpoint: Path, tmp_path: Path) -> None:
    config = head_config()
    eagle = write_head(tmp_path / "eagle", config, head_tensors(config))
    write_medusa(tmp_path / "medusa", TrainableMedusa(exact_model.vocabulary(), 2))
    assert isinstance(load_network(eagle, exact_model, llama_checkpoint), EagleHead)
    assert isinstance(load_network(tmp_path / "medusa", exact_model, llama_checkpoint), MedusaHeads)
    assert isinstance(load_network(llama_checkpoint, exact_model, llama_checkpoint), DraftModel)


def test_a_folder_without_a_configuration(
    exact_model: Transformer, llama_checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_network(tmp_path, exact_model, llama_checkpoint)
