"""Tokens that the grammars of vLLM's requests leave no choice about, as the end of their drafts.

A JSON schema dictates names of members, constants, and the rest of a value of an ``enum`` once it has begun.
vLLM's scheduler cuts a draft where its grammar forbids it. Here a grammar of guidance or xgrammar continues
the draft from there, or begins one. A model that splits the same text into other tokens refuses them. They
are verified like any other draft token, so outputs do not change. Other backends are left alone.

With the model runner V2 the worker verifies its own drafts. So the scheduler sends what a grammar dictates
behind the draft of the present step, with the masks of that step. The worker drafts it for the next one.
Does not import vLLM.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from agentspec.config import DraftConfig
from agentspec.tags import Tags
from agentspec.vllm_plugin.draft_cap import DraftCap
from agentspec.vllm_plugin.mask_walk import MaskWalk
from agentspec.vllm_plugin.model_runner import V1_METHOD
from agentspec.vllm_plugin.settings import PluginSettings

logger = logging.getLogger(__name__)

DICTATED = "agentspec_dictated"  # attribute of vLLM's GrammarOutput: for the worker's planner

_MOST_REFUSED = 3  # drafts in succession, after which a model is believed to split the text otherwise
_SHARE = 0.02  # of the engine's time, to ask grammars
_BURST_S = 0.01  # most of it together
_MOST_S = 0.005  # of a question: a grammar that takes longer is not asked again


@dataclass(slots=True)
class _Known:
    """The last draft of a request that its grammar extended.

    Attributes:
        most: draft tokens that the request wants in a step.
        num_sampled: dictated tokens that the next step samples, and so does not verify.
        start: number of output tokens before ``tokens``.
        tokens: a draft and all that the grammar dictates behind it.
        num_drafted: tokens of the draft.
        num_refused: drafts in succession of which the model refused a dictated token.
        is_slow: the grammar is not asked again.
    """

    most: int
    num_sampled: int = 0
    start: int = 0
    tokens: list[int] = field(default_factory=list)
    num_drafted: int = 0
    num_refused: int = 0
    is_slow: bool = False

    def rest(self, output: Sequence[int]) -> list[int]:
        """Return the dictated tokens that are left behind an output, and note if the model refused them."""
        new = list(output[self.start :])
        is_true = self.tokens[: len(new)] == new[: len(self.tokens)]
        own = self.tokens[: self.num_drafted]
        is_reached = len(self.tokens) > len(own) < len(new) and new[: len(own)] == own
        if is_reached and not is_true:
            self.num_refused += 1
        elif is_reached and len(new) > len(own) + self.num_sampled:
            self.num_refused = 0
        if not is_true or len(new) < len(own):
            self.tokens = []
        return self.tokens[len(new) :]


class GrammarDrafts:
    """Extends the drafts of the requests that a scheduler has under way.

    Args:
        config: how much a request without tags drafts.
        most_tokens: of a step's drafts together, where the scheduler names them.
        names_drafts: the worker verifies the drafts that the scheduler names, as with the model runner V1.
        follows_reasoning: a grammar begins where the model's reasoning ends.
        clock: seconds of this thread, and seconds that passed.
    """

    def __init__(
        self,
        config: DraftConfig,
        most_tokens: int,
        *,
        names_drafts: bool = True,
        follows_reasoning: bool = False,
        clock: Callable[[], float] = time.thread_time,
        wall_clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = config
        self._most_tokens = most_tokens
        self.names_drafts = names_drafts
        self._follows_reasoning = follows_reasoning
        self._requests: dict[str, _Known] = {}
        self._walk: MaskWalk | None = None
        self._clock, self._wall_clock = clock, wall_clock
        self._left_s, self._since_s = _BURST_S, wall_clock()
        self._num_steps = 0

    @classmethod
    def of(cls, vllm_config: Any) -> GrammarDrafts | None:
        """Return those of a server; None without speculation, or with padded drafts and model runner V1."""
        speculation = vllm_config.speculative_config
        settings = PluginSettings.read(vllm_config.additional_config)
        if speculation is None:
            return None
        is_v1 = speculation.method == V1_METHOD
        if is_v1 and settings.batch_shape == "uniform":
            return None
        scheduling, structured = vllm_config.scheduler_config, vllm_config.structured_outputs_config
        cap = DraftCap.of_v1(
            scheduling.max_num_seqs,
            scheduling.max_num_batched_tokens,
            vllm_config.model_config.get_vocab_size(),
        )
        return cls(
            settings.draft_config(speculation.num_speculative_tokens),
            cap.most_tokens,
            names_drafts=is_v1,
            follows_reasoning=bool(structured.reasoning_parser)
            and not getattr(structured, "enable_in_reasoning", False),
        )

    def extend(self, requests: Iterable[Any]) -> None:
        """Extend the drafts of requests (vLLM's ``Request``) that decode, in place.

        A failure costs these drafts, and no response. Requests with penalties get none: vLLM copies their
        outputs once per draft token. Grammars are asked for a fiftieth of the time, all requests in turn.
        """
        running = list(requests)
        if not any(request.use_structured_output for request in running) or any(map(_is_penalized, running)):
            return
        left = self._most_tokens - sum(len(request.spec_token_ids) for request in running)
        for request in self._in_turn(running):
            if left <= 0 or not request.use_structured_output or not _is_decoding(request):
                continue
            draft = request.spec_token_ids
            tokens = self._continued(request, draft, left)
            if tokens is not None:
                request.spec_token_ids = tokens
                left -= len(tokens) - len(draft)

    def attach(
        self, masks: Any, requests: Mapping[str, Any], scheduled: Mapping[str, Sequence[int]]
    ) -> dict[str, int]:
        """Attach to the masks of a step (vLLM's ``GrammarOutput``) what the grammars dictate.

        For each request, these are the draft tokens that the step verifies, then those that are dictated. A
        failure costs these drafts, and no response.

        Args:
            requests: vLLM's requests by their id.
            scheduled: the draft tokens that the step verifies; -1 = not known, or refused by the grammar.

        Returns:
            Of the requests for which there is something to draft then: how many tokens, if the step accepts
            its draft.
        """
        found: dict[str, list[int]] = {}
        sizes: dict[str, int] = {}
        names = masks.structured_output_request_ids
        for request in self._in_turn([requests[name] for name in names if name in requests]):
            name = request.request_id
            draft = list(takewhile(lambda token: token >= 0, scheduled.get(name, ())))
            tokens = self._continued(request, draft) or []
            size = len(tokens) - len(draft) - 1  # the step samples the first one that is dictated
            if size > 0:
                found[name], sizes[name] = tokens, size
        setattr(masks, DICTATED, found)
        return sizes

    def _in_turn(self, requests: list[Any]) -> list[Any]:
        """Begin a step: return its requests, beginning with another one than in the last step."""
        now_s = self._wall_clock()
        self._left_s = min(_BURST_S, self._left_s + _SHARE * (now_s - self._since_s))
        self._since_s = now_s
        first = self._num_steps % max(1, len(requests))
        self._num_steps += 1
        return requests[first:] + requests[:first]

    def forget(self, request_ids: Iterable[str]) -> None:
        """Forget requests that ended. Unknown ones are ignored."""
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def _of(self, request: Any) -> _Known:
        known = self._requests.get(request.request_id)
        if known is None:
            most = Tags.from_xargs(request.sampling_params.extra_args).draft(self._config).max_tokens
            num_sampled = 0 if self.names_drafts else 1
            known = self._requests[request.request_id] = _Known(most, num_sampled)
        return known

    def _continued(self, request: Any, draft: list[int], left: int = 0) -> list[int] | None:
        """Return a draft with what the request's grammar dictates behind it.

        vLLM stops if its grammar refuses a draft token, so all are checked. None if the grammar is not asked,
        or fails.

        Args:
            left: most tokens more, where the scheduler names the drafts.
        """
        try:
            room = self._room(request, draft, left)
            if room <= 0 or any(token < 0 for token in draft):
                return None
            grammar = request.structured_output_request.grammar
            tokens = self._found(grammar, request, draft, room)
            return None if tokens is None else list(grammar.validate_tokens(tokens[: len(draft) + room]))
        except Exception:
            logger.exception("the grammar of %r dictates no drafts", request.request_id)
            self._requests[request.request_id] = _Known(most=0)
            return None

    def _room(self, request: Any, draft: list[int], left: int) -> int:
        """Return how many tokens behind a draft are of use."""
        most = self._of(request).most
        more = int(request.max_tokens) - len(request.output_token_ids) - len(draft)
        if self.names_drafts:
            return min(left, most - len(draft), more - 1)
        return min(most + 1, more) if most > 0 and more > 1 else 0  # the step samples the first one

    def _found(self, grammar: Any, request: Any, draft: list[int], room: int) -> list[int] | None:
        if not _is_known(grammar) or self._is_reasoning(request):
            return None
        known, output = self._of(request), request.output_token_ids
        if known.num_refused >= _MOST_REFUSED:
            return None
        rest = known.rest(output)
        if known.num_refused >= _MOST_REFUSED:
            return None
        if len(rest) > len(draft) and rest[: len(draft)] == draft:
            return rest
        is_dictated = rest == draft  # all of the draft, and what follows it is not known
        if known.is_slow or self._left_s <= 0:
            return None
        if not hasattr(grammar, "ll_matcher") and self._walk is None:
            self._walk = MaskWalk(grammar, self._clock)
        begin_s = self._clock()
        rest = draft + self._behind(grammar, request.request_id, draft, room)
        took_s = self._clock() - begin_s
        self._left_s = max(-_BURST_S, self._left_s - took_s)
        known.is_slow = took_s > _MOST_S
        if known.is_slow and not hasattr(grammar, "ll_matcher"):
            rest = draft  # a mask for each further draft token would take as long
        known.start, known.tokens = len(output), rest
        known.num_drafted = 0 if is_dictated else len(draft)
        return rest

    def _behind(self, grammar: Any, request_id: str, draft: list[int], most: int) -> list[int]:
        """Return the tokens that a grammar dictates behind a draft that it allows. Leaves no trace."""
        if grammar.is_terminated() or grammar.validate_tokens(draft) != draft:
            return []
        if draft:
            grammar.accept_tokens(request_id, draft)
        try:
            return [] if grammar.is_terminated() else self._dictated(grammar, request_id, most)
        finally:
            if draft:
                grammar.rollback(len(draft))

    def _dictated(self, grammar: Any, request_id: str, most: int) -> list[int]:
        if self._walk is None or hasattr(grammar, "ll_matcher"):
            return list(grammar.ll_matcher.compute_ff_tokens())
        return self._walk.tokens(grammar, request_id, most)

    def _is_reasoning(self, request: Any) -> bool:
        return self._follows_reasoning and not request.structured_output_request.reasoning_ended


def _is_known(grammar: Any) -> bool:
    return hasattr(grammar, "ll_matcher") or (hasattr(grammar, "matcher") and hasattr(grammar, "ctx"))


def _is_decoding(request: Any) -> bool:
    is_chunk = getattr(request, "is_prefill_chunk", False)
    return request.num_tokens - request.num_computed_tokens == 1 and not is_chunk


def _is_penalized(request: Any) -> bool:
    params = request.sampling_params
    return params is not None and bool(
        params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1.0
        or params.bad_words_token_ids
    )
