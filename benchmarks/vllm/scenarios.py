"""What the outputs must survive: ways to run a server, and ways to ask it."""

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
# room for one request of the longest, or for five of the usual 200 tokens: more at a time preempt each other
SMALL_CACHE = ("--max-model-len", "1024", "--block-size", "32", "--num-gpu-blocks-override", "34")


def as_is(chat: Chat) -> Chat:
    """The example's own request."""
    return chat


def structured(chat: Chat) -> Chat:
    """Bound to a JSON schema of its stage, or to any JSON object."""
    schema = {"name": "answer", "strict": True, "schema": SCHEMAS.get(chat.stage, FREE_OBJECT)}
    return chat.asking(response_format={"type": "json_schema", "json_schema": schema}, max_tokens=96)


def with_stops(chat: Chat) -> Chat:
    """Ended by strings that many answers hold."""
    return chat.asking(stop=STOPS)


def with_choices(chat: Chat) -> Chat:
    """Two choices, drawn from the one token that is left: vLLM refuses greedy n=2.

    By top_p and not top_k=1, and without a seed: vLLM 0.32 on the CPU ends on top_k in a step for which
    nothing was drafted, and on a seed in a step that reads a part of a prompt.
    """
    return chat.asking(n=2, temperature=1.0, top_p=ALMOST_NOTHING)


def with_logprobs(chat: Chat) -> Chat:
    """Each token with its log probability and two others'."""
    return chat.asking(logprobs=True, top_logprobs=2)


def leaving(chat: Chat) -> int | None:
    """Every other client hangs up in the middle, after 1 to 24 tokens."""
    return 1 + _draw(chat) % 24 if _draw(chat) % 2 else None


def _draw(chat: Chat) -> int:
    """A number that is the same in every run."""
    return zlib.crc32(chat.name.encode())


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way to run and to ask.

    Attributes:
        flags: of the server.
        change: what becomes of the example's requests.
        leaves: when clients hang up.
        preempts: whether the server must have preempted requests, for this to say anything.
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
