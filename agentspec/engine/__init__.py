"""The embedded PyTorch engine. Needs the extra ``agentspec-serving[engine]``.

torch is imported with :class:`TorchEngine`, not before: settings and ``config.json`` are checked without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentspec.engine.engine_config import EngineConfig

if TYPE_CHECKING:
    from agentspec.engine.engine import TorchEngine

__all__ = ["EngineConfig", "TorchEngine"]


def __getattr__(name: str) -> Any:
    if name != "TorchEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agentspec.engine.engine import TorchEngine

    return TorchEngine
