"""The proposer inside vLLM: the forest drafts for every row of the batch, in one call per step.

vLLM makes one per worker process (``"method": "custom_class"``) and asks :meth:`ForestProposer.propose` after
every step. Which request a row is, what it may have and when it is over, that call does not say: the worker
tells (``worker``). Only the worker whose drafts vLLM uses has a forest. Imports nothing of vLLM.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.draft import Draft, Source
from agentspec.forest import Forest, Tokens
from agentspec.stats import StageTable
from agentspec.step_cost import StepCost
from agentspec.vllm_plugin.live import LiveRequest
from agentspec.vllm_plugin.scribe import Gain, Scribe
from agentspec.vllm_plugin.settings import PluginSettings
from agentspec.vllm_plugin.tags import RequestTags
from agentspec.vllm_plugin.texts import Texts
from agentspec.vllm_plugin.timing import Timing

logger = logging.getLogger(__name__)

_NO_TOKENS: Tokens = np.empty(0, np.int32)


class ForestProposer:
    """Drafts for one engine process. Used by one thread, the worker's, but for prompts with a prediction.

    A failure costs drafts, never an answer: it is logged, and the step goes on without.

    Args:
        vllm_config: vLLM's configuration; ours is in its ``additional_config`` (``settings``).
        clock: seconds from any beginning, to time steps with.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """

    def __init__(self, vllm_config: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self.settings = PluginSettings.read(vllm_config.additional_config)
        self.forest = Forest(self.settings.forest_config())
        self.stages = StageTable()
        self.timing = Timing()
        self.texts = Texts(vllm_config.model_config)
        self.num_draft_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self._draft_config = self.settings.draft_config(self.num_draft_tokens)
        self._vocab_size: int = vllm_config.model_config.get_vocab_size()
        self._cost = StepCost()
        self._clock = clock
        self._runner: Any = None
        self._live: dict[str, LiveRequest] = {}
        self._scribe = Scribe(self.forest)
        self._adapters: set[str | None] = {None}
        self._background = ThreadPoolExecutor(1, "agentspec-prompts")
        self._verified: Mapping[str, Sequence[int]] = {}
        self._num_scheduled = 0
        self._num_failures = 0
        self._begin_s = self._end_s = 0.0

    @property
    def price(self) -> float:
        """What a draft token must at least have as its chance of being accepted, at present."""
        return self._cost.price if self.settings.price is None else self.settings.price

    @property
    def num_requests(self) -> int:
        """Live ones."""
        return len(self._live)

    @property
    def adapters(self) -> Collection[str | None]:
        """LoRA adapters that were used so far, None for the model itself."""
        return self._adapters

    # ---- what the worker tells ----

    def load_model(self, *_: object, **__: object) -> None:
        """Nothing to load; vLLM calls it on the CPU."""

    def attach(self, runner: Any) -> None:
        """From now on draft for the batches of this model runner."""
        self._runner = runner

    def begin_step(self, scheduler_output: Any) -> None:
        """A step begins: requests have finished, drafts were scheduled to be verified."""
        now_s = self._clock()
        self.finish(scheduler_output.finished_req_ids)
        # while requests go on, what passes between two steps is a part of their time as well
        self._begin_s = self._end_s if self._live and self._end_s else now_s
        self._verified = scheduler_output.scheduled_spec_decode_tokens
        self._num_scheduled = scheduler_output.total_num_scheduled_tokens

    def start(self, new_requests: Iterable[Any]) -> None:
        """Requests run for the first time; their rows are in the batch. A prompt costs microseconds here."""
        for new in new_requests:
            if new.sampling_params is None:  # it generates nothing
                continue
            self.finish([new.req_id])  # the next input of a streaming session has the id of the last
            try:
                self._start(new)
            except Exception:
                self._give_up(new.req_id)
                logger.exception("the request %r runs without drafts", new.req_id)

    def finish(self, request_ids: Iterable[str]) -> None:
        """Requests are over, however they ended; what they wrote is kept for others."""
        for request_id in request_ids:
            live = self._live.pop(request_id, None)
            if live is None:
                continue
            self._scribe.finish(live)
            if live.starting is None:
                self._forget(request_id)
            elif not live.starting.cancel():  # it is just entering, or was too late to be cancelled
                live.starting.add_done_callback(partial(self._forget_entered, request_id))

    def output_tokens(self, text: str) -> Tokens:
        """A text as an output of the model. Raises ConfigError if this server has no tokenizer."""
        return self._known(self.texts.encode(text))

    def settle(self) -> None:
        """Return when all that was written so far is learned."""
        self._scribe.settle()

    def close(self) -> None:
        """Learn what was written, end the threads."""
        self._background.shutdown(wait=True, cancel_futures=True)
        self._scribe.close()

    # ---- a step ----

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Take what the step gave each row, and draft for the next.

        Args:
            sampled_token_ids: of each row; none where a prompt is not read to its end.
            num_tokens_no_spec: of each row, these included.
            token_ids_cpu: int32 ``[rows, max_model_len]``, the rows.
            slot_mappings: not used.

        Returns:
            Draft tokens for each row, may be none.
        """
        begin_s = self._clock()
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if self._runner is not None:
            try:
                self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, begin_s, drafts)
            except Exception:
                self._num_failures += 1
                if self._num_failures.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ...: steps are many
                    logger.exception("%d steps so far went on without drafts", self._num_failures)
            self._end_s = self._clock()
            self.timing.add(self._end_s - begin_s)
        return drafts

    def _propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        now_s: float,
        drafts: list[list[int]],
    ) -> None:
        request_ids = self._runner.input_batch.req_ids
        ends = num_tokens_no_spec[: len(drafts)].tolist()
        gains: list[Gain] = []
        updates: list[tuple[str, Tokens]] = []
        rows: list[tuple[int, int, int, LiveRequest]] = []  # row, where it ends, its room for a draft
        num_steps = num_verified = num_new = 0
        for row, sampled in enumerate(sampled_token_ids):
            live = self._live.get(request_ids[row]) if sampled else None
            if live is None:
                continue
            end, room = ends[row], live.most_tokens - ends[row] - 1
            if room < 0 or not live.stops.isdisjoint(sampled):
                end, room = live.end(end, sampled), 0  # it is over
            num_sampled = len(sampled) - ends[row] + end  # what is behind its end is nobody's
            verified = len(self._verified.get(live.name, ()))
            gains.append((live, num_sampled, verified, live.source))
            if live.has_output:
                num_steps += 1
                num_verified += verified
                num_new += num_sampled
            if live.starting is not None and not self._has_entered(live):
                continue
            updates.append((live.name, token_ids_cpu[row, live.num_seen : end]))
            rows.append((row, end, room, live))
        self._learn_cost(now_s, num_steps, num_verified, num_new)
        proposed = self.forest.step(updates, self.num_draft_tokens, self.price) if rows else []
        self._scribe.write(now_s, gains, updates)
        for (row, end, room, live), draft in zip(rows, proposed, strict=True):
            live.num_seen = end
            live.has_output = True
            live.source = draft.source if room else Source.NONE
            drafts[row] = draft.token_ids[:room].tolist()
        if self.settings.batch_shape == "uniform":
            self._pad(drafts, proposed)

    def _learn_cost(self, now_s: float, num_steps: int, num_verified: int, num_new: int) -> None:
        num_prompt_tokens = max(0, self._num_scheduled - num_steps - num_verified)
        self._cost.observe(now_s - self._begin_s, num_steps, num_verified, num_new, num_prompt_tokens)

    def _pad(self, drafts: list[list[int]], proposed: Sequence[Draft]) -> None:
        """All rows as many tokens as there may be, or none: what full CUDA graphs are captured for.

        None if one of the requests wants less.
        """
        limit = self.num_draft_tokens
        expected = sum(draft.score for draft in proposed)
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
        tags = RequestTags.read(params.extra_args, new.lora_request and new.lora_request.lora_name)
        counters = self.stages.of(tags.stage)
        counters.num_requests += 1
        counters.num_prompt_tokens += num_prompt_tokens
        most_tokens = self._runner.max_model_len
        if params.max_tokens is not None:
            most_tokens = min(most_tokens, num_prompt_tokens + params.max_tokens)
        live = LiveRequest(new.req_id, tags, counters, num_prompt_tokens, most_tokens, _stops(params))
        self._adapters.add(tags.adapter)
        self._live[new.req_id] = live
        self._scribe.start(live)
        prompt = _NO_TOKENS if new.prompt_token_ids is None else batch.token_ids_cpu[row, :num_prompt_tokens]
        if tags.prediction is None:
            self._enter(new.req_id, tags, self._known(prompt), wait=False)
        else:
            live.starting = self._background.submit(
                self._enter_with_prediction, new.req_id, tags, prompt.copy()
            )

    def _enter(
        self,
        request_id: str,
        tags: RequestTags,
        prompt: Tokens,
        prediction: Tokens | None = None,
        *,
        wait: bool,
    ) -> None:
        self.forest.start(
            request_id,
            tags.trees,
            prompt,
            session=tags.session,
            prediction_ids=prediction,
            draft=tags.draft(self._draft_config),
            learn=False,  # the scribe does
            wait=wait,
        )

    def _enter_with_prediction(self, request_id: str, tags: RequestTags, prompt: Tokens) -> None:
        assert tags.prediction is not None
        try:
            prediction = self.output_tokens(tags.prediction)
        except Exception:  # no tokenizer, for one
            logger.exception("the request %r runs without its prediction", request_id)
            prediction = None
        self._enter(request_id, tags, self._known(prompt), prediction, wait=True)

    def _has_entered(self, live: LiveRequest) -> bool:
        """Whether a request that was started beside the steps takes part by now."""
        assert live.starting is not None
        if not live.starting.done():
            return False
        if error := live.starting.exception():
            logger.error("the request %r runs without drafts: %r", live.name, error)
            self._give_up(live.name)
            return False
        live.starting = None
        return True

    def _give_up(self, request_id: str) -> None:
        """Forget a request that is not in the forest."""
        if live := self._live.pop(request_id, None):
            self._scribe.finish(live)

    def _known(self, tokens: Tokens) -> Tokens:
        """Without what is no token of the model's, such as the places of images: it must never be drafted."""
        is_known = (tokens >= 0) & (tokens < self._vocab_size)
        return tokens if is_known.all() else tokens[is_known]

    def _forget_entered(self, request_id: str, entering: Future[None]) -> None:
        if entering.exception() is None:
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        try:
            self.forest.finish(request_id)
        except Exception:
            logger.exception("the forest could not finish %r", request_id)


def _stops(params: Any) -> frozenset[int]:
    """The token ids that vLLM's scheduler ends a request at."""
    eos = () if params.eos_token_id is None else (params.eos_token_id,)
    return frozenset((*eos, *(params.stop_token_ids or ())))
