"""Tokens that the grammars of vLLM's requests leave no choice about, to be drafted.

A JSON schema dictates names of members, constants, and the rest of a value of an ``enum`` once it has begun.
While a step runs, the scheduler asks the grammar of guidance or xgrammar what it dictates behind the draft
that the step verifies. It sends that to the worker with the step's masks, and the worker drafts it for the
next step. With model runner V1 the scheduler knows the drafts when a step begins, and appends to them what
the grammars dictate. A model that splits the same text into other tokens refuses them. They are verified like
any other draft token, so outputs do not change. Other backends are left alone.

xgrammar names a dictated text (``find_jump_forward_string``), but without any limit: under some grammars that
call does not return. So :class:`MaskWalk` walks along its masks. Does not import vLLM.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentspec.config import DraftConfig
from agentspec.tags import Tags
from agentspec.vllm_plugin.settings import PluginSettings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request
    from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

logger = logging.getLogger(__name__)

_MOST_REFUSED = 3  # drafts in succession, after which a model is believed to split the text otherwise
_SHARE = 0.02  # of the engine's time, to ask grammars
_BURST_S = 0.01  # most of it together
_MOST_S = 0.005  # of a question: a grammar that takes longer is not asked again
_MOST_WALK_S = 0.002
_WORD_BITS = 32
_MOST_WORDS = 16  # of a mask with allowed tokens; more leave a choice


@dataclass(slots=True)
class _Known:
    """The last draft of a request that its grammar extended.

    Attributes:
        most: draft tokens that the request wants in a step.
        start: number of output tokens before ``tokens``.
        tokens: a draft and all that the grammar dictates behind it.
        num_drafted: tokens of the draft.
        num_refused: drafts in succession of which the model refused a dictated token.
        is_slow: the grammar is not asked again.
    """

    most: int
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
        elif is_reached and len(new) > len(own) + 1:  # the first one is sampled, not verified
            self.num_refused = 0
        if not is_true or len(new) < len(own):
            self.tokens = []
        return self.tokens[len(new) :]


class GrammarDrafts:
    """What the grammars of the requests that a scheduler has under way dictate.

    Args:
        config: how much a request without tags drafts.
        follows_reasoning: a grammar begins where the model's reasoning ends.
        clock: seconds of this thread, and seconds that passed.
    """

    def __init__(
        self,
        config: DraftConfig,
        *,
        follows_reasoning: bool = False,
        clock: Callable[[], float] = time.thread_time,
        wall_clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = config
        self._follows_reasoning = follows_reasoning
        self._requests: dict[str, _Known] = {}
        self._walk: MaskWalk | None = None
        self._clock, self._wall_clock = clock, wall_clock
        self._left_s, self._since_s = _BURST_S, wall_clock()
        self._num_steps = 0

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> GrammarDrafts:
        """Return those of a server with speculation."""
        structured = vllm_config.structured_outputs_config
        settings = PluginSettings.read(vllm_config.additional_config)
        return cls(
            settings.draft_config(vllm_config.speculative_config.num_speculative_tokens),
            follows_reasoning=bool(structured.reasoning_parser)
            and not getattr(structured, "enable_in_reasoning", False),
        )

    def dictated(
        self, names: Iterable[str], requests: Mapping[str, Request], scheduled: Mapping[str, Sequence[int]]
    ) -> dict[str, list[int]]:
        """Return the draft tokens that a step verifies and those that grammars dictate behind, by request.

        A failure costs these drafts, and no response. Grammars are asked for a fiftieth of the time, all
        requests in turn.

        Args:
            names: requests with a grammar.
            requests: vLLM's requests by their id.
            scheduled: the draft tokens that the step verifies; -1 = not known, or refused by the grammar.
        """
        found: dict[str, list[int]] = {}
        for request in self._in_turn([requests[name] for name in names if name in requests]):
            name = request.request_id
            draft = known(scheduled.get(name, ()))
            tokens = self._continued(request, draft) or []
            if len(tokens) - len(draft) > 1:  # the step samples the first one that is dictated
                found[name] = tokens
        return found

    def extend(self, running: list[Request], most: int) -> None:
        """Append what grammars dictate to the drafts of the requests that decode, in place.

        For a scheduler that knows its drafts. A failure costs these tokens, and no response. A batch in which
        a request has penalties or bad words gets none: vLLM copies outputs once per draft token then.

        Args:
            running: the requests of the next step.
            most: draft tokens of the step, all requests together.
        """
        if not any(one.use_structured_output for one in running) or any(map(_is_penalized, running)):
            return
        left = most - sum(len(one.spec_token_ids) for one in running)
        for request in self._in_turn([one for one in running if one.use_structured_output]):
            draft = request.spec_token_ids
            if left <= 0 or not _is_decoding(request):
                continue
            tokens = self._continued(request, draft, left)
            if tokens is not None:
                request.spec_token_ids = tokens
                left -= len(tokens) - len(draft)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Forget requests that ended. Unknown ones are ignored."""
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def _in_turn(self, requests: list[Request]) -> list[Request]:
        """Begin a step: return its requests, beginning with another one than in the last step."""
        now_s = self._wall_clock()
        self._left_s = min(_BURST_S, self._left_s + _SHARE * (now_s - self._since_s))
        self._since_s = now_s
        first = self._num_steps % max(1, len(requests))
        self._num_steps += 1
        return requests[first:] + requests[:first]

    def _of(self, request: Request) -> _Known:
        known = self._requests.get(request.request_id)
        if known is None:
            most = Tags.from_xargs(request.sampling_params.extra_args).draft(self._config).max_tokens
            known = self._requests[request.request_id] = _Known(most)
        return known

    def _continued(self, request: Request, draft: list[int], left: int | None = None) -> list[int] | None:
        """Return a draft with what the request's grammar dictates behind it.

        vLLM stops if its grammar refuses a draft token, so all are checked. None if the grammar is not asked,
        or fails.

        Args:
            left: most tokens to append to the draft that a step is to verify; None = the step has begun.
        """
        try:
            most = self._of(request).most
            more = int(request.max_tokens) - len(request.output_token_ids) - len(draft)
            room = min(most + 1, more)  # a step that has begun samples the first one
            if left is not None:
                room = min(most - len(draft), more - 1, left)
            if most <= 0 or more <= 1 or room <= 0:
                return None
            grammar = request.structured_output_request.grammar
            tokens = self._found(grammar, request, draft, room)
            return None if tokens is None else list(grammar.validate_tokens(tokens[: len(draft) + room]))
        except Exception:
            logger.exception("the grammar of %r dictates no drafts", request.request_id)
            self._requests[request.request_id] = _Known(most=0)
            return None

    def _found(self, grammar: Any, request: Request, draft: list[int], room: int) -> list[int] | None:
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

    def _is_reasoning(self, request: Request) -> bool:
        return self._follows_reasoning and not request.structured_output_request.reasoning_ended


def known(slots: Sequence[int]) -> list[int]:
    """Return the draft in a request's slots, up to the first token that is not known."""
    return list(takewhile(lambda token: token >= 0, slots))


def _is_known(grammar: Any) -> bool:
    return hasattr(grammar, "ll_matcher") or (hasattr(grammar, "matcher") and hasattr(grammar, "ctx"))


def _is_decoding(request: Request) -> bool:
    is_chunk = getattr(request, "is_prefill_chunk", False)
    return request.num_tokens - request.num_computed_tokens == 1 and not is_chunk


def _is_penalized(request: Request) -> bool:
    params = request.sampling_params
    return params is not None and bool(
        params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1.0
        or params.bad_words_token_ids
    )


class MaskWalk:
    """Walks along the masks of a server's grammars. They share a vocabulary, which a thread reads first.

    Where a text is dictated, the tokens that a mask allows are beginnings of one another. The longest is the
    one that a model is likely to write. A mask takes microseconds in most grammars, and a walk ends after
    some tokens and some time.

    Args:
        masked: any of them, an ``XgrammarGrammar`` of vLLM's.
        clock: seconds.
    """

    def __init__(self, masked: XgrammarGrammar, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._texts: Sequence[bytes] = ()
        self._reads = threading.Thread(target=self._read, args=(masked.ctx.tokenizer_info,), daemon=True)
        self._reads.start()
        self._words = np.zeros((1, -(-masked.vocab_size // _WORD_BITS)), np.int32)
        self._mask = torch.from_numpy(self._words)  # the same memory

    def _read(self, vocabulary: Any) -> None:
        self._texts = vocabulary.decoded_vocab  # 0.3 s for 131,000 tokens

    def wait(self) -> MaskWalk:
        """Wait until the vocabulary is read. Until then nothing is dictated."""
        self._reads.join()
        return self

    def tokens(self, masked: XgrammarGrammar, request_id: str, most: int) -> list[int]:
        """Return at most ``most`` tokens that the grammar dictates from its state on. Leaves no trace.

        After 2 ms it takes no further step.
        """
        if not self._texts:
            return []
        found: list[int] = []
        end_s = self._clock() + _MOST_WALK_S
        try:
            while len(found) < most and not masked.is_terminated() and self._clock() < end_s:
                token = self._only(masked)
                if token is None or not masked.accept_tokens(request_id, [token]):
                    break
                found.append(token)
        finally:
            if found:
                masked.rollback(len(found))
        return found

    def _only(self, masked: XgrammarGrammar) -> int | None:
        """Return the longest allowed token if the others are beginnings of it."""
        masked.fill_bitmask(self._mask, 0)
        if not 0 < np.count_nonzero(self._words) <= _MOST_WORDS:
            return None
        words = np.flatnonzero(self._words)
        bits = np.unpackbits(self._words[0, words, None].view(np.uint8), axis=1, bitorder="little")
        rows, columns = np.nonzero(bits)
        tokens = words[rows] * _WORD_BITS + columns
        allowed = tokens[tokens < len(self._texts)].tolist()  # bits beyond the vocabulary are set
        if not allowed:
            return None
        # of tokens with the same text the last one: single bytes, which no model writes, are often the first
        longest: int = max(allowed, key=lambda token: (len(self._texts[token]), token))
        text = self._texts[longest]
        return longest if all(text.startswith(self._texts[token]) for token in allowed) else None
