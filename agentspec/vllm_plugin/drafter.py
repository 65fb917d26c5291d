"""The forest of one vLLM worker, and the requests that it drafts for.

:class:`StepPlanner <agentspec.vllm_plugin.planner.StepPlanner>` plans the steps. Does not import vLLM.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentspec.corpus.settings import reaches
from agentspec.errors import UnknownRequestError
from agentspec.forest import Forest, Tokens, known_tokens
from agentspec.stages import StageKey
from agentspec.stats import StageStats, StageTable
from agentspec.steps import StepMeter
from agentspec.tags import Tags
from agentspec.vllm_plugin.delivery import StopStrings, is_answered_at_end
from agentspec.vllm_plugin.endings import Endings
from agentspec.vllm_plugin.live import LiveRequest
from agentspec.vllm_plugin.lora import adapted
from agentspec.vllm_plugin.settings import PluginSettings
from agentspec.vllm_plugin.texts import ServedTokenizer
from agentspec.vllm_plugin.traces import Traces

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.output import NewRequestData

    from agentspec.corpus.corpus import Corpus

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Timing:
    """Sums of durations over all steps so far."""

    num_steps: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a step of this duration."""
        self.num_steps += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def microseconds(self) -> dict[str, float]:
        """Return the number of steps, and their mean and longest time."""
        mean_s = self.total_s / self.num_steps if self.num_steps else 0.0
        return {"steps": self.num_steps, "mean": mean_s * 1e6, "max": self.longest_s * 1e6}


class ForestDrafter:
    """The live requests of one engine process. Only the worker's thread may use it; :meth:`settle` any
    thread.

    A failure costs drafts, never a response: it is logged, and the request continues without drafts.

    Args:
        vllm_config: vLLM's configuration, with the plug-in's settings (``settings``).

    Attributes:
        rows: the live requests as rows of the batch.
        corpus: shares the outputs with other engines, after :meth:`open_corpus`; None = they are not shared.
        max_model_len: most tokens of prompt and output together.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.settings = PluginSettings.read(vllm_config.additional_config)
        self.forest = Forest(self.settings.forest_config())
        self.rows = self.forest.rows()
        self.corpus: Corpus | None = None
        self.stages = StageTable(StageStats)
        self.timing = Timing()
        self.meter = StepMeter(self.settings.price)
        self.texts = ServedTokenizer(vllm_config.model_config)
        self.traces = Traces()
        self.num_draft_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self.max_model_len: int = vllm_config.model_config.max_model_len
        self.live: dict[str, LiveRequest] = {}
        self._draft_config = self.settings.draft_config(self.num_draft_tokens)
        self._vocab_size: int = vllm_config.model_config.get_vocab_size()
        self._entering: list[LiveRequest] = []  # requests with a prediction that is being tokenized
        self._over: list[LiveRequest] = []
        self._num_started = 0
        self._counting = threading.Lock()
        self._adapters: set[str | None] = {None}
        self._background = ThreadPoolExecutor(1, "agentspec-prompts")
        self._endings = Endings(self.forest, self.texts, self.traces, self._counting)

    @property
    def price(self) -> float:
        """The least probability of acceptance with which a token is drafted now."""
        return self.meter.price

    @property
    def adapters(self) -> Collection[str | None]:
        """LoRA adapters used so far; None is the model itself."""
        return self._adapters

    def output_tokens(self, text: str) -> Tokens:
        """Return a text as output tokens of the model. Raises ConfigError if this server has no tokenizer."""
        return known_tokens(self.texts.encode(text), self._vocab_size)

    def settle(self) -> None:
        """Wait until all output so far is learned and counted. The thread of the steps must not call this."""
        self._endings.settle()
        self.count()

    def count(self) -> None:
        """Count the part of the output that is known to be delivered."""
        self.forest.settle()
        for live in list(self.live.values()):
            with self._counting:
                # not a new request with the same name
                if self.live.get(live.name) is live and not live.is_counted_at_end:
                    live.count(self.rows.take_counts(live.name))

    def open_corpus(self) -> None:
        """Begin to share outputs, if there is a corpus.

        Only the process that drafts for its engine calls this: every data-parallel rank, and one of the
        tensor-parallel ranks.
        tensor-parallel ranks one.

        Raises:
            ConfigError, CorpusError: the corpus can't be used.
        """
        if self.settings.corpus is None:
            return
        from agentspec.corpus.corpus import open_corpus

        stages = reaches(self.settings.corpus_stages)
        self.corpus = open_corpus(
            self.settings.corpus,
            self.texts.vocabulary,
            self._vocab_size,
            self.forest,
            # the forest has another path for stages without a workflow
            stages=stages | {adapted(StageKey("any", path), None).path: stages[path] for path in stages},
        )
        self.corpus.start()
        self._endings.corpus = self.corpus

    def close(self) -> None:
        """Learn and share all output so far, and end the threads."""
        self._background.shutdown(wait=True, cancel_futures=True)
        self.settle()
        self._endings.close()
        if self.corpus is not None:
            self.corpus.close()

    # ---- requests ----

    def start(self, new: NewRequestData, num_prompt_tokens: int, prompt: list[int]) -> None:
        """Start a request of vLLM (``NewRequestData``). A prompt takes microseconds here.

        Args:
            num_prompt_tokens: length of its prompt, which may consist of embeddings.
            prompt: copied here; empty for embeddings. It may have tokens outside the vocabulary, such as
                image placeholders. They must never be drafted.
        """
        if new.sampling_params is None:  # a pooling request
            return
        if new.req_id in self.live:  # the next input of a streaming session reuses the id
            self.end([new.req_id])
            self.finish_ended()
        try:
            self._start(new, num_prompt_tokens, prompt)
        except Exception:
            logger.exception("the request %r runs without drafts", new.req_id)
            self._give_up(new.req_id)

    def enter_ready(self) -> None:
        """Draft for the requests whose predictions have been tokenized."""
        if self._entering:
            self._entering = [live for live in self._entering if not self._has_entered(live)]

    def end(self, request_ids: Iterable[str]) -> None:
        """Mark requests as finished, however they ended. Unknown ones are ignored."""
        for request_id in request_ids:
            live = self.live.pop(request_id, None)
            if live is not None:
                live.trace = self.traces.end(request_id)
                self._over.append(live)

    def finish_ended(self) -> None:
        """Finish the requests that have ended. The shared trees keep the delivered outputs."""
        while self._over:
            live = self._over.pop()
            try:
                self._endings.finish(live, self.rows.remove(live.name))
            except Exception:
                logger.exception("the request %r was not finished", live.name)

    def lose_step(self, names: Iterable[str]) -> None:
        """Give up requests that miss a step: they end without drafts, learning and traces."""
        for name in names:
            self.rows.lose(name)
            self.traces.drop(name)

    def _start(self, new: NewRequestData, num_prompt_tokens: int, prompt: list[int]) -> None:
        params = new.sampling_params
        tags = Tags.from_xargs(params.extra_args)
        adapter = new.lora_request and new.lora_request.lora_name
        counters = self.stages.of(tags.stage)
        counters.num_requests += 1
        counters.num_prompt_tokens += num_prompt_tokens
        most_tokens = self.max_model_len
        if params.max_tokens is not None:
            most_tokens = min(most_tokens, num_prompt_tokens + params.max_tokens)
        stops = [stop for stop in _stops(params) if 0 <= stop < self._vocab_size]
        live = LiveRequest(
            new.req_id,
            f"{new.req_id} {self._num_started}",
            tags,
            adapted(tags.stage, adapter),
            counters,
            num_prompt_tokens,
            num_prompt_tokens,
            frozenset(stops),
            StopStrings.of(params),
            is_answered_at_end(params),
            params=params,
            prompt_token_ids=new.prompt_token_ids or (),
        )
        self._num_started += 1
        self._endings.expect(live)
        if tags.trace is not None:
            self.traces.begin(live.name, tags.stage.tenant, tags.trace, is_held=live.stops is not None)
        self._adapters.add(adapter)
        self.live[new.req_id] = live
        known = known_tokens(prompt, self._vocab_size)
        number: int | None = None
        if tags.prediction is None:
            number = self._enter(live, known, wait=False)
        else:
            live.starting = self._background.submit(self._enter_with_prediction, live, known.copy())
            self._entering.append(live)
        is_shared = self.corpus is not None and tags.learn
        self.rows.add(
            live.name,
            num_prompt_tokens,
            most_tokens,
            stops,
            keeps_output=is_shared or live.stops is not None,
            request=number,
            is_held=live.stops is not None,
        )

    def _enter(
        self, live: LiveRequest, prompt: Tokens, prediction: Tokens | None = None, *, wait: bool
    ) -> int:
        tags = live.tags
        self.forest.start(
            live.key,
            live.trees,
            prompt,
            session=tags.session,
            prediction_ids=prediction,
            draft=tags.draft(self._draft_config),
            learn=tags.learn,
            wait=wait,
            is_personal=tags.subject != b"",
            learns_at_end=live.stops is not None,
        )
        return self.forest.number(live.key)

    def _enter_with_prediction(self, live: LiveRequest, prompt: Tokens) -> int:
        assert live.tags.prediction is not None
        try:
            prediction = self.output_tokens(live.tags.prediction)
        except Exception:  # e.g. no tokenizer
            logger.exception("the request %r runs without its prediction", live.name)
            prediction = None
        return self._enter(live, prompt, prediction, wait=True)

    def _has_entered(self, live: LiveRequest) -> bool:
        """Enter a request once its prompt and prediction are indexed. Return False while that is pending."""
        assert live.starting is not None
        if self.live.get(live.name) is not live:
            return True
        if not live.starting.done():
            return False
        try:
            self.rows.enter(live.name, live.starting.result())
            live.starting = None
        except Exception:
            logger.exception("the request %r runs without drafts", live.name)
            self._give_up(live.name)
        return True

    def _give_up(self, request_id: str) -> None:
        """Remove a request whose start failed."""
        live = self.live.pop(request_id, None)
        self.traces.drop(request_id)
        self.rows.remove(request_id)
        if live is None:
            return
        with contextlib.suppress(UnknownRequestError):
            self.forest.finish(live.key, learn=False)
        self._endings.forgo(live)


def _stops(params: SamplingParams) -> frozenset[int]:
    """Return the token ids at which vLLM's scheduler ends a request."""
    eos = () if params.eos_token_id is None else (params.eos_token_id,)
    return frozenset((*eos, *(params.stop_token_ids or ())))
