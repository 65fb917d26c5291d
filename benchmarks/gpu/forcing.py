"""Teacher forcing in vLLM's worker: the recorded next token gets the largest logit, at every position.

The position of a row in its request names the token, for draft tokens too: a row counts only if all draft
tokens before it are right. Nothing waits for the device: scheduling stays asynchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.calls import Calls

RECORD = "benchmark_record"  # in a request's extra_args: the index of its call
LOGIT = 1e4  # more than any logit of random weights, and exact enough in 16 bits


class Records:
    """The tokens of all recorded calls on a device; a call's prompt and response are one text."""

    def __init__(self, calls: Calls, device: torch.device) -> None:
        tokens, starts = calls.flat()
        self._tokens = torch.from_numpy(tokens.astype(np.int64)).to(device)
        self._starts = torch.from_numpy(starts[:-1]).to(device)
        self._lasts = torch.from_numpy(starts[1:] - 1).to(device)
        self.device = device

    def force(self, logits: torch.Tensor, records: torch.Tensor, positions: torch.Tensor) -> None:
        """Raise each row's recorded next token, in place.

        Args:
            logits: float [num_rows, vocabulary].
            records: int64 [num_rows]: the index of the call.
            positions: int64 [num_rows]: the position of the row's input token in its text. Beyond the end of
                the text the last token is raised.
        """
        next_ = torch.minimum(self._starts[records] + positions + 1, self._lasts[records])
        logits.scatter_(1, self._tokens[next_].unsqueeze(1), LOGIT)

    def upload(self, records: Sequence[int]) -> torch.Tensor:
        """Return indices of calls on the device, as int64; the copy does not wait for it."""
        return torch.tensor(records, dtype=torch.int64).to(self.device, non_blocking=True)


class V1Forcing:
    """Forces a model runner V1: between its logits and its sampler."""

    def __init__(self, runner: Any, records: Records) -> None:
        self._runner = runner
        self._records = records
        self._sample: Callable[..., Any] = runner._sample
        self._names: list[str] = []
        self._of_rows = records.upload([])
        runner._sample = self.sample

    def sample(self, logits: torch.Tensor, metadata: Any) -> Any:
        """Force the logits, then sample: replaces ``GPUModelRunner._sample``."""
        runner = self._runner
        records = self._current()
        if metadata is None or not any(metadata.num_draft_tokens):
            indices = runner.query_start_loc.gpu[1 : len(records) + 1] - 1
        else:
            indices = metadata.logits_indices
            rows = torch.arange(len(indices), device=self._records.device)
            records = records[torch.searchsorted(metadata.cu_num_sampled_tokens, rows, right=True)]
        self._records.force(logits, records, runner.positions[indices])
        return self._sample(logits, metadata)

    def _current(self) -> torch.Tensor:
        """Return the calls of the batch's rows; uploaded only when the batch changes."""
        names = self._runner.input_batch.req_ids
        if names != self._names:
            self._names = list(names)
            requests = self._runner.requests
            self._of_rows = self._records.upload([record_of(requests[name]) for name in names])
        return self._of_rows


class V2Forcing:
    """Forces a model runner V2: its model's logits, while it samples."""

    def __init__(self, runner: Any, records: Records) -> None:
        self._runner = runner
        self._records = records
        self._add_requests: Callable[..., Any] = runner.add_requests
        self._sample: Callable[..., Any] = runner.sample
        self._compute_logits: Callable[..., Any] = runner.model.compute_logits
        self._batch: Any = None
        self._of_states = [0] * runner.max_num_reqs
        self._on_device = records.upload(self._of_states)
        runner.add_requests, runner.sample = self.add_requests, self.sample
        runner.model.compute_logits = self.compute_logits

    def add_requests(self, scheduler_output: Any) -> Any:
        """Note the calls of new requests."""
        result = self._add_requests(scheduler_output)
        if scheduler_output.scheduled_new_reqs:
            for new in scheduler_output.scheduled_new_reqs:
                state = self._runner.req_states.req_id_to_index[new.req_id]
                self._of_states[state] = record_of(new)
            self._on_device = self._records.upload(self._of_states)
        return result

    def sample(self, hidden_states: torch.Tensor, input_batch: Any, *rest: Any, **options: Any) -> Any:
        """Sample a batch; :meth:`compute_logits` is called for it."""
        self._batch = input_batch
        try:
            return self._sample(hidden_states, input_batch, *rest, **options)
        finally:
            self._batch = None

    def compute_logits(self, *arguments: Any, **options: Any) -> Any:
        """Return the model's logits, forced if they are to be sampled from."""
        logits, batch = self._compute_logits(*arguments, **options), self._batch
        if batch is not None:
            records = self._on_device[batch.expanded_idx_mapping]
            self._records.force(logits, records, batch.positions[batch.logits_indices])
        return logits


class Forcing:
    """What vLLM adds to its worker: ``--worker-extension-cls benchmarks.gpu.forcing.Forcing``."""

    model_runner: Any
    device: torch.device

    def force_records(self, path: str) -> None:
        """Force every request from now on; each names its call of the file in ``extra_args``."""
        kind = V2Forcing if getattr(self, "use_v2_model_runner", False) else V1Forcing
        kind(self.model_runner, Records(Calls.load(Path(path)), self.device))


def record_of(request: Any) -> int:
    """Return the index of a request's call."""
    return int(request.sampling_params.extra_args[RECORD])
