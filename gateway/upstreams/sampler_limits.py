"""Requests that would end a vLLM for everybody: the sampler of its model runner V2 has no room for them.

vLLM (0.26 to 0.33) checks the sizes of these fields only in its engine, which ends. The limits are those of
vLLM's sources; ``tests/vllm_sources`` compares both. With our plugin vLLM itself refuses what can't be
counted here: see ``agentspec/vllm_plugin/sampler_limits.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentspec.errors import RequestError

MOST_ALLOWED_TOKEN_IDS = 1024
MOST_LOGIT_BIASES = 1024
MOST_STOP_TOKEN_IDS = 128  # with the model's own end tokens; only read with min_tokens
MOST_BAD_WORDS = 128
MOST_BAD_WORD_TOKENS = 1024
NUM_END_TOKENS = 8  # kept for those of a model that is not known here
FORMS_OF_WORD = 2  # vLLM forbids a word with a space in front, too
LIMITED_FIELDS = ("allowed_token_ids", "stop_token_ids", "bad_words", "logit_bias")
NESTED_FIELD = "sampling_params"  # of /inference/v1/generate


def check_room(body: Mapping[str, Any], *, has_plugin: bool = False) -> None:
    """Raise RequestError if a vLLM with model runner V2 may have no room for the fields of a body.

    Args:
        body: of any of vLLM's endpoints.
        has_plugin: vLLM counts the model's end tokens and the tokens of bad words itself. Without it, the
            most that these may be is counted.
    """
    for name, number, most, unit in _sizes(body, has_plugin):
        if number > most:
            raise RequestError(
                f"{name} has {number} {unit}, and vLLM has room for {most}: send fewer",
                param=name,
                code="too_many_values",
            )


def _sizes(body: Mapping[str, Any], has_plugin: bool) -> Iterator[tuple[str, int, int, str]]:
    """Yield name, size, largest size and unit of the fields that are there."""
    nested = body.get(NESTED_FIELD)
    for name in LIMITED_FIELDS:
        if name in body:
            yield from _sizes_of(name, body, has_plugin)
        if isinstance(nested, dict) and name in nested:
            yield from _sizes_of(name, nested, has_plugin)


def _sizes_of(name: str, fields: Mapping[str, Any], has_plugin: bool) -> Iterator[tuple[str, int, int, str]]:
    given = fields[name]
    if not isinstance(given, list | dict):  # vLLM refuses it
        return
    match name:
        case "allowed_token_ids":
            yield name, len(given), MOST_ALLOWED_TOKEN_IDS, "ids"
        case "logit_bias":
            yield name, len(given), MOST_LOGIT_BIASES, "tokens"
        case "stop_token_ids" if _is_positive(fields.get("min_tokens")):
            kept = 0 if has_plugin else NUM_END_TOKENS
            unit = "ids beside min_tokens"
            yield name, len(set(map(str, given))), MOST_STOP_TOKEN_IDS - kept, unit
        case "bad_words":
            yield name, len(given), MOST_BAD_WORDS, "words"
            if not has_plugin:
                num_tokens = FORMS_OF_WORD * sum(len(str(word).encode()) + 1 for word in given)
                yield name, num_tokens, MOST_BAD_WORD_TOKENS, "tokens, as far as can be told by their bytes,"


def _is_positive(number: object) -> bool:
    try:
        return float(number) > 0  # type: ignore[arg-type]
    except (TypeError, ValueError):  # vLLM refuses it
        return False
