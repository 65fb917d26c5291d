"""Optional parts of an installation: their packages, and the error if one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from agentspec.distribution import DISTRIBUTION
from agentspec.errors import ConfigError

PACKAGES = {
    "engine": ("torch", "tokenizers", "safetensors", "jinja2", "llguidance"),
    "bench": ("openai", "matplotlib", "mistral_common", "psutil"),
    "langchain": ("langchain_core", "langchain_openai", "langgraph"),
    "otel": ("opentelemetry",),
    "corpus": ("zstandard", "redis", "cryptography"),
    "ray": ("ray",),
}


@contextmanager
def needed(*extras: str, hint: str = "") -> Iterator[None]:
    """Raise ConfigError with an install command if the body can't find a package of ``extras``."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = next((extra for extra in extras if package in PACKAGES[extra]), None)
        if extra is None:
            raise
        raise _missing(error.name or "", extra, hint) from None


def check_installed(extra: str, hint: str = "") -> None:
    """Raise the error of :func:`needed` if a package of ``extra`` is missing. Imports none of them."""
    for package in PACKAGES[extra]:
        spec = find_spec(package)
        if spec is None or spec.origin is None:  # no origin: a folder that only has the name
            raise _missing(package, extra, hint)


def _missing(package: str, extra: str, hint: str) -> ConfigError:
    return ConfigError(f"this needs {package}: {install_command(extra)}{hint}")


def install_command(extra: str) -> str:
    """Return the command that installs the packages of ``extra``."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
