"""Calls of the text-to-SQL example, each stage with the right input.

With gold inputs a call does not depend on earlier outputs, so all variants answer the same calls.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from agentspec.errors import ConfigError
from agentspec.generation import GenerationRequest, SamplingParams
from agentspec.stages import StageKey
from agentspec.tags import Tags

if TYPE_CHECKING:
    from examples.agentic_sql.database import Database
    from examples.agentic_sql.prompts import Messages
    from examples.agentic_sql.questions import Question

WORKFLOW = "agentic_sql"
JSON_STAGES = ("classify", "extract", "combine")
MAX_TOKENS = 384


def load(num_questions: int, seed: int) -> list[list[GenerationRequest]]:
    """Return each question's calls in workflow order; training questions, the same for the same seed.

    Raises:
        ConfigError: the example is missing: it is in the repository, not in the package.
    """
    try:
        from examples.agentic_sql.database import open_all
        from examples.agentic_sql.questions import TRAINING, draw
        from examples.agentic_sql.schema import SCHEMAS
    except ModuleNotFoundError:
        raise ConfigError(
            "the load is that of examples/agentic_sql: run `python -m benchmarks` in the repository"
        ) from None
    rng = Random(f"load {seed}")
    names = list(SCHEMAS)
    with tempfile.TemporaryDirectory() as folder:
        databases = open_all(Path(folder))
        questions = [draw(TRAINING, rng, names[i % len(names)]) for i in range(num_questions)]
        return [list(_calls(f"q{i}", question, databases)) for i, question in enumerate(questions)]


def _calls(session: str, question: Question, databases: dict[str, Database]) -> Iterator[GenerationRequest]:
    from examples.agentic_sql import prompts
    from examples.agentic_sql.retrieval import similar
    from examples.agentic_sql.workflow import NUM_SOLVED

    text, query = question.text, question.query
    solved = similar(text, query.database, NUM_SOLVED)
    guess = "\n".join(other.query.features() for other in solved)
    notes = query.context(solved[0].query.sql())
    rows = databases[query.database].query(query.sql())
    yield _request(session, "classify", prompts.classify(text))
    yield _request(session, "extract", prompts.extract(text, query.database), guess)
    yield _request(session, "enrich", prompts.enrich(text, query.database, query.features(), solved[0]))
    for number, style in enumerate(prompts.STYLES, 1):
        yield _request(session, f"sql_{number}", prompts.sql(text, notes, style))
    candidates = [(query.sql(style), rows) for style in prompts.STYLES]
    yield _request(session, "combine", prompts.combine(text, candidates))


def _request(
    session: str, stage: str, messages: Messages, prediction: str | None = None
) -> GenerationRequest:
    schema: dict[str, object] | None = {} if stage in JSON_STAGES else None
    return GenerationRequest(
        request_id=f"{session}/{stage}",
        prompt=messages,
        sampling=SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, json_schema=schema),
        tags=Tags(StageKey.parse(f"{WORKFLOW}/{stage}"), session=session, prediction=prediction),
    )
