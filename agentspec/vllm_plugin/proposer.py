"""The proposer in vLLM's model runner V1: the forest drafts for every row of the batch, in one call a step.

vLLM makes one per worker process (``"method": "custom_class"``) and calls :meth:`ForestProposer.propose`
after every step. That call does not report the request of a row, its limits or its end: the worker
(``worker``) does. Only the worker that vLLM takes drafts from attaches its proposer. Does not import vLLM.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.vllm_plugin.capture_sizes import CaptureSizes
from agentspec.vllm_plugin.draft_cap import DraftCap
from agentspec.vllm_plugin.drafter import NO_TOKENS, ForestDrafter

logger = logging.getLogger(__name__)


class ForestProposer:
    """The steps of one engine process. Used by the worker's thread only.

    A failure costs drafts, never a response: it is logged, and the step continues without drafts.

    Args:
        vllm_config: vLLM's configuration, with the plugin's settings (``settings``).
        clock: clock in seconds, from any start, to time steps with.

    Attributes:
        drafter: the live requests and their forest.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """

    def __init__(self, vllm_config: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self.drafter = ForestDrafter(vllm_config)
        self._cap = DraftCap.of_v1(
            vllm_config.scheduler_config.max_num_seqs,
            vllm_config.scheduler_config.max_num_batched_tokens,
            vllm_config.model_config.get_vocab_size(),
        )
        self._clock = clock
        self._runner: Any = None
        self._verified: dict[str, list[int]] = {}
        self._num_scheduled = 0
        self._num_failures = 0

    # ---- calls from the worker ----

    def load_model(self, *_: object, **__: object) -> None:
        """Load nothing. vLLM calls it on the CPU."""

    def attach(self, runner: Any) -> None:
        """Draft for the batches of this model runner from now on."""
        self._runner = runner
        self.drafter.max_model_len = runner.max_model_len

    def begin_step(self, scheduler_output: Any) -> None:
        """Begin a step: take the requests that ended, and the drafts scheduled for verification."""
        self.drafter.end(scheduler_output.finished_req_ids)
        if not self.drafter.live:  # while requests run, the time between two steps is part of theirs
            self.drafter.meter.idle(self._clock())
        self._verified = scheduler_output.scheduled_spec_decode_tokens
        self._num_scheduled = scheduler_output.total_num_scheduled_tokens

    def start(self, new_requests: Iterable[Any]) -> None:
        """Finish the requests that ended, and start the new ones, which have rows in the batch now.

        Called after ``execute_model`` of vLLM's worker.
        """
        self.drafter.finish_ended()
        batch = self._runner.input_batch
        for new in new_requests:
            row = batch.req_id_to_index.get(new.req_id)
            if row is None:  # e.g. a request that generates no tokens
                continue
            num_prompt_tokens = int(batch.num_prompt_tokens[row])
            has_tokens = new.prompt_token_ids is not None
            prompt = batch.token_ids_cpu[row, :num_prompt_tokens] if has_tokens else NO_TOKENS
            self.drafter.start(new, num_prompt_tokens, prompt)

    # ---- a step ----

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Take the tokens that the step sampled for each row, and draft for the next step.

        Args:
            sampled_token_ids: new tokens of each row; empty while its prompt is not fully read.
            num_tokens_no_spec: number of tokens of each row, including the new ones.
            token_ids_cpu: int32 ``[rows, max_model_len]``, tokens of the rows. Not used.
            slot_mappings: not used.

        Returns:
            Draft tokens for each row, may be empty.
        """
        drafts: list[list[int]] | None = None
        if self._runner is not None:
            try:
                drafts = self._propose(sampled_token_ids, num_tokens_no_spec)
            except Exception:
                self.drafter.lose_step(self._runner.input_batch.req_ids)
                self._num_failures += 1
                if self._num_failures.bit_count() == 1:  # logs only the 1st, 2nd, 4th, 8th ... failure
                    logger.exception("%d steps so far went on without drafts", self._num_failures)
        return [[] for _ in sampled_token_ids] if drafts is None else drafts

    def _propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: NDArray[np.int32]
    ) -> list[list[int]]:
        begin_s = self._clock()
        drafter = self.drafter
        drafter.enter_ready()
        drafts, chances, expected, *sums = drafter.rows.step(
            self._runner.input_batch.req_ids,
            sampled_token_ids,
            num_tokens_no_spec,
            self._verified,
            drafter.num_draft_tokens,
            drafter.price,
            begin_s,
        )
        if drafter.traces.live:
            self._note(sampled_token_ids)
        if drafter.settings.batch_shape == "uniform":
            self._pad(drafts, expected)
        else:
            self._cut(drafts, chances, num_tokens_no_spec)
        end_s = self._clock()
        drafter.timing.add(end_s - begin_s)
        saving = drafter.meter.observe(begin_s, end_s, self._num_scheduled, *sums)
        if saving is not None:
            drafter.rows.count_saving(saving)
        return drafts

    def _note(self, sampled_token_ids: list[list[int]]) -> None:
        """Add the step to the traces of its requests."""
        rows = self._runner.input_batch.req_id_to_index
        for name in list(self.drafter.traces.live):
            sampled = sampled_token_ids[rows[name]] if name in rows else ()
            if sampled:  # otherwise its prompt is not fully read, or it is not scheduled
                draft = [token for token in self._verified.get(name, ()) if token >= 0]  # the rest is padding
                self.drafter.note(name, draft, sampled)

    def _cut(
        self, drafts: list[list[int]], chances: NDArray[np.float32], num_tokens_no_spec: NDArray[np.int32]
    ) -> None:
        """Cut the drafts to what vLLM's sampler has memory and time for, and its graphs a size."""
        if not len(chances):
            return
        lengths = list(map(len, drafts))
        batch, num_rows = self._runner.input_batch, len(drafts)
        num_output_tokens: Sequence[int] | None = None
        if not batch.no_penalties or batch.bad_words_token_ids:
            num_output_tokens = (num_tokens_no_spec[:num_rows] - batch.num_prompt_tokens[:num_rows]).tolist()
        worth = self._sizes.worth_verifying(chances, lengths, num_rows, self.drafter.price)
        kept = self._cap.allowed(worth, num_output_tokens)
        if kept is not lengths:
            for draft, length in zip(drafts, kept, strict=True):
                del draft[length:]

    @cached_property
    def _sizes(self) -> CaptureSizes:
        # vLLM rounds them to multiples of 1 + K when it has its KV cache, long after the proposer was made
        return CaptureSizes(self._runner.compilation_config.cudagraph_capture_sizes or ())

    def _pad(self, drafts: list[list[int]], expected: float) -> None:
        """Pad every draft to the maximum, or clear all: full CUDA graphs are captured for these sizes.

        All are cleared if a live request has a lower limit, or if padded drafts cost more than they gain.
        """
        drafter = self.drafter
        limit = drafter.num_draft_tokens
        is_wanted = all(drafter.most_tokens(live) == limit for live in drafter.live.values())
        is_worth_it = is_wanted and expected > drafter.price * limit * len(drafts)
        for row, draft in enumerate(drafts):
            drafts[row] = draft + [0] * (limit - len(draft)) if is_worth_it else []
