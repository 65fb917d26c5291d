"""The proposer inside vLLM: the forest drafts for every row of the batch, in one call per step.

vLLM makes one per worker process (``"method": "custom_class"``) and calls :meth:`ForestProposer.propose`
after every step. That call does not report the request of a row, its limits or its end: the worker
(``worker``) does. Only the worker that vLLM takes drafts from attaches its proposer. Does not import vLLM.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import UnknownRequestError
from agentspec.forest import Forest, Tokens
from agentspec.plain_step import PlainStep
from agentspec.stats import StageTable
from agentspec.step_cost import StepCost
from agentspec.tags import Tags
from agentspec.vllm_plugin.live import LiveRequest
from agentspec.vllm_plugin.lora import adapted
from agentspec.vllm_plugin.settings import PluginSettings
from agentspec.vllm_plugin.texts import ServedTokenizer
from agentspec.vllm_plugin.timing import Timing
from agentspec.vllm_plugin.traces import Traces

logger = logging.getLogger(__name__)

_NO_TOKENS: Tokens = np.empty(0, np.int32)


class ForestProposer:
    """A drafter for one engine process. Used by the worker's thread only; :meth:`settle` by any thread.

    A failure costs drafts, never a response: it is logged, and the step continues without drafts.

    Args:
        vllm_config: vLLM's configuration, with the plugin's settings in ``additional_config`` (``settings``).
        clock: clock in seconds, from any start, to time steps with.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """

    def __init__(self, vllm_config: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self.settings = PluginSettings.read(vllm_config.additional_config)
        self.forest = Forest(self.settings.forest_config())
        self.stages = StageTable()
        self.timing = Timing()
        self.texts = ServedTokenizer(vllm_config.model_config)
        self.traces = Traces()
        self.num_draft_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self._draft_config = self.settings.draft_config(self.num_draft_tokens)
        self._vocab_size: int = vllm_config.model_config.get_vocab_size()
        self._cost = StepCost()
        self._plain = PlainStep()
        self._clock = clock
        self._runner: Any = None
        self._live: dict[str, LiveRequest] = {}
        self._entering: list[LiveRequest] = []  # requests with a prediction that is being tokenized
        self._over: list[LiveRequest] = []
        self._rows = self.forest.rows()
        self._counting = threading.Lock()
        self._adapters: set[str | None] = {None}
        self._background = ThreadPoolExecutor(1, "agentspec-prompts")
        self._verified: dict[str, list[int]] = {}
        self._num_scheduled = 0
        self._num_failures = 0
        self._begin_s = self._end_s = 0.0
        self._drafting_s = 0.0  # duration of the last ``propose``, which drafted for this step

    @property
    def price(self) -> float:
        """The present least chance of acceptance for a draft token."""
        return self._cost.price if self.settings.price is None else self.settings.price

    @property
    def num_requests(self) -> int:
        """Number of live requests."""
        return len(self._live)

    @property
    def adapters(self) -> Collection[str | None]:
        """LoRA adapters used so far; None is the model itself."""
        return self._adapters

    # ---- calls from the worker ----

    def load_model(self, *_: object, **__: object) -> None:
        """Load nothing. vLLM calls it on the CPU."""

    def attach(self, runner: Any) -> None:
        """Draft for the batches of this model runner from now on."""
        self._runner = runner

    def begin_step(self, scheduler_output: Any) -> None:
        """Begin a step: take the requests that ended, and the drafts scheduled for verification."""
        now_s = self._clock()
        self._end(scheduler_output.finished_req_ids)
        # while requests run, the time between two steps is part of theirs
        is_going_on = self._live and self._end_s
        self._begin_s = self._end_s if is_going_on else now_s
        if not is_going_on:
            self._drafting_s = 0.0
        self._verified = scheduler_output.scheduled_spec_decode_tokens
        self._num_scheduled = scheduler_output.total_num_scheduled_tokens

    def start(self, new_requests: Iterable[Any]) -> None:
        """Finish the requests that ended, and start the new ones, which have rows in the batch now.

        Called after ``execute_model`` of vLLM's worker. Finished outputs stay in the shared trees. A prompt
        takes microseconds here.
        """
        self._finish_over()
        for new in new_requests:
            if new.sampling_params is None:  # it generates no tokens
                continue
            if new.req_id in self._live:  # the next input of a streaming session reuses the id
                self._end([new.req_id])
                self._finish_over()
            try:
                self._start(new)
            except Exception:
                logger.exception("the request %r runs without drafts", new.req_id)
                self._give_up(new.req_id)

    def output_tokens(self, text: str) -> Tokens:
        """Return a text as output tokens of the model. Raises ConfigError if this server has no tokenizer."""
        return self._known(self.texts.encode(text))

    def settle(self) -> None:
        """Return once all output so far is learned and counted."""
        self.forest.settle()
        for live in list(self._live.values()):
            with self._counting:
                if self._live.get(live.name) is live:  # not a new request of the same name
                    live.count(self._rows.take_counts(live.name))

    def close(self) -> None:
        """Learn all output so far and end the threads."""
        self._background.shutdown(wait=True, cancel_futures=True)
        self.settle()

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
            token_ids_cpu: int32 ``[rows, max_model_len]``, tokens of the rows.
            slot_mappings: not used.

        Returns:
            Draft tokens for each row, may be empty.
        """
        begin_s = self._clock()
        drafts: list[list[int]] | None = None
        if self._runner is not None:
            try:
                drafts = self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, begin_s)
            except Exception:
                self._num_failures += 1
                if self._num_failures.bit_count() == 1:  # logs only the 1st, 2nd, 4th, 8th ... failure
                    logger.exception("%d steps so far went on without drafts", self._num_failures)
            self._end_s = self._clock()
            self._drafting_s = self._end_s - begin_s
            self.timing.add(self._drafting_s)
        return [[] for _ in sampled_token_ids] if drafts is None else drafts

    def _propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        now_s: float,
    ) -> list[list[int]]:
        if self._entering:
            self._entering = [live for live in self._entering if not self._has_entered(live)]
        drafts, expected, num_decoding, num_verified, num_new = self._rows.step(
            self._runner.input_batch.req_ids,
            sampled_token_ids,
            num_tokens_no_spec,
            token_ids_cpu,
            self._verified,
            self.num_draft_tokens,
            self.price,
            now_s,
        )
        num_prompt_tokens = max(0, self._num_scheduled - num_decoding - num_verified)
        seconds = now_s - self._begin_s
        saving = self._plain.observe(
            seconds + self._drafting_s,
            self._drafting_s,
            num_decoding,
            num_verified,
            num_prompt_tokens,
            self._cost.draft_token_s,
        )
        if saving is not None:
            self._rows.count_saving(*saving)
        self._cost.observe(seconds, num_decoding, num_verified, num_new, num_prompt_tokens)
        if self.traces.live:
            self._note(sampled_token_ids)
        if self.settings.batch_shape == "uniform":
            self._pad(drafts, expected)
        return drafts

    def _note(self, sampled_token_ids: list[list[int]]) -> None:
        """Add the step to the traces of its requests. A failure costs only the trace."""
        rows = self._runner.input_batch.req_id_to_index
        for name, trace in list(self.traces.live.items()):
            try:
                sampled = sampled_token_ids[rows[name]] if name in rows else ()
                if not sampled:  # its prompt is not fully read, or it is not scheduled
                    continue
                with self._counting:
                    self._live[name].count(self._rows.take_counts(name))
                    trace.note(self._verified.get(name, ()), sampled)
            except Exception:
                logger.exception("the request %r continues without a trace", name)
                self.traces.drop(name)

    def _pad(self, drafts: list[list[int]], expected: float) -> None:
        """Pad every draft to the maximum, or clear all: full CUDA graphs are captured for these sizes.

        All are cleared if a live request has a lower limit, or if padded drafts cost more than they gain.
        """
        limit = self.num_draft_tokens
        is_wanted = all(
            live.tags.draft(self._draft_config).max_tokens == limit for live in self._live.values()
        )
        is_worth_it = is_wanted and expected > self.price * limit * len(drafts)
        for row, draft in enumerate(drafts):
            drafts[row] = draft + [0] * (limit - len(draft)) if is_worth_it else []

    # ---- requests ----

    def _start(self, new: Any) -> None:
        batch = self._runner.input_batch
        row = batch.req_id_to_index[new.req_id]
        num_prompt_tokens = int(batch.num_prompt_tokens[row])
        params = new.sampling_params
        tags = Tags.from_xargs(params.extra_args)
        adapter = new.lora_request and new.lora_request.lora_name
        counters = self.stages.of(tags.stage)
        counters.num_requests += 1
        counters.num_prompt_tokens += num_prompt_tokens
        most_tokens = self._runner.max_model_len
        if params.max_tokens is not None:
            most_tokens = min(most_tokens, num_prompt_tokens + params.max_tokens)
        stops = [stop for stop in _stops(params) if 0 <= stop < self._vocab_size]
        live = LiveRequest(new.req_id, tags, adapted(tags.stage, adapter), counters)
        if tags.trace is not None:
            live.trace = self.traces.begin(live.name, tags.stage.tenant, tags.trace)
        self._adapters.add(adapter)
        self._live[new.req_id] = live
        self._rows.add(new.req_id, num_prompt_tokens, most_tokens, stops)
        prompt = _NO_TOKENS if new.prompt_token_ids is None else batch.token_ids_cpu[row, :num_prompt_tokens]
        if tags.prediction is None:
            self._enter(live, self._known(prompt), wait=False)
            self._rows.enter(live.name, self.forest.number(live.name))
        else:
            live.starting = self._background.submit(self._enter_with_prediction, live, prompt.copy())
            self._entering.append(live)

    def _enter(
        self, live: LiveRequest, prompt: Tokens, prediction: Tokens | None = None, *, wait: bool
    ) -> None:
        tags = live.tags
        self.forest.start(
            live.name,
            live.trees,
            prompt,
            session=tags.session,
            prediction_ids=prediction,
            draft=tags.draft(self._draft_config),
            learn=tags.learn,
            wait=wait,
        )

    def _enter_with_prediction(self, live: LiveRequest, prompt: Tokens) -> None:
        assert live.tags.prediction is not None
        try:
            prediction = self.output_tokens(live.tags.prediction)
        except Exception:  # e.g. no tokenizer
            logger.exception("the request %r runs without its prediction", live.name)
            prediction = None
        self._enter(live, self._known(prompt), prediction, wait=True)

    def _has_entered(self, live: LiveRequest) -> bool:
        """Enter a request once its prompt and prediction are indexed. Return False while that is pending."""
        assert live.starting is not None
        if self._live.get(live.name) is not live:
            return True
        if not live.starting.done():
            return False
        try:
            live.starting.result()
            self._rows.enter(live.name, self.forest.number(live.name))
            live.starting = None
        except Exception:
            logger.exception("the request %r runs without drafts", live.name)
            self._give_up(live.name)
        return True

    def _give_up(self, request_id: str) -> None:
        """Forget a request that could not be started, or only in part."""
        self._live.pop(request_id, None)
        self.traces.drop(request_id)
        self._rows.remove(request_id)
        with contextlib.suppress(UnknownRequestError):
            self.forest.finish(request_id)

    def _end(self, request_ids: Iterable[str]) -> None:
        """Mark requests as finished, however they ended. Unknown ones are ignored."""
        for request_id in request_ids:
            live = self._live.pop(request_id, None)
            if live is not None:
                self.traces.end(request_id)
                self._over.append(live)

    def _finish_over(self) -> None:
        while self._over:
            live = self._over.pop()
            try:
                self._finish(live)
            except Exception:
                logger.exception("the request %r was not finished", live.name)

    def _finish(self, live: LiveRequest) -> None:
        with self._counting:
            live.count(self._rows.remove(live.name))
        if live.starting is None:
            self.forest.finish(live.name)
        elif not live.starting.cancel():  # it is being started now, or already was
            live.starting.add_done_callback(partial(self._forget_entered, live.name))

    def _known(self, tokens: Tokens) -> Tokens:
        """Return the tokens of the vocabulary. Others, such as image placeholders, must never be drafted."""
        numbers = tokens.view(np.uint32)  # negative ids become large
        if not len(numbers) or numbers.max() < self._vocab_size:
            return tokens
        return tokens[numbers < self._vocab_size]

    def _forget_entered(self, request_id: str, entering: Future[None]) -> None:
        if entering.exception() is not None:
            return
        try:
            self.forest.finish(request_id)
        except Exception:
            logger.exception("the forest could not finish %r", request_id)


def _stops(params: Any) -> frozenset[int]:
    """Return the token ids at which vLLM's scheduler ends a request."""
    eos = () if params.eos_token_id is None else (params.eos_token_id,)
    return frozenset((*eos, *(params.stop_token_ids or ())))
