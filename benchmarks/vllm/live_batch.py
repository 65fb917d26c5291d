"""A vLLM batch that recorded calls join and leave; records verify the drafts, and no model runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from agentspec.errors import ConfigError
from agentspec.replay.calls import Call
from agentspec.stages import StageKey
from agentspec.tags import Tags
from benchmarks.vllm.speculators import NUM_SPECULATIVE_TOKENS

NUM_LIVE = 64
BLOCK_TOKENS = 16
VOCABULARY = 131_072  # of the tokenizer for the recorded texts
TENANT = "benchmark"


class LiveBatch:
    """A fixed number of live calls; when one ends, the next begins.

    Attributes:
        rows: vLLM's batch.
        new: requests that began in the last step.
        finished: names of requests that ended in the step before it.
        sampled: tokens of each row in the last step.
        num_tokens: number of tokens of all steps.
    """

    def __init__(self, calls: Iterator[Call], num_live: int, max_model_len: int) -> None:
        self._calls = calls
        self._num_live = num_live
        self._numbers = count()
        self._records: dict[str, list[int]] = {}  # remaining output tokens, by request
        self._ending: list[str] = []
        self.max_model_len = max_model_len
        self.rows = InputBatch(
            max_num_reqs=num_live,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_model_len,
            device=torch.device("cpu"),
            vocab_size=VOCABULARY,
            block_sizes=[BLOCK_TOKENS],
            max_num_blocks_per_req=[-(-max_model_len // BLOCK_TOKENS)],
            num_spec_tokens=NUM_SPECULATIVE_TOKENS,
        )
        self.new: list[CachedRequestState] = []
        self.finished: list[str] = []
        self.sampled: list[list[int]] = []
        self.num_tokens = 0

    def advance(self, drafts: Sequence[Sequence[int]]) -> None:
        """Run one step: replace ended calls, and give each row its correct draft tokens and one more.

        Raises:
            ConfigError: there are no more calls.
        """
        proposed = dict(zip(self.rows.req_ids, drafts, strict=True))
        self.finished, self._ending = self._ending, []
        for name in self.finished:
            self.rows.remove_request(name)
        self.new = [self._next() for _ in range(self._num_live - len(self._records))]
        for state in self.new:
            self.rows.add_request(state)
        self.rows.batch_update_builder.get_and_reset(self.rows.num_reqs)  # as at the beginning of each step
        self.sampled = [
            self._sample(row, name, proposed.get(name, ())) for row, name in enumerate(self.rows.req_ids)
        ]

    def _next(self) -> CachedRequestState:
        call = next(self._calls, None)
        if call is None:
            raise ConfigError("the traces have too few calls for so many steps")
        name = f"request-{next(self._numbers)}"
        self._records[name] = call.response.tolist()
        stage = StageKey.parse(call.stage, TENANT)
        return CachedRequestState(
            req_id=name,
            prompt_token_ids=call.prompt.tolist(),
            mm_features=[],
            sampling_params=SamplingParams(
                temperature=0.0,
                max_tokens=self.max_model_len,
                extra_args=dict(Tags(stage, session=call.session).to_xargs()),
            ),
            generator=None,
            block_ids=([],),
            num_computed_tokens=len(call.prompt),
            output_token_ids=[],
        )

    def _sample(self, row: int, name: str, draft: Sequence[int]) -> list[int]:
        record = self._records[name]
        num_right = 0
        while num_right < min(len(draft), len(record)) and draft[num_right] == record[num_right]:
            num_right += 1
        tokens = record[: num_right + 1]
        del record[: len(tokens)]
        if not record:
            del self._records[name]
            self._ending.append(name)
        end = int(self.rows.num_tokens_no_spec[row]) + len(tokens)
        self.rows.token_ids_cpu[row, end - len(tokens) : end] = tokens
        self.rows.num_tokens_no_spec[row] = end
        self.num_tokens += len(tokens)
        return tokens
