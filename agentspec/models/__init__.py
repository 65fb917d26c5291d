"""The model that ships with the package: a small Llama for the text-to-SQL example.

A stand-in that makes everything run offline. Its model card is ``agentspec_sql/README.md``.
"""

from __future__ import annotations

from pathlib import Path

BUNDLED_MODEL = "agentspec-sql"


def bundled_model_dir() -> Path:
    """Return the directory of the bundled checkpoint, in Hugging Face form."""
    return Path(__file__).parent / "agentspec_sql"
