"""AgentSpec: per-stage suffix-tree speculative decoding for LLM agents.

``import agentspec`` needs numpy and the native core only. ``agentspec.engine`` imports torch,
``agentspec.vllm_plugin`` imports vllm.
"""

from __future__ import annotations

from importlib.util import find_spec

__version__ = "0.1.0"

if find_spec("agentspec._native") is None:  # a checkout that hides the installed package
    from agentspec.distribution import installed_folder

    __path__[:] = [installed_folder(__version__)]

from agentspec.config import DraftConfig, ForestConfig
from agentspec.draft import Draft, Source
from agentspec.forest import Forest, ForestStats
from agentspec.stages import StageKey

__all__ = [
    "Draft",
    "DraftConfig",
    "Forest",
    "ForestConfig",
    "ForestStats",
    "Source",
    "StageKey",
    "__version__",
]
