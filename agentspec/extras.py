"""What the optional parts of an installation bring, and what to say where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentspec.distribution import DISTRIBUTION
from agentspec.errors import ConfigError

PACKAGES = {
    "engine": ("torch", "tokenizers", "safetensors", "jinja2", "llguidance"),
    "bench": ("mistral_common", "matplotlib"),
    "langchain": ("langchain_core", "langchain_openai", "langgraph"),
    "otel": ("opentelemetry",),
}


@contextmanager
def needed(*extras: str, hint: str = "") -> Iterator[None]:
    """Say what to install, as a ConfigError, if the body can't find a package of ``extras``."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = next((extra for extra in extras if package in PACKAGES[extra]), None)
        if extra is None:
            raise
        raise ConfigError(f"this needs {error.name}: pip install '{DISTRIBUTION}[{extra}]'{hint}") from None
