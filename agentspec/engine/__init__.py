"""The embedded PyTorch engine. Needs the extra ``agentspec-serving[engine]``."""

from __future__ import annotations

from agentspec.engine.engine import TorchEngine
from agentspec.engine.engine_config import EngineConfig

__all__ = ["EngineConfig", "TorchEngine"]
