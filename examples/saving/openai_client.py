"""OpenAI's client, or one line of installation advice."""

from __future__ import annotations

try:
    from openai import APIConnectionError, AsyncOpenAI
except ModuleNotFoundError as error:
    if error.name != "openai":
        raise
    raise SystemExit("the examples ask the server by OpenAI's client: pip install openai") from None

__all__ = ["APIConnectionError", "AsyncOpenAI"]
