"""Packages that have an adapter, and the advice if one of them is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentspec.distribution import DISTRIBUTION, DOCUMENTS

# imported module -> pip requirement
REQUIREMENTS = {
    "ag2": "ag2",
    "agents": "openai-agents",
    "autogen_agentchat": "autogen-agentchat",
    "autogen_core": "autogen-agentchat",
    "crewai": "crewai",
    "dspy": "dspy",
    "langchain_core": f"'{DISTRIBUTION}[langchain]'",
    "langchain_openai": f"'{DISTRIBUTION}[langchain]'",
    "litellm": "litellm",
    "llama_index": "llama-index-core",
    "openai": "openai",
    "openhands": f"'{DISTRIBUTION}[openhands]'",
    "pydantic_ai": "pydantic-ai-slim",
    "smolagents": "smolagents",
}


@contextmanager
def framework() -> Iterator[None]:
    """Raise a ModuleNotFoundError with installation advice if the body can't import its framework."""
    try:
        yield
    except ModuleNotFoundError as error:
        package, _, inner = (error.name or "").partition(".")
        if package not in REQUIREMENTS:
            raise
        advice = f"pip install {REQUIREMENTS[package]}"
        if inner:  # the package is installed, in a version without this module
            advice = f"install a version that {DOCUMENTS}/adapters.md names"
        raise ModuleNotFoundError(f"this adapter needs {error.name}: {advice}", name=error.name) from None
