"""The text-to-SQL example's questions, run through its pipeline with limited concurrency.

Needs the repository: the package does not include the example.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from openai import AsyncOpenAI

from benchmarks.vllm.chats import MODEL_NAME
from examples.agentic_sql.calls import Caller
from examples.agentic_sql.database import Database
from examples.agentic_sql.measurement import Outcome
from examples.agentic_sql.prompts import Messages
from examples.agentic_sql.questions import Question
from examples.agentic_sql.workflow import answer

TIMEOUT_S = 600.0
NO_KEY = "none"


class TakesTurns(Caller):
    """A caller that waits for its turn before each call: the pipeline makes three concurrent calls."""

    def __init__(self, client: AsyncOpenAI, session: str, turns: asyncio.Semaphore) -> None:
        super().__init__(client, MODEL_NAME, session)
        self._turns = turns

    async def ask(
        self, stage: str, messages: Messages, max_tokens: int = 256, prediction: str | None = None
    ) -> str:
        """Ask once a slot is free."""
        async with self._turns:
            return await super().ask(stage, messages, max_tokens, prediction)


def drive(
    url: str, questions: Sequence[Question], databases: Mapping[str, Database], num_clients: int
) -> list[Outcome]:
    """Return each question's outcome; ``num_clients`` limits concurrent questions and requests."""
    return asyncio.run(_drive(url, questions, dict(databases), num_clients))


async def _drive(
    url: str, questions: Sequence[Question], databases: dict[str, Database], num_clients: int
) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    waiting = iter(enumerate(questions))
    turns = asyncio.Semaphore(num_clients)

    async def client(http: AsyncOpenAI, left: Iterator[tuple[int, Question]]) -> None:
        for number, question in left:
            outcomes[number] = await _outcome(question, TakesTurns(http, f"q{number}", turns), databases)

    async with (
        AsyncOpenAI(base_url=f"{url}/v1", api_key=NO_KEY, timeout=TIMEOUT_S, max_retries=0) as http,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(num_clients):
            group.create_task(client(http, waiting))
    return [outcomes[number] for number in range(len(questions))]


async def _outcome(question: Question, caller: Caller, databases: dict[str, Database]) -> Outcome:
    given = await answer(question.text, caller, databases)
    gold = databases[question.query.database].query(question.query.sql())
    is_correct = given.result.matches(gold, ordered=question.query.is_ordered)
    return Outcome(question.query, given, is_correct, tuple(caller.calls))
