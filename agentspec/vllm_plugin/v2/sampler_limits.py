"""Refuses requests that exceed the buffers of vLLM's sampler in model runner V2.

The sampler has buffers of fixed sizes. vLLM checks most of these sizes only when it fills the buffers, in its
engine process, where the error ends the service for all clients. This module checks them in the API server,
after vLLM has completed a request's parameters with the model's own end tokens, and with bad words as tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.exceptions import VLLMValidationError
from vllm.v1.worker.gpu.sample.logit_bias import (
    MAX_NUM_ALLOWED_TOKEN_IDS,
    MAX_NUM_LOGIT_BIAS_TOKENS,
    MAX_NUM_STOP_TOKEN_IDS,
)

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM


def install(engine: AsyncLLM) -> None:
    """Have the server of ``engine`` answer such requests with status 400, if it has model runner V2."""
    if not engine.vllm_config.use_v2_model_runner:
        return
    processor = engine.input_processor
    process, process_in_thread = processor.process_inputs, processor.process_inputs_async

    def process_inputs(*args: Any, **options: Any) -> Any:
        request = process(*args, **options)
        check(request.sampling_params)
        return request

    async def process_inputs_async(*args: Any, **options: Any) -> Any:
        request = await process_in_thread(*args, **options)
        check(request.sampling_params)
        return request

    processor.process_inputs, processor.process_inputs_async = process_inputs, process_inputs_async


def check(params: SamplingParams | None) -> None:
    """Raise vLLM's error for a bad request if these completed parameters exceed the sampler's buffers."""
    if params is None:  # of a pooling request
        return
    for name, number, most, unit in _sizes(params):
        if number > most:
            raise VLLMValidationError(
                f"{name} has {number} {unit}, and vLLM has room for {most}: send fewer", parameter=name
            )


def _sizes(params: SamplingParams) -> Iterator[tuple[str, int, int, str]]:
    """Yield the name of a field, its size, the sampler's limit, and the unit."""
    yield "allowed_token_ids", len(params.allowed_token_ids or ()), MAX_NUM_ALLOWED_TOKEN_IDS, "ids"
    yield "logit_bias", len(params.logit_bias or ()), MAX_NUM_LOGIT_BIAS_TOKENS, "tokens"
    if params.min_tokens > 0:
        unit = "ids beside min_tokens, with the model's own"
        yield "stop_token_ids", len(params.all_stop_token_ids), MAX_NUM_STOP_TOKEN_IDS, unit
    words = params.bad_words_token_ids or ()
    yield "bad_words", len(words), envs.VLLM_MAX_NUM_BAD_WORDS, "words"
    yield "bad_words", sum(map(len, words)), envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS, "tokens"
