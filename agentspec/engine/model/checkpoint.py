"""Reading a model directory in Hugging Face form. Every fault of the files is a CheckpointError."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from agentspec.engine.model.checkpoint_config import load_config, read_json
from agentspec.engine.model.config import ModelConfig
from agentspec.engine.model.transformer import Transformer
from agentspec.errors import CheckpointError

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_RANDOM_SCALE = 0.02  # as models start out: logits stay finite through any number of layers
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    path: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | str | None = None
) -> Transformer:
    """Load the model in directory ``path``.

    Args:
        path: a directory with config.json and ``*.safetensors``, single or sharded with an index.
        device: device of the weights.
        dtype: None = float32 on the CPU, as stored elsewhere.

    Raises:
        CheckpointError: a file is missing or corrupt, or a tensor is missing or has another shape.
    """
    config = load_config(path)
    target = torch.device(device)
    files = SafetensorsFiles(Path(path), target, _dtype(dtype, target, config))
    return Transformer(config, files)


def load_shape(
    path: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | str | None = None
) -> Transformer:
    """Load the model in directory ``path``. If its weights are missing, make random ones of its shape.

    For dictated outputs: the time of a step does not depend on the weights.

    Raises:
        CheckpointError: as :func:`load_model`.
    """
    if any(Path(path).glob("*.safetensors*")):
        return load_model(path, device=device, dtype=dtype)
    logger.warning("no weights in %r: they are random, and every output must be dictated", str(path))
    return model_of_shape(load_config(path), device=device, dtype=dtype)


def model_of_shape(
    config: ModelConfig, *, device: torch.device | str = "cpu", dtype: torch.dtype | str | None = None
) -> Transformer:
    """A model of this shape with random weights; ``dtype`` as for :func:`load_model`, else bfloat16."""
    target = torch.device(device)
    return Transformer(config, RandomWeights(target, _dtype(dtype, target, config) or torch.bfloat16))


def _dtype(dtype: torch.dtype | str | None, device: torch.device, config: ModelConfig) -> torch.dtype | None:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is not None:
        if dtype not in _DTYPES:
            raise CheckpointError(f"dtype must be one of {', '.join(_DTYPES)}, not {dtype!r}")
        return _DTYPES[dtype]
    if device.type == "cpu":
        return torch.float32
    return _DTYPES.get(config.stored_dtype or "")


class SafetensorsFiles:
    """The tensors of a checkpoint by name, each read when taken.

    Args:
        directory: holds ``model.safetensors``, or an index and its shards, or one other
            ``*.safetensors`` file.
        device: device of the tensors.
        dtype: their new dtype; None = that of the first floating-point tensor.
    """

    def __init__(self, directory: Path, device: torch.device, dtype: torch.dtype | None) -> None:
        self.device = device
        self._directory = directory
        self._files: dict[Path, Any] = {}
        self._shard_of = self._locate()
        self.dtype = dtype or self._stored_dtype()

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor ``name``, which must have this shape.

        Raises:
            CheckpointError: it is missing, has another shape, is not floating-point, or can't be read.
        """
        tensor = self._read(name)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {name!r} in {str(self._shard_of[name])!r} has shape {tuple(tensor.shape)},"
                f" config.json asks for {shape}"
            )
        if not tensor.is_floating_point():
            raise CheckpointError(f"tensor {name!r} has dtype {tensor.dtype}, which is not supported")
        # a copy: one tensor of the file's would keep all of the mapped file in memory
        return tensor.to(device=self.device, dtype=self.dtype, copy=True)

    def _read(self, name: str) -> torch.Tensor:
        if name not in self._shard_of:
            raise CheckpointError(f"tensor {name!r} is missing in {str(self._directory)!r}")
        shard = self._shard_of[name]
        try:
            tensor: torch.Tensor = self._open(shard).get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"can't read tensor {name!r} from {str(shard)!r}: {error}") from error
        return tensor

    def _stored_dtype(self) -> torch.dtype:
        if not self._shard_of:
            raise CheckpointError(f"no tensor in {str(self._directory)!r}")
        return self._read(min(self._shard_of)).dtype

    def _locate(self) -> dict[str, Path]:
        """Which file each tensor is in."""
        index = self._directory / INDEX_FILE
        single = self._directory / WEIGHTS_FILE
        if single.exists() or not index.exists():
            file = single if single.exists() else self._only_file()
            return dict.fromkeys(self._open(file).keys(), file)
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{str(index)!r} has no weight_map")
        return {name: self._shard(index, shard) for name, shard in weight_map.items()}

    def _shard(self, index: Path, shard: object) -> Path:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{str(index)!r} names a file outside of its directory: {shard!r}")
        return self._directory / shard

    def _only_file(self) -> Path:
        files = sorted(self._directory.glob("*.safetensors"))
        if len(files) != 1:
            raise CheckpointError(f"no {WEIGHTS_FILE!r} in {str(self._directory)!r}")
        return files[0]

    def _open(self, file: Path) -> Any:
        """An open safetensors file; opening checks the header and the length."""
        if file not in self._files:
            try:
                self._files[file] = safe_open(file, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"can't read {str(file)!r}: {error}") from error
        return self._files[file]


class RandomWeights:
    """Random tensors, the same every time; norms are one. Implements :class:`.layer.Weights`."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype
        self._generator = torch.Generator(device).manual_seed(seed)

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Return a tensor of this shape. Its name decides its initial values."""
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        empty = torch.empty(shape, dtype=self.dtype, device=self.device)
        return empty.normal_(0.0, _RANDOM_SCALE, generator=self._generator)
