from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from agentspec.engine.batch import Segment
from agentspec.engine.model.checkpoint import SafetensorsFiles, load_model
from agentspec.engine.model.checkpoint_config import load_config
from agentspec.engine.model.config import ModelConfig, RopeConfig
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.model.transformer import Transformer
from agentspec.errors import CheckpointError
from tests.support.checkpoints import make_checkpoint

LAYER = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Make a checkpoint that the test may break."""
    return make_checkpoint(tmp_path / "model")


def edit_config(directory: Path, **changes: Any) -> None:
    """Change keys of config.json; None removes a key."""
    file = directory / "config.json"
    raw = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))


def logits(model: Transformer) -> torch.Tensor:
    cache = KVCache(model.config, 1, 32, model.dtype, model.device)
    return model.forward([Segment(0, 0, np.arange(20, dtype=np.int32))], cache)


def test_sharded_equals_single(tmp_path: Path) -> None:
    single = make_checkpoint(tmp_path / "single", seed=3)
    sharded = make_checkpoint(tmp_path / "sharded", seed=3, shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    assert torch.equal(logits(load_model(single)), logits(load_model(sharded)))


def test_stored_bf16_becomes_float32_on_the_cpu(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, dtype=torch.bfloat16)
    model = load_model(path)
    assert model.dtype == torch.float32
    assert load_model(path, dtype="bfloat16").dtype == torch.bfloat16
    assert SafetensorsFiles(path, torch.device("cpu"), None).dtype == torch.bfloat16
    stored = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(model._embedding, stored.float())


@pytest.mark.parametrize("family", ["llama", "llama_rope3", "llama_linear", "qwen2", "mistral"])
def test_config_as_older_transformers_wrote_it(
    tmp_path: Path, checkpoint: Callable[[str], Path], family: str
) -> None:
    raw = json.loads((checkpoint(family) / "config.json").read_text())
    rope = raw.pop("rope_parameters")
    raw["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    raw["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    raw["torch_dtype"] = raw.pop("dtype")
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert load_config(tmp_path) == load_config(checkpoint(family))


def test_config_values(checkpoint: Callable[[str], Path]) -> None:
    config = load_config(checkpoint("llama_rope3"))
    assert config.rope == RopeConfig("llama3", 5000.0, 8.0, 1.0, 4.0, 64)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert config.eos_ids == {2}
    assert load_config(checkpoint("qwen2_window")).layer_windows == (None, 10, 10)
    assert load_config(checkpoint("mistral_window")).layer_windows == (12, 12, 12)


def test_keys_a_family_leaves_out() -> None:
    raw = {
        "vocab_size": 8,
        "hidden_size": 32,
        "intermediate_size": 8,
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "max_position_embeddings": 64,
    }
    mistral = ModelConfig.from_json({**raw, "model_type": "mistral"})
    assert mistral.num_kv_heads == 8
    assert mistral.layer_windows == (4096,) * 30
    llama = ModelConfig.from_json({**raw, "model_type": "llama", "sliding_window": 4})
    assert (llama.num_kv_heads, llama.head_dim, llama.layer_windows[0]) == (16, 2, None)
    assert ModelConfig.from_json({**raw, "model_type": "qwen3"}).head_dim == 128
    qwen2 = ModelConfig.from_json({**raw, "model_type": "qwen2", "use_sliding_window": True})
    assert qwen2.layer_windows == (None,) * 28 + (4096, 4096)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None, "model_type": "gpt2"}, "gpt2"),
        ({"hidden_size": None}, "hidden_size must be a positive integer, not None"),
        ({"num_attention_heads": -4}, "num_attention_heads must be a positive integer, not -4"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "no multiple of"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a positive number, not 'small'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope type 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor must be a positive number"),
    ],
)
def test_config_that_is_not_supported(broken: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(broken, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_model(broken)


@pytest.mark.parametrize("content", [None, "{", "[]", ""])
def test_config_missing_or_no_json(broken: Path, content: str | None) -> None:
    file = broken / "config.json"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(broken)


def test_missing_tensor(broken: Path) -> None:
    file = broken / "model.safetensors"
    tensors = load_file(file)
    del tensors[LAYER]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=LAYER):
        load_model(broken)


def test_wrong_shape(broken: Path) -> None:
    edit_config(broken, intermediate_size=95)
    with pytest.raises(CheckpointError, match=r"gate_proj.*\(96, 64\).*\(95, 64\)"):
        load_model(broken)


def test_integer_tensor(broken: Path) -> None:
    file = broken / "model.safetensors"
    tensors = load_file(file)
    tensors[LAYER] = tensors[LAYER].to(torch.int8)
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=f"{LAYER}.*int8"):
        load_model(broken)


@pytest.mark.parametrize("size", [0, 4, 100, -1, -5000])
def test_truncated_weights(broken: Path, size: int) -> None:
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_model(broken)


def test_corrupt_header(broken: Path) -> None:
    file = broken / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8:40] = b"\xff" * 32
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_model(broken)


def test_no_weights(broken: Path) -> None:
    (broken / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no 'model\.safetensors'"):
        load_model(broken)


def test_index_with_faults(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, shard_size="100KB")
    index = path / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    shard = whole["weight_map"][LAYER]
    (path / shard).rename(path / "elsewhere")
    with pytest.raises(CheckpointError, match=shard):
        load_model(path)
    for content, message in (
        ({}, "weight_map"),
        ({"weight_map": {LAYER: "../secret"}}, "outside"),
        ({"weight_map": {}}, "embed_tokens"),
    ):
        index.write_text(json.dumps(content))
        with pytest.raises(CheckpointError, match=message):
            load_model(path)


def test_unknown_dtype(llama_checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="'int3'"):
        load_model(llama_checkpoint, dtype="int3")
