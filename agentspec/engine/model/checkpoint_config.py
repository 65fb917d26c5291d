"""The JSON files of a model directory in Hugging Face form.

No torch: a wrong ``config.json`` is found before torch is imported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentspec.engine.model.config import ModelConfig
from agentspec.errors import CheckpointError

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint.

    Raises:
        CheckpointError: there is no such file, or it holds no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"can't read {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{str(path)!r} holds no JSON object")
    return value


def load_config(path: str | Path) -> ModelConfig:
    """The configuration of the checkpoint in directory ``path``.

    Raises:
        CheckpointError: config.json is missing or broken, or describes a model that is not supported.
    """
    file = Path(path) / CONFIG_FILE
    try:
        return ModelConfig.from_json(read_json(file))
    except CheckpointError as error:
        raise CheckpointError(f"{str(file)!r}: {error}") from error


def check_files(path: str | Path, *, needs_weights: bool = True) -> None:
    """Look at what can be seen of a checkpoint without torch: its configuration, and which files are there.

    Raises:
        CheckpointError: as :func:`load_config`, or the tokenizer or the weights are missing.
    """
    load_config(path)
    if not (Path(path) / TOKENIZER_FILE).is_file():
        raise CheckpointError(f"no {TOKENIZER_FILE!r} in {str(path)!r}")
    if needs_weights and not any(Path(path).glob("*.safetensors*")):
        raise CheckpointError(f"no weights in {str(path)!r}: a checkpoint has files *.safetensors")
