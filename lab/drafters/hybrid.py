"""Suffix trees and a model that draft together: SuffixDecoding's hybrid (arXiv 2411.04975, section 4)."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentspec.config import DraftConfig
from agentspec.draft import Draft
from agentspec.engine.passed import PassedRow
from agentspec.errors import ConfigError
from agentspec.proposer import TextProposer, Tokens
from agentspec.stages import StageKey
from lab.drafters.draft_union import DraftUnion
from lab.drafters.growing_union import GrowingUnion
from lab.drafters.joint_chance import JointChance
from lab.drafters.live_requests import LiveRequests
from lab.drafters.model_drafter import ModelDrafter
from lab.drafters.model_use import ModelUse, Situation

logger = logging.getLogger(__name__)

Updates = Sequence[tuple[str, Tokens]]


@dataclass(slots=True, eq=False)
class _Request:
    """A live request, and its last drafts until their outcome is known.

    Attributes:
        num_prompt: tokens of its prompt.
        has_model: the model knows the request.
        is_read: the model has seen its whole prompt.
        is_decoding: it has asked for a draft before.
        num_read: tokens of its prompt that the model has read.
        situation: of its last step.
        num_met: its steps so far, by what the trees expected.
        union: the last drafts of both; None = there are only the trees'.
        own_nodes: its nodes that the trees draft without the model.
        is_asked: the model was to draft.
        is_verified: the served model verifies the draft, or it is empty.
        num_drafted: tokens of the draft.
        cost: in accepted tokens, beyond that of the trees' own draft.
    """

    stage: StageKey
    draft: DraftConfig
    num_prompt: int
    has_model: bool
    is_read: bool = False
    is_decoding: bool = False
    num_read: int = 0
    situation: Situation = (None, 0)
    num_met: Counter[int] = field(default_factory=Counter)
    union: DraftUnion | None = None
    own_nodes: list[int] = field(default_factory=list)
    is_asked: bool = False
    is_verified: bool = True
    num_drafted: int = 0
    cost: float = 0.0


class HybridDrafter:
    """Implements :class:`agentspec.proposer.Proposer` and :class:`agentspec.engine.passed.PassWatcher`.

    The trees draft for every request. The model drafts too where that has been worth its time. Then each
    continues what the other drafts, and the draft has the likeliest nodes of both. What the estimates of both
    are worth is learned from accepted tokens. If the model fails, its requests continue with the trees only.

    Args:
        trees: keep and draft earlier outputs.
        model: drafts from what the served model computes.
        threshold: None, or the paper's constant. The trees' draft is taken if its score, the expected number
            of accepted tokens, is above it, and otherwise the model's. Nothing is merged then.
        clock: seconds from any beginning.

    Raises:
        ConfigError: the threshold is negative.
    """

    def __init__(
        self,
        trees: TextProposer,
        model: ModelDrafter,
        *,
        threshold: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if threshold is not None and not threshold >= 0:
            raise ConfigError(f"the hybrid's threshold is at least 0, not {threshold!r}")
        self.hidden_layers = model.hidden_layers
        self._trees = trees
        self._model = model
        self._threshold = threshold
        self._clock = clock
        self._use = ModelUse()
        self._chance = JointChance()
        self._requests = LiveRequests[_Request]()
        self._stepped_s = 0.0
        self._num_observed = 0  # tokens since the last step
        self._has_prompts = False  # a pass since the last step has read prompts

    # ---- requests ----

    def start(
        self,
        request_id: str,
        stage: StageKey,
        prompt_ids: Tokens,
        *,
        session: str | None = None,
        prediction_ids: Tokens | None = None,
        draft: DraftConfig | None = None,
        learn: bool = True,
        is_personal: bool = False,
        learns_at_end: bool = False,
    ) -> None:
        """Admit a request. Raises as the trees do, and admits nothing then."""
        draft = draft or DraftConfig()
        self._trees.start(
            request_id,
            stage,
            prompt_ids,
            session=session,
            prediction_ids=prediction_ids,
            draft=draft,
            learn=learn,
            is_personal=is_personal,
            learns_at_end=learns_at_end,
        )
        try:
            is_wanted = self._threshold is not None or self._use.wants(stage, len(prompt_ids))
            has_model = is_wanted and not draft.is_off
            if has_model:
                self._model.start(request_id, stage, prompt_ids, draft=draft)
            self._requests.add(request_id, _Request(stage, draft, len(prompt_ids), has_model))
        except BaseException:
            self.finish(request_id, learn=False)
            raise

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        """Forget a request. Its output, or ``output``, stays in the shared trees if ``learn``."""
        request = self._requests.get(request_id)
        if request is not None and not request.draft.is_off:
            read = request.num_read / max(1, request.num_prompt) if request.has_model else None
            self._use.learn_request(request.stage, request.num_met, read)
        self._requests.remove(request_id)
        self._model.finish(request_id)
        self._trees.finish(request_id, learn, output)

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        """Take accepted tokens without drafting."""
        self._trees.observe(request_id, token_ids)
        self._num_observed += len(token_ids)
        request = self._requests[request_id]
        if request.has_model:
            self._model.observe(request_id, token_ids)
        self._learn_outcome(request, token_ids)

    def watch(self, rows: Sequence[PassedRow]) -> None:
        """Show the model the results of a pass."""
        found = [(row, request) for row in rows if (request := self._requests.get(row.key))]
        self._has_prompts |= any(row.start < request.num_prompt for row, request in found)
        for row, request in found:
            request.is_read = row.start + len(row.kept) >= request.num_prompt
            request.is_verified = len(row.token_ids) > 1 or request.num_drafted == 0
        known = [(row, request) for row, request in found if request.has_model]
        begin_s = self._clock()
        try:
            self._model.watch([row for row, _ in known])
        except Exception:
            self._give_up([row.key for row, _ in known])
        read = [(request, len(row.kept)) for row, request in known if row.start < request.num_prompt]
        self._use.time_reading(self._clock() - begin_s, sum(num for _, num in read))
        for request, num in read:
            request.num_read += num

    def draft_after(self, assumed: Updates, max_tokens: int = 32, min_prob: float = 0.0) -> list[Draft]:
        """Draft behind assumed tokens, from the trees only. Nothing changes."""
        return self._trees.draft_after(assumed, max_tokens, min_prob)

    def step(self, updates: Updates, max_tokens: int = 32, min_prob: float = 0.0) -> list[Draft]:
        """Take accepted tokens and draft. The model makes its drafts for all chosen requests together."""
        drafts = self._trees.step(updates, max_tokens, min_prob)
        requests = [self._requests[name] for name, _ in updates]
        self._learn(updates, requests)
        if self._threshold is not None:
            chosen = [
                request.is_read and draft.score <= self._threshold
                for request, draft in zip(requests, drafts, strict=True)
            ]
            found = self._model_drafts(self._asked(updates, chosen), max_tokens, min_prob)
            return [found.get(name) or own for own, (name, _) in zip(drafts, updates, strict=True)]
        self._begin_unions(requests, drafts)
        chosen = self._choose(requests, drafts)
        self._grow_unions(self._asked(updates, chosen), max_tokens, min_prob)
        return [
            own if request.union is None else _likeliest(request, len(own), max_tokens, min_prob)
            for request, own in zip(requests, drafts, strict=True)
        ]

    # ---- the model ----

    def _asked(self, updates: Updates, chosen: Sequence[bool]) -> Updates:
        """Return the updates of the chosen requests that the model knows; it takes those of the others."""
        asked: list[tuple[str, Tokens]] = []
        for (name, tokens), is_chosen in zip(updates, chosen, strict=True):
            if not self._requests[name].has_model:
                continue
            if is_chosen:
                asked.append((name, tokens))
            else:
                self._model.observe(name, tokens)
        return asked

    def _model_drafts(self, asked: Updates, max_tokens: int, min_prob: float) -> dict[str, Draft]:
        """Return the model's drafts by request."""
        if not asked:
            return {}
        try:
            drafts = self._model.step(asked, max_tokens, min_prob)
        except Exception:
            self._give_up([name for name, _ in asked])
            return {}
        return dict(zip([name for name, _ in asked], drafts, strict=True))

    def _give_up(self, names: Sequence[str]) -> None:
        """Continue some requests without the model: its state of them may be wrong now."""
        logger.exception("the model could not draft; %d outputs continue with the trees only", len(names))
        for name in names:
            if request := self._requests.get(name):
                request.has_model = False
            self._model.finish(name)

    def _choose(self, requests: Sequence[_Request], drafts: Sequence[Draft]) -> list[bool]:
        """Return for each request whether the model drafts too."""
        for request, draft in zip(requests, drafts, strict=True):
            request.is_asked = False
            if request.is_read:
                request.situation = self._use.situation(request.stage, draft.score)
                request.num_met[request.situation[1]] += 1
        able = [request for request in requests if request.union is not None]
        chosen = self._use.choose([request.situation for request in able])
        for request, is_chosen in zip(able, chosen, strict=True):
            request.is_asked = is_chosen
        return [request.is_asked for request in requests]

    # ---- the unions ----

    def _begin_unions(self, requests: Sequence[_Request], drafts: Sequence[Draft]) -> None:
        """Begin the unions of requests for which the model can draft with the trees' drafts."""
        for request, draft in zip(requests, drafts, strict=True):
            request.union = DraftUnion() if request.has_model and request.is_read else None
            if request.union is not None:
                request.own_nodes = request.union.add(draft)
                request.union.rate(self._chance)

    def _grow_unions(self, asked: Updates, max_tokens: int, min_prob: float) -> None:
        """Let the model add to the unions of some requests, and the trees behind what it adds."""
        if not asked:
            return
        failures: list[Exception] = []  # of the trees
        growing = [self._growing(name, failures, max_tokens, min_prob) for name, _ in asked]
        begin_s = self._clock()
        try:
            self._model.grow(asked, growing)
            has_failed = False
        except Exception:
            self._give_up([name for name, _ in asked])
            has_failed = True
        for name, _ in asked:
            self._union_of(name).rate(self._chance)
        if failures:
            raise failures[0]
        if not has_failed:
            self._use.time_model(self._clock() - begin_s, len(asked))

    def _growing(
        self, name: str, failures: list[Exception], max_tokens: int, min_prob: float
    ) -> GrowingUnion:
        draft = self._requests[name].draft

        def continued(assumed: Tokens, least: float) -> Draft:
            try:
                return self._trees.draft_after([(name, assumed)], max_tokens, least)[0]
            except Exception as error:
                failures.append(error)
                return Draft()

        return GrowingUnion(
            self._union_of(name),
            self._chance,
            continued,
            vocab_size=self._model.vocab_size,
            width=self._model.width_of(draft),
            most_tokens=min(max_tokens, draft.max_tokens),
            least_chance=max(min_prob, draft.min_prob),
        )

    def _union_of(self, name: str) -> DraftUnion:
        union = self._requests[name].union
        assert union is not None
        return union

    # ---- outcomes ----

    def _learn(self, updates: Updates, requests: Sequence[_Request]) -> None:
        """Learn from accepted tokens, and from the time since the last step if it was a decode step."""
        now_s = self._clock()
        if not self._has_prompts and any(request.is_decoding for request in requests):
            num_tokens = self._num_observed + sum(len(tokens) for _, tokens in updates)
            self._use.time_step(now_s - self._stepped_s, num_tokens)
        self._stepped_s, self._has_prompts, self._num_observed = now_s, False, 0
        for request, (_, tokens) in zip(requests, updates, strict=True):
            self._learn_outcome(request, tokens)
            request.is_decoding = True

    def _learn_outcome(self, request: _Request, tokens: Tokens) -> None:
        if request.union is None or not len(tokens):
            return
        union, token_ids = request.union, tokens.tolist()
        request.union = None
        for said, is_accepted in union.outcomes(token_ids):
            self._chance.learn(said, is_accepted)
        if request.is_asked and request.is_verified:
            by_trees = len({*union.accepted(token_ids)} & {*request.own_nodes})
            num_accepted = min(len(token_ids) - 1, request.num_drafted)
            self._use.learn(request.situation, num_accepted - by_trees - request.cost)


def _likeliest(request: _Request, num_own: int, max_tokens: int, min_prob: float) -> Draft:
    """Return the likeliest nodes of a request's union within all limits, and note what they cost."""
    assert request.union is not None
    draft = request.draft
    most, least = min(max_tokens, draft.max_tokens), max(min_prob, draft.min_prob)
    made = request.union.draft(0 if draft.is_off else most, least, is_tree=draft.mode == "tree")
    request.num_drafted = len(made)
    request.cost = least * (len(made) - num_own)
    return made
