"""The packages that adapters are for, and what to install where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentspec.distribution import DISTRIBUTION, DOCUMENTS

# by the module that is imported
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
    """Say what to install, as a ModuleNotFoundError, if the body can't import its framework."""
    try:
        yield
    except ModuleNotFoundError as error:
        package, _, inner = (error.name or "").partition(".")
        if package not in REQUIREMENTS:
            raise
        advice = f"pip install {REQUIREMENTS[package]}"
        if inner:  # another version has it
            advice = f"install a version that {DOCUMENTS}/adapters.md names"
        raise ModuleNotFoundError(f"this adapter needs {error.name}: {advice}", name=error.name) from None
