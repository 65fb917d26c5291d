"""Scenarios in which outputs must not change: server flags and request options."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.vllm.chats import Chat
from benchmarks.vllm.client import Leaves, stays

TEXT = {"type": "string"}
NAMES = {"type": "array", "items": TEXT}


def _object(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


SCHEMAS = {
    "agentic_sql/classify": _object(database=TEXT, kind=TEXT, tables=NAMES),
    "agentic_sql/combine": _object(choice={"type": "integer"}, sql=TEXT, answer=TEXT),
}
FREE_OBJECT = {"type": "object"}
STOPS = [" WHERE", ", ", "\nConditions"]
SMALL_BATCH = ("--max-num-batched-tokens", "64", "--max-num-seqs", "32")
ALMOST_NOTHING = 1e-6
# room for one request of maximum length, or for five of the usual 200 tokens: more preempt each other
SMALL_CACHE = ("--max-model-len", "1024", "--block-size", "32", "--num-gpu-blocks-override", "34")


def as_is(chat: Chat) -> Chat:
    """Return the example's own request."""
    return chat


def structured(chat: Chat) -> Chat:
    """Constrain the output to a JSON schema of its stage, or to any JSON object."""
    schema = {"name": "answer", "strict": True, "schema": SCHEMAS.get(chat.stage, FREE_OBJECT)}
    return chat.asking(response_format={"type": "json_schema", "json_schema": schema}, max_tokens=96)


def with_stops(chat: Chat) -> Chat:
    """End the output at strings that many outputs contain."""
    return chat.asking(stop=STOPS)


def with_choices(chat: Chat) -> Chat:
    """Request two choices with one candidate token per step: vLLM refuses greedy n=2.

    Uses top_p in place of top_k=1, and no seed. On the CPU, vLLM 0.32 crashes on top_k in a step without
    drafts. It also crashes on a seed in a step that reads a part of a prompt.
    """
    return chat.asking(n=2, temperature=1.0, top_p=ALMOST_NOTHING)


def with_logprobs(chat: Chat) -> Chat:
    """Request the log probability of each token and of two others."""
    return chat.asking(logprobs=True, top_logprobs=2)


def leaving(chat: Chat) -> int | None:
    """Let every other client hang up after 1 to 24 tokens."""
    return 1 + _draw(chat) % 24 if _draw(chat) % 2 else None


def _draw(chat: Chat) -> int:
    """Return a number that is the same in every run."""
    return zlib.crc32(chat.name.encode())


@dataclass(frozen=True, slots=True)
class Scenario:
    """One set of server flags and request options.

    Attributes:
        flags: the server's flags.
        change: changes the example's requests.
        leaves: when clients hang up.
        preempts: true if the result is valid only if the server preempted requests.
    """

    name: str
    flags: tuple[str, ...] = ()
    change: Callable[[Chat], Chat] = as_is
    leaves: Leaves = stays
    preempts: bool = False


SCENARIOS = (
    Scenario("plain"),
    Scenario("structured output", change=structured),
    Scenario("stop strings", change=with_stops),
    Scenario("n=2", change=with_choices),
    Scenario("logprobs", change=with_logprobs),
    Scenario("cancelled", leaves=leaving),
    Scenario("chunked prefill", flags=SMALL_BATCH),
    Scenario("no prefix cache", flags=("--no-enable-prefix-caching",)),
    Scenario("preemption", flags=SMALL_CACHE, preempts=True),
)
