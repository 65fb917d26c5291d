"""Fixtures of the engine's tests."""

from __future__ import annotations

from tests.engine.conftest import _one_thread, exact_model, tokenizer

__all__ = ["_one_thread", "exact_model", "tokenizer"]
