"""vLLM's own batch of live requests, without a model: what they say is recorded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from agentspec.benchmarks.core.requests import Request
from agentspec.benchmarks.vllm.speculators import NUM_SPECULATIVE_TOKENS
from agentspec.stages import StageKey
from agentspec.wire import to_xargs

BLOCK_TOKENS = 16
VOCABULARY = 131_072  # of the tokenizer that the recorded texts are read with
STAGE = StageKey("benchmark", ("workflow", "stage"))


class LiveBatch:
    """A batch of requests that go on by recorded tokens.

    Attributes:
        rows: vLLM's batch.
        states: what vLLM knows of each request besides.
        sampled: what the last step gave each row.
    """

    def __init__(self, live: Sequence[Request], max_model_len: int) -> None:
        self._live = live
        self.max_model_len = max_model_len
        num_blocks = -(-max_model_len // BLOCK_TOKENS)
        self.rows = InputBatch(
            max_num_reqs=len(live),
            max_model_len=max_model_len,
            max_num_batched_tokens=max_model_len,
            device=torch.device("cpu"),
            vocab_size=VOCABULARY,
            block_sizes=[BLOCK_TOKENS],
            max_num_blocks_per_req=[num_blocks],
            num_spec_tokens=NUM_SPECULATIVE_TOKENS,
        )
        self.states = [self._state(request) for request in live]
        for state in self.states:
            self.rows.add_request(state)
        self.sampled: list[list[int]] = [[] for _ in live]

    def _state(self, request: Request) -> CachedRequestState:
        return CachedRequestState(
            req_id=request.name,
            prompt_token_ids=request.prompt.tolist(),
            mm_features=[],
            sampling_params=SamplingParams(
                temperature=0.0,
                max_tokens=self.max_model_len,
                extra_args=dict(to_xargs(STAGE, session=request.name)),
            ),
            generator=None,
            block_ids=([],),
            num_computed_tokens=len(request.prompt),
            output_token_ids=[],
        )

    def advance(self) -> None:
        """A step gave every request some tokens."""
        for row, request in enumerate(self._live):
            tokens, _ = request.advance()
            end = int(self.rows.num_tokens_no_spec[row]) + len(tokens)
            self.rows.token_ids_cpu[row, end - len(tokens) : end] = tokens
            self.rows.num_tokens_no_spec[row] = end
            self.sampled[row] = tokens.tolist()
