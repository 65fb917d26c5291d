"""The body of the decode loop: one forward pass for all running sequences.

This module owns only the order of events within a step. ``Scheduler`` chooses the sequences, ``Proposer``
drafts, ``Transformer`` computes logits, the verifier accepts or rejects, and ``Choice`` turns tokens into
deltas for clients. It uses no thread except through the scheduler's lock, and no event loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from agentspec.draft import Draft
from agentspec.engine.batch import Segment
from agentspec.engine.counters import StageCounters
from agentspec.engine.drafts import begun_by, cut, known
from agentspec.engine.passed import PassedRow, PassWatcher
from agentspec.engine.pricing import Asked, Pricing, Work
from agentspec.engine.request import Choice, Item, LiveRequest
from agentspec.engine.sampling.sampler import logprobs
from agentspec.engine.scheduler import Row, Scheduler
from agentspec.engine.verifier import Verdict, verify
from agentspec.errors import EngineError
from agentspec.generation import TokenLogprob, TopLogprob, TracedStep
from agentspec.proposer import NoDrafts, OutputSharing, Proposer, TextProposer, Tokens
from agentspec.steps import StepSaving

if TYPE_CHECKING:
    from agentspec.engine.model.kv_cache import KVCache
    from agentspec.engine.model.transformer import Pass, Transformer

logger = logging.getLogger(__name__)


class Decoder:
    """Decodes all added sequences, one :meth:`step` at a time.

    ``add`` may be called by any thread; ``step`` and ``fail`` by one thread only.

    Args:
        token_text: the text of one token, for logprobs and traces.
        token_bytes: the bytes that one token adds to an output, for logprobs.
        post: sends an item to a request's client.
        max_draft_tokens: most draft tokens of one sequence in one pass.
        price: cost of a draft token, in accepted tokens (0 to 1); None = learned from the steps.
        clock: seconds, to measure steps.

    Attributes:
        pricing: decides which draft tokens are verified.
        sharing: sends outputs that the proposer has learned to other engines; None = they are not shared.
    """

    def __init__(
        self,
        model: Transformer,
        cache: KVCache,
        proposer: Proposer,
        scheduler: Scheduler,
        *,
        token_text: Callable[[int], str],
        token_bytes: Callable[[int], bytes | None],
        post: Callable[[LiveRequest, Item], None],
        max_draft_tokens: int,
        price: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._cache = cache
        self._proposer = proposer
        self._drafts_first = isinstance(proposer, TextProposer)
        self._watcher = proposer if isinstance(proposer, PassWatcher) else None
        self._hidden_layers = () if self._watcher is None else self._watcher.hidden_layers
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._token_text = token_text
        self._token_bytes = token_bytes
        self._post = post
        self._max_draft_tokens = max_draft_tokens
        self.pricing = Pricing(price, has_lulls=self._watcher is None)
        self._num_steps = 0
        self._num_decoding = 0  # rows of the present step that decode
        self._verified_s = 0.0  # time of the last step's verdicts
        self._clock = clock
        self.sharing: OutputSharing | None = None
        self.counters = StageCounters()

    @property
    def has_work(self) -> bool:
        """True if a step would do something."""
        return self._scheduler.has_work

    def check_room(self) -> None:
        """Raise EngineBusyError if the queue has no room for one more sequence."""
        with self._lock:
            self._scheduler.check_room(1)

    def add(self, choices: Sequence[Choice]) -> None:
        """Schedule the choices of one request. Raises EngineBusyError if the queue is full."""
        with self._lock:
            self._scheduler.add(choices)
            for choice in choices:
                if choice.sampler.grammar is None:  # a grammar may force tokens in any step
                    choice.pace = self.pricing.pace(choice.live.request.tags.stage)
        self.counters.admitted(choices[0].live.request, choices[0].live.num_prompt_tokens)

    def step(self) -> None:
        """Run one forward pass for all running sequences, and process its results."""
        rows = self._schedule()  # 1. remove cancelled sequences, admit waiting ones
        if not rows:
            return
        self._num_steps += 1
        begin_s = self._clock()
        self._draft(rows)  # 2. the proposer gets the accepted tokens, and drafts
        drafting_s = self._clock() - begin_s
        segments = [row.segment() for row in rows]
        passed = self._model.run(segments, self._cache, self._hidden_layers)  # 3. one pass for all rows
        logits = passed.logits
        deciding = [row for row in rows if row.gives_token]
        verdicts = verify(  # 4. the accepted part of each draft, and the token after it
            logits, [row.choice.sampler for row in deciding], [row.draft for row in deciding]
        )
        if self._watcher is not None:
            begin_watch_s = self._clock()
            self._watch(self._watcher, rows, segments, verdicts, passed)
            drafting_s += self._clock() - begin_watch_s
        results = [(row, len(verdict.path)) for row, verdict in zip(deciding, verdicts, strict=True)]
        self.pricing.verified((row.draft, num_accepted) for row, num_accepted in results)
        work = _work(rows, deciding, verdicts)
        self._num_decoding = sum(row.is_decode for row in rows)
        asked = [Asked(row.choice.pace, len(row.draft), num) for row, num in results if row.is_asked]
        self.pricing.judge(asked, drafting_s, work)
        saving = self._saving(rows, drafting_s, work)
        for row in rows:
            if not row.gives_token:
                row.choice.num_cached += len(row.token_ids)
        for row, verdict in zip(deciding, verdicts, strict=True):  # 5. send accepted tokens to clients
            # skip requests of which another choice has just failed, or that the client has cancelled
            if row.choice.is_scheduled and not row.choice.live.is_cancelled:
                self._commit(row, verdict, logits, saving)
        model_s = self._clock() - begin_s - drafting_s
        self.pricing.timed(model_s, work)  # 6. learn the cost of draft tokens

    def _saving(self, rows: Sequence[Row], drafting_s: float, work: Work) -> StepSaving | None:
        """Return the time of this step with and without drafts, counted from the end of the last step."""
        last_s, self._verified_s = self._verified_s, self._clock()
        asked = [row.is_decode for row in rows if row.is_asked]
        num_drafted = sum(len(row.draft) for row in rows if row.is_decode)
        share_s = drafting_s * sum(asked) / len(asked) if asked else drafting_s
        return self.pricing.saving(self._verified_s - last_s, share_s, work, num_drafted)

    def _schedule(self) -> list[Row]:
        with self._lock:
            cancelled = self._scheduler.take_cancelled()
        for choice in cancelled:
            self._retire(choice)
        with self._lock:
            return self._scheduler.next_rows()

    def _draft(self, all_rows: Sequence[Row]) -> None:
        """Set the draft of each row that wants one, cut to the row's room, if the drafts are worth their
        cost.

        The pass that ends a prompt also verifies a first draft of the output, if the proposer needs only
        text. If the proposer raises, outputs continue without drafts.
        """
        rows = [
            row
            for row in all_rows
            if (row.is_decode or (self._drafts_first and row.ends_prompt))
            and row.choice.wants_draft(self._num_steps)
        ]
        if not rows:
            return
        try:
            found = self._ask(rows)
        except Exception:
            logger.exception(
                "the proposer could not draft; these %d outputs continue without drafts", len(rows)
            )
            for row in rows:
                row.choice.is_tracked = False
            return
        for row in rows:
            row.is_asked = True
        if not any(map(len, found)):
            return
        drafts = [cut(draft, row.choice.draft_room) for row, draft in zip(rows, found, strict=True)]
        if all(row.is_decode for row in all_rows) and not self.pricing.are_worth(drafts, len(all_rows)):
            return
        for row, draft in zip(rows, known(drafts, self._model.config.vocab_size), strict=True):
            row.draft = draft

    def _ask(self, rows: Sequence[Row]) -> list[Draft]:
        """Return the proposer's draft of each row. Tokens that a grammar forces are put in front of it."""
        most, least = self._max_draft_tokens, self.pricing.min_prob
        updates = [(row.choice.key, row.choice.drain_pending()) for row in rows]
        forced = {} if isinstance(self._proposer, NoDrafts) else _forced(rows)
        if not forced:
            return self._proposer.step(updates, most, least)
        for place in forced:
            self._proposer.observe(*updates[place])
        free = [place for place in range(len(rows)) if place not in forced]
        made = self._proposer.step([updates[place] for place in free], most, least) if free else []
        found = dict(zip(free, made, strict=True))
        tails = [Draft() for _ in forced]
        if isinstance(self._proposer, TextProposer):
            behind = [(updates[place][0], tokens) for place, tokens in forced.items()]
            tails = self._proposer.draft_after(behind, most, least)
        for (place, tokens), tail in zip(forced.items(), tails, strict=True):
            found[place] = begun_by(tokens, tail)
        return [found[place] for place in range(len(rows))]

    def _watch(
        self,
        watcher: PassWatcher,
        rows: Sequence[Row],
        segments: Sequence[Segment],
        verdicts: Sequence[Verdict],
        passed: Pass,
    ) -> None:
        """Pass hidden states and logits to the proposer. If it raises, outputs continue without drafts."""
        try:
            watcher.watch(_passed(rows, segments, verdicts, passed))
        except Exception:
            logger.exception("the proposer could not take a pass; its %d outputs get no drafts", len(rows))
            for row in rows:
                row.choice.is_tracked = False

    def _commit(self, row: Row, verdict: Verdict, logits: Tensor, saving: StepSaving | None) -> None:
        """Commit the accepted tokens: KV entries, tokens, counters, and the delta for the client."""
        choice = row.choice
        is_decode, is_first = row.is_decode, not choice.output_ids
        try:
            num_kept, text = choice.commit(verdict.token_ids)
        except Exception as error:  # its grammar or its text; no other request is concerned
            if not isinstance(error, EngineError):
                logger.exception("the output of %r could not be taken", choice.key)
                error = EngineError(f"the output could not be taken: {error!r}")
            self._end(choice.live, error)
            return
        choice.num_cached += len(row.token_ids)
        self._cache.keep(choice.slot, choice.num_cached, verdict.path)  # of a tree, the accepted branch
        choice.num_cached += len(verdict.path)
        if is_first:
            self.counters.prefilled(
                choice,
                row.draft,
                verdict.path[: num_kept - 1],
                self.pricing.plain_step_s(max(1, self._num_decoding)),
                self.pricing.drafts_s(len(row.draft)) or 0.0,
            )
        else:
            self.counters.decoded(
                choice, row.draft, verdict.path[: num_kept - 1], saving if is_decode else None
            )
        if choice.wants_trace:
            choice.trace.append(_traced(row.draft, verdict, num_kept, self._token_text))
        delta = choice.delta(num_kept, text, self._logprobs(choice, verdict, num_kept, logits))
        if choice.finish_reason is not None:
            self._retire(choice)  # before the answer ends, since a next request may draft from this output
        self._post(choice.live, delta)

    def _logprobs(
        self, choice: Choice, verdict: Verdict, num_kept: int, logits: Tensor
    ) -> tuple[TokenLogprob, ...]:
        num_top = choice.sampler.params.logprobs
        if num_top is None:
            return ()
        entries = logprobs(logits[verdict.rows[:num_kept]], verdict.token_ids[:num_kept], num_top)
        text, raw = self._token_text, self._token_bytes
        return tuple(
            TokenLogprob(
                entry.token_id,
                text(entry.token_id),
                entry.logprob,
                tuple(TopLogprob(token, text(token), value, raw(token)) for token, value in entry.top),
                raw(entry.token_id),
            )
            for entry in entries
        )

    def fail(self, reason: str) -> None:
        """End all requests, each with its own EngineError."""
        with self._lock:
            lives = {id(choice.live): choice.live for choice in self._scheduler.live()}
        for live in lives.values():
            self._end(live, EngineError(reason))

    def _end(self, live: LiveRequest, error: Exception) -> None:
        """End all choices of one request with an error. Their outputs count as not delivered."""
        live.is_cancelled = True
        with self._lock:
            choices = [choice for choice in self._scheduler.live() if choice.live is live]
        for choice in choices:
            self._retire(choice)
        self._post(live, error)

    def _retire(self, choice: Choice) -> None:
        """Free the slot. Once all choices of the request have ended, their outputs are learned or dropped."""
        with self._lock:
            self._scheduler.release(choice)
        self.counters.finished(choice)
        live = choice.live
        live.ended.append(choice)
        if live.is_over:
            for one in live.ended:
                self._finish(one)

    def _finish(self, choice: Choice) -> None:
        """End a choice in the proposer. The proposer learns the delivered part of a complete output.

        If the proposer raises, later requests lose drafts; this output is not affected.
        """
        learn = choice.live.request.tags.learn and choice.is_tracked and choice.is_delivered
        try:
            if choice.stops:
                self._proposer.finish(choice.key, learn, np.array(choice.delivered_ids, np.int32))
            else:
                if learn and choice.pending_ids:
                    self._proposer.observe(choice.key, choice.drain_pending())
                self._proposer.finish(choice.key, learn=learn)
            if learn and self.sharing is not None and choice.delivered_ids:
                self._share(self.sharing, choice)
        except Exception:
            logger.exception("the proposer could not finish %r", choice.key)

    @staticmethod
    def _share(sharing: OutputSharing, choice: Choice) -> None:
        """Give a finished output to other engines."""
        tags = choice.live.request.tags
        sharing.share(
            tags.stage,
            choice.delivered_ids,
            subject=tags.subject,
            session=tags.session,
        )


def _work(rows: Sequence[Row], deciding: Sequence[Row], verdicts: Sequence[Verdict]) -> Work:
    gained = [
        len(verdict.token_ids) for row, verdict in zip(deciding, verdicts, strict=True) if row.is_decode
    ]
    num_drafted = sum(len(row.draft) for row in deciding)
    num_prompt_tokens = sum(len(row.token_ids) for row in rows if not row.is_decode)
    return Work(len(gained), num_drafted, sum(gained), num_prompt_tokens)


def _passed(
    rows: Sequence[Row], segments: Sequence[Segment], verdicts: Sequence[Verdict], passed: Pass
) -> list[PassedRow]:
    """Return the part of a pass of each row that gets drafts."""
    hidden = iter(() if passed.hidden is None else passed.hidden.split_with_sizes([*map(len, segments)]))
    logits = iter(passed.logits.split_with_sizes([len(one) - one.logits_from for one in segments]))
    paths = iter(verdicts)
    found = []
    for row, segment in zip(rows, segments, strict=True):
        num_own = len(row.token_ids)
        path = next(paths).path if row.gives_token else []
        row_hidden, row_logits = next(hidden, None), next(logits)
        if row.choice.draft.is_off or not row.choice.is_tracked:
            continue
        kept = [*range(num_own), *(num_own + node for node in path)]
        place = row.choice.key, segment.slot, segment.start
        sampler = row.choice.sampler
        found.append(PassedRow(*place, segment.token_ids, kept, row_hidden, row_logits, sampler))
    return found


def _traced(draft: Draft, verdict: Verdict, num_kept: int, text: Callable[[int], str]) -> TracedStep:
    """Return the result of a draft, of which ``num_kept`` tokens joined the output, with the bonus token."""
    is_own_kept = num_kept == len(verdict.token_ids)
    return TracedStep(
        source=draft.source,
        texts=tuple(map(text, draft.token_ids.tolist())),
        parents=tuple(draft.parents.tolist()),
        accepted=tuple(verdict.path[:num_kept]),
        own_text=text(verdict.token_ids[-1]) if is_own_kept else None,
    )


def _forced(rows: Sequence[Row]) -> dict[int, Tokens]:
    """Return the tokens that grammars force, as far as a draft has room for them, by row."""
    found = {}
    for place, row in enumerate(rows):
        grammar = row.choice.sampler.grammar
        if grammar is not None and len(tokens := grammar.forced(row.choice.draft_room)):
            found[place] = tokens
    return found
