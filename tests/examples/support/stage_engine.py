"""An engine that plays the stages of the text-to-SQL pipeline, based on their prompts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from agentspec.generation import GenerationDelta, GenerationRequest
from agentspec.stats import SpeculationStats
from examples.agentic_sql import prompts
from examples.agentic_sql.query import Query
from examples.agentic_sql.questions import Question
from tests.gateway.support.scripted import ScriptedEngine

QUESTION = "How many orders are there?"
GOOD = "SELECT COUNT(*) FROM orders"
SCRIPT = {
    "classify": ['{"database": "shop", "kind": "count", "tables": ["orders"]}'],
    "extract": ['{"kind": "count"}'],
    "enrich": ["Tables: orders"],
    "sql_1": [GOOD],
    "sql_2": [GOOD],
    "sql_3": [GOOD],
    "combine": [json.dumps({"choice": 1, "sql": GOOD, "answer": "There are 600 orders."})],
}


@dataclass
class StageEngine(ScriptedEngine):
    """An engine that answers by stage, one text after the other."""

    texts: dict[str, list[str]] = field(default_factory=dict)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[GenerationDelta]:
        self.requests.append(request)
        text = self.texts[request.tags.stage.path[-1]].pop(0)
        yield GenerationDelta(0, text, (1, 2), 3)
        yield GenerationDelta(0, "", (), 3, finish_reason="stop", speculation=SpeculationStats())


def _system_prompts() -> dict[str, str]:
    """Return the system prompt of each stage."""
    solved = Question(QUESTION, Query("shop", "count", "orders"))
    messages = {
        "classify": prompts.classify(QUESTION),
        "extract": prompts.extract(QUESTION, "shop"),
        "enrich": prompts.enrich(QUESTION, "shop", "{}", solved),
        **{f"sql_{i}": prompts.sql(QUESTION, "", style) for i, style in enumerate(prompts.STYLES, 1)},
        "combine": prompts.combine(QUESTION, []),
    }
    return {asked[0]["content"]: stage for stage, asked in messages.items()}


@dataclass
class PromptEngine(ScriptedEngine):
    """An engine that gives each system prompt a fixed answer, so it needs no tags."""

    stages: dict[str, str] = field(default_factory=_system_prompts)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[GenerationDelta]:
        self.requests.append(request)
        first = request.prompt[0]
        assert isinstance(first, dict)
        yield GenerationDelta(0, SCRIPT[self.stages[first["content"]]][0], (1, 2), 3)
        yield GenerationDelta(0, "", (), 3, finish_reason="stop", speculation=SpeculationStats())
