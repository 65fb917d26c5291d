"""Runs of questions through a pipeline, with and without speculation."""

from __future__ import annotations

import uuid

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.agentic_sql.database import Database
from examples.agentic_sql.measurement import Measurement, Outcome
from examples.agentic_sql.pipelines import Pipeline
from examples.agentic_sql.questions import Question


class Run:
    """One run over the questions."""

    def __init__(self, pipeline: Pipeline, databases: dict[str, Database]) -> None:
        self._pipeline = pipeline
        self._databases = databases
        self._id = uuid.uuid4().hex[:8]

    async def outcome(self, number: int, question: Question, *, speculate: bool) -> Outcome:
        """Run one question through the pipeline and compare its result with the gold query's."""
        session = f"{self._id}-{number}-{'on' if speculate else 'off'}"
        given, calls = await self._pipeline.answer(question.text, session, speculate=speculate)
        gold = self._databases[question.query.database].query(question.query.sql())
        is_correct = given.result.matches(gold, ordered=question.query.is_ordered)
        return Outcome(question.query, given, is_correct, tuple(calls))

    async def measure(self, questions: list[Question], console: Console, *, compare: bool) -> Measurement:
        """Run each question with and without speculation, in alternating order, or only with it."""
        measurement = Measurement([], [])
        columns = (
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("questions", total=len(questions), note="")
            for number, question in enumerate(questions):
                for speculate in ((True, False) if number % 2 else (False, True)) if compare else (True,):
                    outcomes = measurement.on if speculate else measurement.off
                    outcomes.append(await self.outcome(number, question, speculate=speculate))
                right = sum(o.is_correct for o in measurement.on)
                progress.update(task, advance=1, note=f"{right} right")
                if not console.is_terminal and (number + 1) % 10 == 0:
                    console.print(f"{number + 1}/{len(questions)} questions, {right} right")
        return measurement
