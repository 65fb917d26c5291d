"""The ways to take a question through the stages: tagged by hand, or as an untagged graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from agentspec.extras import needed
from examples.agentic_sql.calls import WORKFLOW, Caller
from examples.agentic_sql.database import Database
from examples.agentic_sql.workflow import Answer, answer
from examples.saving.calls import Call
from examples.saving.openai_client import AsyncOpenAI


class Pipeline(Protocol):
    """Takes one question through all stages."""

    async def answer(self, question: str, session: str, *, speculate: bool) -> tuple[Answer, Sequence[Call]]:
        """The answer, and the calls it took."""


class Tagged:
    """Every call gets the header of its stage by hand (``workflow.py``)."""

    def __init__(self, client: AsyncOpenAI, model: str, databases: dict[str, Database]) -> None:
        self._client = client
        self._model = model
        self._databases = databases

    async def answer(self, question: str, session: str, *, speculate: bool) -> tuple[Answer, Sequence[Call]]:
        """See :class:`Pipeline`."""
        caller = Caller(self._client, self._model, session, speculate=speculate)
        return await answer(question, caller, self._databases), caller.calls


@contextmanager
def untagged(base_url: str, api_key: str, model: str, databases: dict[str, Database]) -> Iterator[Pipeline]:
    """The LangGraph graph; while it lasts, the calls of all LangChain models carry their stages.

    Raises:
        ConfigError: LangChain is not installed.
    """
    with needed("langchain"):
        from agentspec.adapters.langchain import instrument
        from examples.agentic_sql.untagged import Untagged
    undo = instrument(workflow=WORKFLOW)
    try:
        yield Untagged(base_url, api_key, model, databases)
    finally:
        undo()
