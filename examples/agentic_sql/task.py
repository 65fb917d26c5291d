"""A held-out question as a separate task, for agents that solve it without the pipeline."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from examples.agentic_sql import prompts
from examples.agentic_sql.database import Database, QueryResult
from examples.agentic_sql.query import Style
from examples.agentic_sql.questions import Question
from examples.agentic_sql.retrieval import similar
from examples.agentic_sql.workflow import NUM_SOLVED, guess
from examples.saving.calls import Caller


@dataclass(frozen=True, slots=True)
class Task:
    """A question about a known database; ``seed`` is the first seed for sampling."""

    question: Question
    database: Database
    seed: int

    @property
    def text(self) -> str:
        """The question in words."""
        return self.question.text

    async def notes(self, caller: Caller) -> str:
        """Return the notes for the SQL writers, from the model's stages ``extract`` and ``enrich``."""
        name = self.question.query.database
        solved = similar(self.text, name, NUM_SOLVED)
        features = await caller.ask("extract", prompts.extract(self.text, name), prediction=guess(solved))
        asked = prompts.enrich(self.text, name, features, solved[0])
        return await caller.ask("enrich", asked, max_tokens=384)

    def asks_for_sql(self, notes: str, style: Style = "join") -> prompts.Messages:
        """Return the prompt of a SQL writer."""
        return prompts.sql(self.text, notes, style)

    async def run(self, sql: str) -> QueryResult:
        """Return the query's rows, or SQLite's error."""
        return await asyncio.to_thread(self.database.query, sql)

    def is_right(self, result: QueryResult) -> bool:
        """Return True if the rows are those of the gold query."""
        query = self.question.query
        return result.matches(self.database.query(query.sql()), ordered=query.is_ordered)
