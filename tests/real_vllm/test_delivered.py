"""Stop strings are found where vLLM's front end finds them."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentspec.models import bundled_model_dir
from agentspec.vllm_plugin.delivery import StopStrings
from agentspec.vllm_plugin.texts import ServedTokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from the modules that vLLM imports
    from vllm import SamplingParams
    from vllm.tokenizers import get_tokenizer
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

NUM_TOKENS = 60
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def texts() -> ServedTokenizer:
    made = ServedTokenizer(SimpleNamespace(skip_tokenizer_init=False))
    made.__dict__["_tokenizer"] = get_tokenizer(str(bundled_model_dir()))
    return made


def front_end(texts: ServedTokenizer, params: Any, token_ids: list[int], rng: Any) -> Any:
    """Return vLLM's detokenizer as of the first stop string, after steps of one to eight tokens."""
    request = SimpleNamespace(
        request_id="r", sampling_params=params, prompt_token_ids=PROMPT, prompt_embeds=None
    )
    stream = IncrementalDetokenizer.from_new_request(texts._tokenizer, request)
    while token_ids:
        size = int(rng.integers(1, 9))
        if stream.update(token_ids[:size], False):
            return stream
        token_ids = token_ids[size:]
    return None


@pytest.mark.parametrize("is_included", [False, True])
@pytest.mark.parametrize("min_tokens", [0, 9])
@pytest.mark.parametrize("seed", range(20))
def test_stop_strings(texts: ServedTokenizer, is_included: bool, min_tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    token_ids: list[int] = rng.integers(0, 1200, NUM_TOKENS).tolist()
    whole_text = "".join(texts.pieces(SamplingParams(), PROMPT, token_ids))
    begins = rng.integers(0, len(whole_text) - 4, 3)
    stop = [whole_text[begin : begin + size] for begin, size in zip(begins, (1, 3, 8), strict=True)]
    params = SamplingParams(stop=stop, include_stop_str_in_output=is_included, min_tokens=min_tokens)
    stops = StopStrings.of(params)
    assert stops is not None
    stream = front_end(texts, params, token_ids, rng)
    found = stops.find(texts.pieces(params, PROMPT, token_ids))
    assert (found is None) == (stream is None)
    if found is None:
        return
    assert found.num_counted == stream.num_output_tokens()
    pieces = list(texts.pieces(params, PROMPT, token_ids))
    delivered = stream.output_text
    assert delivered.startswith("".join(pieces[: found.num_whole]))
    if sum(one in "".join(pieces[: found.num_counted]) for one in stop) > 1:
        return  # older versions prefer another one of these, so the shortest text counts
    beyond = next((n for n in range(found.num_whole, NUM_TOKENS) if pieces[n]), NUM_TOKENS)
    assert len("".join(pieces[: beyond + 1])) > len(delivered)  # the next token is not delivered whole
