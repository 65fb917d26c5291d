"""Loading of a head or a draft model. Its ``config.json`` names its format."""

from __future__ import annotations

from pathlib import Path

from agentspec.config import OWN_HEADS
from agentspec.engine.model.checkpoint import load_model
from agentspec.engine.model.checkpoint_config import CONFIG_FILE, read_json
from agentspec.engine.model.transformer import Transformer
from lab.drafters.draft_model import DraftModel
from lab.drafters.eagle_checkpoint import load_eagle
from lab.drafters.medusa import load_medusa
from lab.drafters.model_drafter import DraftNetwork
from lab.drafters.mtp import load_mtp


def load_network(path: str | Path, target: Transformer, served: str | Path) -> DraftNetwork:
    """Load an EAGLE-3, Medusa or MTP head or a draft model, with the served model's dtype and device.

    Args:
        path: directory of the head or model; ``OWN_HEADS`` = the MTP heads of the served model.
        target: the served model.
        served: its directory.

    Raises:
        CheckpointError: a file is missing or damaged, it is for another model, or the model has no MTP heads.
    """
    if path == OWN_HEADS:
        return load_mtp(served, target)
    raw = read_json(Path(path) / CONFIG_FILE)
    if raw.get("num_nextn_predict_layers"):
        return load_mtp(path, target)
    if "medusa_num_heads" in raw:
        return load_medusa(path, target)
    if any("Eagle" in str(name) for name in raw.get("architectures") or ()):
        return load_eagle(path, target)
    return DraftModel(load_model(path, device=str(target.device), dtype=target.dtype), target)
