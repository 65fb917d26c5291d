"""The calls of this workflow, its name, and its stages that answer in JSON."""

from __future__ import annotations

from examples.saving import calls
from examples.saving.openai_client import AsyncOpenAI

WORKFLOW = "agentic_sql"
JSON_STAGES = ("classify", "extract", "combine")


class Caller(calls.Caller):
    """The calls of one question: one session, with or without speculation."""

    def __init__(self, client: AsyncOpenAI, model: str, session: str, *, speculate: bool = True) -> None:
        super().__init__(client, model, WORKFLOW, session, speculate=speculate, json_stages=JSON_STAGES)
