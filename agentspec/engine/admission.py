"""Turns a request into sequences to decode: tokens, limits, seeds, grammar, trees.

All slow work that does not need the model happens here, in the thread that submits the request, and not
between two decode steps.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from agentspec.config import DraftConfig
from agentspec.engine.request import Choice, LiveRequest
from agentspec.engine.sampling.grammar import Grammar, GrammarCompiler
from agentspec.engine.sampling.state import SamplerState, check_sampling
from agentspec.engine.sampling.stop import StopStrings
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import ConfigError, ContextLengthError, DuplicateRequestError, RequestError
from agentspec.generation import ForcedOutput, GenerationRequest, SamplingParams, ThinkTags
from agentspec.proposer import Proposer, Tokens

SEED_BITS = 64


class Admission:
    """Checks requests and prepares them for the scheduler. Thread-safe.

    Args:
        vocab_size: width of the model's logits.
        max_model_len: most tokens of prompt and output together.
        draft: the engine's draft settings; a request can only lower them.
        limited_by: the reason why ``max_model_len`` is less than the model's context, for the error of a
            request that is too long; empty = it is not less.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        proposer: Proposer,
        *,
        vocab_size: int,
        max_model_len: int,
        draft: DraftConfig,
        limited_by: str = "",
    ) -> None:
        self._tokenizer = tokenizer
        self._proposer = proposer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._draft = draft
        self._context = f"the context of {max_model_len}"
        if limited_by:
            self._context = f"what is served of the model's context: {limited_by}"
        self._eos_ids = frozenset(tokenizer.eos_ids)

    def admit(self, live: LiveRequest) -> list[Choice]:
        """Return the request's choices, each started in the proposer. On an error none is started.

        Raises:
            RequestError: the request is invalid.
        """
        request = live.request
        check_sampling(request.sampling)
        prompt_ids = self._prompt_ids(request)
        samplers = self._samplers(request, prompt_ids)
        live.num_prompt_tokens = len(prompt_ids)
        live.think_tags = self._think_tags(request, prompt_ids)
        draft = self._draft_config(request)
        choices = [
            self._choice(live, index, prompt_ids, sampler, draft) for index, sampler in enumerate(samplers)
        ]
        self._start(choices)
        return choices

    def withdraw(self, choices: Sequence[Choice]) -> None:
        """Undo :meth:`admit` for choices that were never scheduled."""
        for choice in choices:
            self._proposer.finish(choice.key, learn=False)

    def _choice(
        self, live: LiveRequest, index: int, prompt_ids: Tokens, sampler: SamplerState, draft: DraftConfig
    ) -> Choice:
        request_id, params = live.request.request_id, sampler.params
        return Choice(
            live=live,
            index=index,
            key=request_id if params.n == 1 else f"{request_id}#{index}",
            prompt_ids=prompt_ids,
            sampler=sampler,
            draft=draft,
            max_tokens=self._max_tokens(params, len(prompt_ids)),
            eos_ids=self._eos_ids,
            stop_ids=frozenset(params.stop_token_ids),
            stream=self._tokenizer.detokenizer(),
            stops=StopStrings(params.stop, params.late_stop),
        )

    def _samplers(self, request: GenerationRequest, prompt_ids: Tokens) -> list[SamplerState]:
        """Return one sampler state per choice."""
        num_choices = request.sampling.n
        if request.forced is None:
            self._check_token_ids(request.sampling)
            return [self._sampler(request.sampling, index, prompt_ids) for index in range(num_choices)]
        if len(request.forced) != num_choices:
            raise RequestError(f"{len(request.forced)} forced outputs can't be n={num_choices!r}", param="n")
        return [self._forced(output, request) for output in request.forced]

    def _sampler(self, params: SamplingParams, index: int, prompt_ids: Tokens) -> SamplerState:
        seed = secrets.randbits(SEED_BITS) if params.seed is None else params.seed + index
        grammar = self._grammar(params)
        ends = self._eos_ids if grammar is not None or not params.ignore_eos else frozenset[int]()
        return SamplerState(
            params,
            seed,
            grammar=grammar,
            prompt_ids=prompt_ids,
            bad_words=self._tokenizer.encode_words(params.bad_words),
            end_ids=ends.union(params.stop_token_ids),
        )

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        if params.grammar is not None:
            return self._grammars.compile_lark(params.grammar, self._answer_grammar(params))
        return self._answer_grammar(params)

    def _answer_grammar(self, params: SamplingParams) -> Grammar | None:
        """Return the grammar of an output that is not a tool call."""
        if params.written is not None:
            return self._grammars.compile_written(params.written, params.constraint_param)
        if params.json_schema is None:
            return None
        return self._grammars.compile(params.json_schema, params.constraint_param)

    def _check_token_ids(self, params: SamplingParams) -> None:
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            for token in getattr(params, name) or ():
                if not 0 <= token < self._vocab_size:
                    raise RequestError(
                        f"{name}: {token!r} is no token id between 0 and {self._vocab_size - 1}", param=name
                    )

    def _think_tags(self, request: GenerationRequest, prompt_ids: Tokens) -> ThinkTags:
        """Return the reasoning tags of an output. An output with a grammar or a dictated output has none."""
        params = request.sampling
        if (params.grammar, params.json_schema, params.written, request.forced) != (None,) * 4:
            return "unknown"
        prompt: Any = request.prompt
        is_continued = request.prompt_options.continue_final_message and isinstance(prompt[-1], Mapping)
        continued = prompt[-1].get("content") if is_continued else None
        return self._tokenizer.think_tags(prompt_ids, continued if isinstance(continued, str) else "")

    def _forced(self, forced: ForcedOutput, request: GenerationRequest) -> SamplerState:
        """Return greedy parameters for a dictated output. Only the request's log probabilities stay."""
        asked = request.sampling
        ids = self._forced_ids(forced)
        params = SamplingParams(temperature=0.0, max_tokens=len(ids), logprobs=asked.logprobs, n=asked.n)
        return SamplerState(params, forced_ids=ids)

    def _forced_ids(self, forced: ForcedOutput) -> Tokens:
        output = forced.output
        ids = self._tokenizer.encode_output(output) if isinstance(output, str) else self._as_ids(output)
        if not forced.is_cut:
            if not self._eos_ids:
                raise RequestError("a forced output can't end: the checkpoint names no end token")
            ids = np.append(ids, np.int32(min(self._eos_ids)))
        return self._known(ids, "forced")

    def _prompt_ids(self, request: GenerationRequest) -> Tokens:
        prompt: Any = request.prompt  # its content decides which of the three kinds it is
        is_text = isinstance(prompt, str)
        if is_text or (len(prompt) and isinstance(prompt[0], Mapping)):
            ids = self._tokenizer.encode_prompt(prompt, request.tools, request.prompt_options)
            return self._checked(ids, "prompt" if is_text else "messages")
        return self._checked(self._as_ids(prompt), "prompt")

    def _as_ids(self, prompt: Sequence[Any]) -> Tokens:
        for token in prompt:
            if not isinstance(token, int) or not 0 <= token < self._vocab_size:
                raise RequestError(
                    f"prompt: {token!r} is no token id between 0 and {self._vocab_size - 1}", param="prompt"
                )
        return np.array(prompt, np.int32)

    def _checked(self, ids: Tokens, param: str) -> Tokens:
        if len(self._known(ids, param)) >= self._max_model_len:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens; with at least one of output it exceeds {self._context}",
                param=param,
            )
        return ids

    def _known(self, ids: Tokens, param: str) -> Tokens:
        if not len(ids):
            raise RequestError(f"{param} must not be empty", param=param)
        if (highest := int(ids.max())) >= self._vocab_size:  # a tokenizer may know more than its model
            raise RequestError(
                f"{param}: the model knows tokens up to {self._vocab_size - 1}, not {highest!r}", param=param
            )
        return ids

    def _max_tokens(self, params: SamplingParams, num_prompt_tokens: int) -> int:
        room = self._max_model_len - num_prompt_tokens
        wanted = params.max_tokens
        if wanted is None:
            return room
        if wanted > room:
            raise ContextLengthError(
                f"{num_prompt_tokens} prompt tokens and max_tokens={wanted!r} exceed {self._context}; "
                f"ask for at most {room}",
                param="max_tokens",
            )
        return wanted

    def _draft_config(self, request: GenerationRequest) -> DraftConfig:
        try:
            return request.tags.draft(self._draft)
        except ConfigError as error:
            raise RequestError(f"bad draft setting: {error}") from None

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        return GrammarCompiler(self._tokenizer.raw.to_str(), self._vocab_size, self._eos_ids)

    def _start(self, choices: Sequence[Choice]) -> None:
        """Start all choices with the proposer, or none."""
        prediction = choices[0].live.request.tags.prediction
        prediction_ids = self._tokenizer.encode(prediction) if prediction else None
        started: list[Choice] = []
        try:
            for choice in choices:
                tags = choice.live.request.tags
                self._proposer.start(
                    choice.key,
                    tags.stage,
                    choice.prompt_ids,
                    session=tags.session,
                    prediction_ids=prediction_ids,
                    draft=choice.draft,
                    learn=tags.learn,
                    is_personal=tags.subject != b"",
                    learns_at_end=bool(choice.stops),
                )
                started.append(choice)
        except DuplicateRequestError as error:
            self.withdraw(started)
            raise RequestError(str(error), code="duplicate_request") from None
        except BaseException:
            self.withdraw(started)
            raise
