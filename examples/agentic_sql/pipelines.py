"""The two pipelines for a question: with explicit tags, or as an untagged graph."""

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
    """A pipeline that takes one question through all stages."""

    async def answer(self, question: str, session: str, *, speculate: bool) -> tuple[Answer, Sequence[Call]]:
        """Return the answer and its calls."""


class Tagged:
    """The pipeline of ``workflow.py``, which sets the stage header of every call explicitly."""

    def __init__(self, client: AsyncOpenAI, model: str, databases: dict[str, Database]) -> None:
        self._client = client
        self._model = model
        self._databases = databases

    async def answer(self, question: str, session: str, *, speculate: bool) -> tuple[Answer, Sequence[Call]]:
        """Return the answer and its calls; see :class:`Pipeline`."""
        caller = Caller(self._client, self._model, session, speculate=speculate)
        return await answer(question, caller, self._databases), caller.calls


@contextmanager
def untagged(base_url: str, api_key: str, model: str, databases: dict[str, Database]) -> Iterator[Pipeline]:
    """Yield the LangGraph pipeline; inside the block, calls of all LangChain models carry their stages.

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
