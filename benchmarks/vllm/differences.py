"""Token-by-token comparison of two runs' outputs, and the cause of each difference.

Greedy decoding picks the likelier of two tokens. If both are equally likely but for rounding, the choice may
depend on how many tokens a kernel computes together, with or without speculation. That is a tie. A difference
counts as a tie only if the model's own log probabilities show it (``gap_nats``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from agentspec.wire import XARG_LEARN, XARG_MAX_DRAFT, XARGS_FIELD
from benchmarks.vllm.chats import MODEL_NAME, Chat
from benchmarks.vllm.client import Answer, Choice

TIE_NATS = 1e-3
NUM_CANDIDATES = 20
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between an output and its reference.

    Attributes:
        chat: the request's name.
        context: token ids of the prompt and the common part of the outputs.
        expected: the reference's next token; None if it ended there.
        found: the other output's next token; None if it ended there.
    """

    chat: str
    context: tuple[int, ...]
    expected: int | None
    found: int | None


def differences(
    chats: Sequence[Chat], references: Sequence[Answer], answers: Sequence[Answer], *, cut: Sequence[bool]
) -> list[Difference]:
    """Return each choice's first difference; if ``cut``, the output must be a prefix of the reference."""
    found: list[Difference] = []
    for chat, reference, answer, is_cut in zip(chats, references, answers, cut, strict=True):
        indices = answer.choices if is_cut else reference.choices | answer.choices
        for index in indices:
            one = reference.choices.get(index, Choice()), answer.choices.get(index, Choice())
            found += _first_difference(chat.name, reference.prompt_ids, *one, is_cut)
    return found


def _first_difference(
    name: str, prompt_ids: Sequence[int], reference: Choice, choice: Choice, is_cut: bool
) -> Iterator[Difference]:
    ours, theirs = choice.token_ids, reference.token_ids
    if is_cut:
        theirs = theirs[: len(ours)]
    elif ours == theirs and (choice.text, choice.finish) == (reference.text, reference.finish):
        return
    if is_cut and ours == theirs:
        return
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    at = min(len(ours), len(theirs)) if at is None else at
    expected, found = (ids[at] if at < len(ids) else None for ids in (theirs, ours))
    yield Difference(name, (*prompt_ids, *ours[:at]), expected, found)


def gap_nats(url: str, difference: Difference) -> float | None:
    """Return the log probability gap of the two tokens on a server that drafts nothing for the request.

    Return None if one output ended, or if a token is not among the model's candidates.
    """
    body = {
        "model": MODEL_NAME,
        "prompt": list(difference.context),
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": NUM_CANDIDATES,
        "return_tokens_as_token_ids": True,
        XARGS_FIELD: {XARG_MAX_DRAFT: 0, XARG_LEARN: 0},
    }
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=TIMEOUT_S).raise_for_status()
    logprobs = answer.json()["choices"][0]["logprobs"]["top_logprobs"][0]
    candidates = [logprobs.get(f"token_id:{token}") for token in (difference.expected, difference.found)]
    return None if None in candidates else abs(candidates[0] - candidates[1])


def logprob_gap(references: Sequence[Answer], answers: Sequence[Answer]) -> float:
    """Return the largest difference between log probabilities of the same tokens; 0 without any."""
    return max(
        (
            abs(a - b)
            for reference, answer in zip(references, answers, strict=True)
            for index, choice in reference.choices.items()
            if index in answer.choices
            for a, b in zip(choice.logprobs, answer.choices[index].logprobs, strict=False)
        ),
        default=0.0,
    )
