"""The tensors of a drafting head's file. Every fault of it is a CheckpointError."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from agentspec.errors import CheckpointError


class HeadWeights:
    """The tensors of a head by name, read at once. Implements :class:`agentspec.engine.model.layer.Weights`.

    Args:
        directory: holds one of the files.
        files: names of files with tensors; the first that exists is read. Those that are not safetensors
            are torch's.
        device: device of the tensors that are taken.
        dtype: their new dtype.

    Raises:
        CheckpointError: there is no such file, or it can't be read.
    """

    def __init__(
        self, directory: Path, files: Sequence[str], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.device = device
        self.dtype = dtype
        self._directory = directory
        self._tensors = {_canonical(name): tensor for name, tensor in _read(directory, files).items()}

    def __contains__(self, name: str) -> bool:
        """Return True if there is a tensor of this name."""
        return name in self._tensors

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Return the tensor of this name and shape. Raises CheckpointError if there is none."""
        tensor = self.take_raw(name)
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise CheckpointError(
                f"tensor {name!r} in {str(self._directory)!r} is {tensor.dtype} {tuple(tensor.shape)}, not "
                f"floating-point {shape}"
            )
        return tensor.to(device=self.device, dtype=self.dtype)

    def take_raw(self, name: str) -> torch.Tensor:
        """Return the tensor of this name as it is stored. Raises CheckpointError if there is none."""
        if name not in self._tensors:
            raise CheckpointError(f"tensor {name!r} is missing in {str(self._directory)!r}")
        return self._tensors[name]


def _read(directory: Path, files: Sequence[str]) -> dict[str, torch.Tensor]:
    file = next((directory / name for name in files if (directory / name).exists()), None)
    if file is None:
        raise CheckpointError(f"none of {', '.join(files)} is in {str(directory)!r}")
    try:
        if file.suffix == ".safetensors":
            found = safetensors.torch.load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"can't read {str(file)!r}: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(one, torch.Tensor) for one in found.values()):
        raise CheckpointError(f"{str(file)!r} holds more than tensors by name")
    return found


def _canonical(name: str) -> str:
    """Return the name of a tensor in the first published heads. Later ones have others."""
    name = name.removeprefix("model.")
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name
