"""The proposer in vLLM's model runner V1: the forest drafts for every row of the batch, in one call a step.

vLLM makes one per worker process (``"method": "custom_class"``) and calls :meth:`ForestProposer.propose`
after every step. Only the worker that vLLM takes drafts from attaches its proposer. Does not import vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentspec.vllm_plugin.drafter import ForestDrafter
from agentspec.vllm_plugin.planner import StepPlanner

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

SPARE_BYTES = 1 << 30  # vLLM leaves a tenth of the GPU's memory unused, 8 GB of 80
MOST_COPIED_TOKENS = 20_000  # 0.5 to 1.8 ms
# bytes per draft token and word of the vocabulary
_SAMPLING_BYTES = 26  # logits 2, two copies 4 each, sorted 4 and their places 8, chances 4
_PENALTY_BYTES = 22  # counts of prompt and output 8 each, masks 1 each, penalized logits 4


class ForestProposer:
    """The steps of one engine process. Used by the worker's thread only.

    A failure costs drafts, never a response: it is logged, and the step continues without drafts.

    Args:
        vllm_config: vLLM's configuration, with the plug-in's settings (``settings``).
        clock: monotonic seconds, to time steps with.

    Attributes:
        planner: plans the steps, which run immediately.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """

    def __init__(self, vllm_config: VllmConfig, clock: Callable[[], float] = time.monotonic) -> None:
        scheduling = vllm_config.scheduler_config
        self.planner = StepPlanner(ForestDrafter(vllm_config), scheduling.max_num_seqs, clock=clock)
        self._room = SamplerRoom.of_server(
            scheduling.max_num_seqs,
            scheduling.max_num_batched_tokens,
            vllm_config.model_config.get_vocab_size(),
        )
        self._runner: GPUModelRunner | None = None

    def load_model(self, *_: object, **__: object) -> None:
        """Load nothing. On CPUs vLLM calls this method."""

    def attach(self, runner: GPUModelRunner) -> None:
        """Draft for the batches of this model runner from now on."""
        self._runner = runner
        self.planner.drafter.max_model_len = runner.max_model_len

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
        if self._runner is not None:
            names = self._runner.input_batch.req_ids
            try:
                return self._propose(names, sampled_token_ids, num_tokens_no_spec[: len(names)].tolist())
            except Exception:
                self.planner.give_up(names, "it could not be run", exc_info=True)
        return [[] for _ in sampled_token_ids]

    def _propose(self, names: list[str], sampled: list[list[int]], ends: list[int]) -> list[list[int]]:
        self._check(names, sampled, ends)
        planned = self.planner.plan(names, *_arrays(sampled, self.planner.drafter.num_draft_tokens))
        if planned is None:
            return [[] for _ in sampled]
        planned.step.run()
        lengths = self._room.allowed(planned.step.lengths, self._num_copied(ends))
        return [row[:length].tolist() for row, length in zip(self.planner.drafts, lengths, strict=False)]

    def _check(self, names: list[str], sampled: list[list[int]], ends: list[int]) -> None:
        """Give up rows that vLLM shortened, or that missed a step: their texts have gaps."""
        drafter = self.planner.drafter
        for name, new, end in zip(names, sampled, ends, strict=True):
            live = drafter.live.get(name) if new else None
            if live is not None:
                if live.num_tokens + len(new) != end:
                    drafter.rows.lose(name)
                live.num_tokens = end

    def _num_copied(self, ends: list[int]) -> int:
        """Return the output tokens that vLLM copies once per draft token; 0 = it copies none."""
        assert self._runner is not None
        batch = self._runner.input_batch
        if batch.no_penalties and not batch.bad_words_token_ids:
            return 0
        return max(1, int((ends - batch.num_prompt_tokens[: len(ends)]).max()))


@dataclass(frozen=True, slots=True)
class SamplerRoom:
    """Limit on a step's draft tokens, summed over rows, from memory and time of V1's sampler.

    Memory: V1 sizes the KV cache after a trial run with one draft token per request. Every further draft
    token takes rows of logits that the trial did not count. Time: if a request of the batch has penalties or
    bad words, V1 copies a row's output once for each of its draft tokens, in Python.

    Attributes:
        most: largest number of draft tokens.
        most_penalized: the same if a request has penalties.
    """

    most: int
    most_penalized: int

    @classmethod
    def of_server(
        cls, max_num_seqs: int, max_num_batched_tokens: int, vocab_size: int, spare_bytes: int = SPARE_BYTES
    ) -> SamplerRoom:
        """Return the limits of a server.

        Args:
            max_num_seqs, max_num_batched_tokens: vLLM's. The trial run has one draft token for each of as
                many requests as both allow.
            vocab_size: number of logits of a token.
            spare_bytes: memory that a step may take beyond the trial run.
        """
        profiled = min(max_num_seqs, max_num_batched_tokens)
        spare = spare_bytes // vocab_size
        penalized = spare // _PENALTY_BYTES
        if penalized > profiled:
            penalized = (spare + _SAMPLING_BYTES * profiled) // (_SAMPLING_BYTES + _PENALTY_BYTES)
        return cls(profiled + spare // _SAMPLING_BYTES, penalized)

    def allowed(self, lengths: Sequence[int], num_copied: int = 0) -> list[int]:
        """Return the number of first draft tokens that each row may keep. The longest drafts are cut first.

        Args:
            lengths: draft tokens of each row.
            num_copied: output tokens that the sampler copies once per draft token; 0 = none.
        """
        most = min(self.most_penalized, MOST_COPIED_TOKENS // num_copied) if num_copied else self.most
        longest = max(lengths, default=0)
        while sum(min(length, longest) for length in lengths) > most:
            longest -= 1
        return [min(length, longest) for length in lengths]


def _arrays(sampled: list[list[int]], num_draft_tokens: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the number of tokens of each row, int32 ``[rows]``, and the tokens, int64 ``[rows, K + 1]``."""
    counts = np.fromiter(map(len, sampled), np.int32, len(sampled))
    tokens = np.zeros((len(sampled), num_draft_tokens + 1), np.int64)
    is_sampled = np.arange(num_draft_tokens + 1) < counts[:, None]
    tokens[is_sampled] = np.fromiter(chain.from_iterable(sampled), np.int64)
    return counts, tokens
