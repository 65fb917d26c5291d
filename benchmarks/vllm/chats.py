"""The chat requests of the benchmark: the text-to-SQL example's calls, tagged like the gateway's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from agentspec.generation import GenerationRequest
from agentspec.wire import XARGS_FIELD
from benchmarks.harness import calls

MODEL_NAME = "agentspec-sql"
CALLS_PER_QUESTION = 7


@dataclass(frozen=True, slots=True)
class Chat:
    """One request: its name (unique), the name of its stage, and its body."""

    name: str
    stage: str
    body: Mapping[str, Any]

    def asking(self, **fields: Any) -> Chat:
        """Return the same chat with these fields of the body set."""
        return replace(self, body={**self.body, **fields})

    def tagged(self, **xargs: str | int) -> Chat:
        """Return the same chat with these tags set; names omit the prefix ``agentspec_``."""
        tags = {f"agentspec_{name}": value for name, value in xargs.items()}
        return self.asking(**{XARGS_FIELD: {**self.body[XARGS_FIELD], **tags}})


def load(num_chats: int, seed: int) -> list[Chat]:
    """Return at least ``num_chats`` greedy chats, in workflow order and whole questions.

    The same seed gives the same chats.

    Raises:
        ConfigError: the example is missing: it is in the repository, not in the package.
    """
    questions = calls.load(-(-num_chats // CALLS_PER_QUESTION), seed)
    return [_chat(request, seed) for request in chain.from_iterable(questions)]


def _chat(request: GenerationRequest, seed: int) -> Chat:
    xargs = replace(request.tags, session=f"{seed}-{request.tags.session}").to_xargs()
    body = {
        "model": MODEL_NAME,
        "messages": request.prompt,
        "temperature": 0,
        "max_tokens": request.sampling.max_tokens,
        XARGS_FIELD: xargs,
    }
    return Chat(f"{seed}-{request.request_id}", request.tags.stage.name, body)
