"""Continuous batching: which sequences take part in the next forward pass, and with which tokens.

It owns the KV slots and the queue, and reserves the slots' memory. It does not use torch, does not draft, and
is not thread-safe: its owner holds a lock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from agentspec.draft import Draft
from agentspec.engine.batch import Segment
from agentspec.engine.request import Choice
from agentspec.errors import EngineBusyError
from agentspec.proposer import Tokens

logger = logging.getLogger(__name__)

MIN_SHARED = 64  # least number of common tokens for which a slot of another conversation is reused
# Memory of a sequence grows in steps of this many tokens, and at least this part of its length. Each step may
# take the slots of other sequences, which then have to be prefilled again.
GROWTH = 128
GROWTH_DIVISOR = 4


class SlotMemory(Protocol):
    """The memory of the slots, implemented by :class:`agentspec.engine.kv_memory.KVMemory`."""

    def reserve(self, slot: int, num_tokens: int) -> bool:
        """Replace a slot's reservation by memory for ``num_tokens``. Return False if the limit is reached.

        A sequence that runs alone always gets its memory.
        """

    def clear(self, slot: int) -> None:
        """Free the memory of a slot."""


@dataclass(slots=True, eq=False)
class Row:
    """One sequence's part in a forward pass: a chunk of its prompt, or its last token.

    ``draft`` follows the last token. A row has a draft only if its pass yields an output token and the
    proposer was asked.
    """

    choice: Choice
    token_ids: Tokens
    draft: Draft
    is_asked: bool = False

    @property
    def is_decode(self) -> bool:
        """True if all but the last token was read before."""
        return not self.choice.is_prefilling

    @property
    def gives_token(self) -> bool:
        """True if the pass yields an output token: a decode step, or the last chunk of a prompt."""
        return self.choice.num_cached + len(self.token_ids) >= self.choice.num_known

    @property
    def ends_prompt(self) -> bool:
        """True if the pass decides on the first output token."""
        return self.gives_token and not self.choice.output_ids

    def segment(self) -> Segment:
        """The row as the model sees it. Logits: none, or those of the last own token and the draft."""
        num_own = len(self.token_ids)
        parents = None
        if not self.draft.is_chain:
            own = np.arange(-1, num_own - 1, dtype=np.int32)
            parents = np.concatenate([own, self.draft.parents + np.int32(num_own)])
        return Segment(
            slot=self.choice.slot,
            start=self.choice.num_cached,
            token_ids=np.concatenate([self.token_ids, self.draft.token_ids]),
            parents=parents,
            logits_from=num_own - 1 if self.gives_token else num_own,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The tokens that are cached in a free slot, and their tenant."""

    tenant: str
    token_ids: Tokens

    def num_shared(self, tenant: str, prompt_ids: Tokens) -> int:
        """Return the length of the common prefix with a prompt; 0 for another tenant, to reveal nothing."""
        if tenant != self.tenant:
            return 0
        size = min(len(self.token_ids), len(prompt_ids))
        differs = self.token_ids[:size] != prompt_ids[:size]
        return int(differs.argmax()) if differs.any() else size


class Scheduler:
    """A queue in order of arrival over ``num_slots`` KV slots.

    Every decoding sequence takes part in every pass. Prompts are prefilled in chunks, in order of admission,
    up to ``max_batch_tokens`` per pass. With ``keeps_prompts`` a sequence gets the free slot that shares the
    longest prefix with its prompt, of the same tenant, and continues from there.

    A sequence waits until there is memory for its prompt and its next tokens. When a running sequence needs
    more memory than is left, the sequence that arrived last loses its slot. It becomes the first in the
    queue, and later prefills its prompt and its output again. So the oldest sequence is never interrupted.

    Args:
        memory: memory of the slots; None = unlimited.
    """

    def __init__(
        self,
        num_slots: int,
        max_batch_tokens: int,
        max_queue: int,
        *,
        keeps_prompts: bool = False,
        memory: SlotMemory | None = None,
    ) -> None:
        self._free = list(range(num_slots - 1, -1, -1))
        self._kept: dict[int, Kept] | None = {} if keeps_prompts else None
        self._max_batch_tokens = max_batch_tokens
        self._max_queue = max_queue
        self._waiting: deque[Choice] = deque()
        self._running: list[Choice] = []
        self._memory = memory

    @property
    def has_work(self) -> bool:
        """True if a step would do something."""
        return bool(self._waiting or self._running)

    @property
    def num_free(self) -> int:
        """Slots that no sequence occupies."""
        return len(self._free)

    @property
    def num_waiting(self) -> int:
        """Sequences that have no slot yet."""
        return len(self._waiting)

    def check_room(self, num_choices: int) -> None:
        """Raise EngineBusyError if these additional sequences exceed the queue's limit.

        A free slot counts as room: its sequence does not wait.
        """
        if len(self._waiting) + num_choices > self._max_queue + len(self._free):
            raise EngineBusyError(
                f"{len(self._waiting)} sequences wait, at most {self._max_queue!r} may; try again later"
            )

    def add(self, choices: Sequence[Choice]) -> None:
        """Put the choices of one request into the queue, all or none: see :meth:`check_room`."""
        self.check_room(len(choices))
        self._waiting.extend(choices)

    def take_cancelled(self) -> list[Choice]:
        """Return the sequences of disconnected clients. They stay until they are released."""
        return [choice for choice in self.live() if choice.live.is_cancelled]

    def live(self) -> list[Choice]:
        """All sequences, running ones first."""
        return [*self._running, *self._waiting]

    def release(self, choice: Choice) -> None:
        """Remove a sequence. Its slot is free for the next pass. A second call has no effect. O(live)."""
        if choice in self._running:
            if self._kept is None:
                self._leave_slot(choice)
                return
            self._kept[choice.slot] = Kept(choice.live.request.tags.stage.tenant, choice.cached_ids)
            self._running.remove(choice)
            self._free.append(choice.slot)
            choice.slot = -1
        elif choice in self._waiting:
            self._waiting.remove(choice)

    def next_rows(self) -> list[Row]:
        """Admit the sequences that fit, then return each running sequence's row of the next pass."""
        self._grow()
        self._admit()
        budget = self._max_batch_tokens
        rows = []
        for choice in self._running:
            tokens = self._own_tokens(choice, budget)
            if choice.is_prefilling:
                budget -= len(tokens)
            if len(tokens):
                rows.append(Row(choice, tokens, Draft()))
        return rows

    # ---- memory ----

    def _admit(self) -> None:
        """Give the first sequences of the queue a slot each, as long as there is memory for them."""
        while self._free and self._waiting:
            choice = self._waiting[0]
            slot = self._free[-1] if self._kept is None else self._find_kept(choice, self._kept)
            if not self._reserve(choice, slot):
                return
            self._waiting.popleft()
            self._free.remove(slot)
            if self._kept is not None:
                self._kept.pop(slot, None)
            choice.slot = slot
            self._running.append(choice)

    def _grow(self) -> None:
        """Reserve memory for the next step of every running sequence, the oldest first."""
        if self._memory is None:
            return
        for choice in self._running.copy():
            while choice.is_scheduled and choice.most_entries > choice.num_reserved:
                if not self._reserve(choice, choice.slot):
                    self._suspend(self._running[-1])

    def _reserve(self, choice: Choice, slot: int) -> bool:
        """Reserve a slot's memory for a sequence. Caches in free slots are dropped to make room."""
        if self._memory is None:
            return True
        growth = max(GROWTH, choice.num_known // GROWTH_DIVISOR)
        wanted = min(choice.most_entries + growth, choice.max_len)
        kept = self._kept or {}
        if slot in kept:
            wanted = max(wanted, len(kept[slot].token_ids))
        while not self._memory.reserve(slot, wanted):
            other = next((one for one in kept if one != slot), None)
            if other is None:
                return False
            self._forget(other, kept)
        choice.num_reserved = wanted
        return True

    def _forget(self, slot: int, kept: dict[int, Kept]) -> None:
        """Drop the cache of a free slot."""
        del kept[slot]
        if self._memory is not None:
            self._memory.clear(slot)

    def _suspend(self, choice: Choice) -> None:
        """Put a running sequence back into the queue, before all others."""
        logger.info(
            "the KV cache is full: %r waits, and will read its %d tokens again", choice.key, choice.num_known
        )
        self._leave_slot(choice)
        choice.num_cached = 0
        self._waiting.appendleft(choice)

    def _leave_slot(self, choice: Choice) -> None:
        self._running.remove(choice)
        self._free.append(choice.slot)
        if self._memory is not None:
            self._memory.clear(choice.slot)
        choice.slot, choice.num_reserved = -1, 0

    def _find_kept(self, choice: Choice, kept: dict[int, Kept]) -> int:
        """Return the slot that caches most of the prompt; if none caches much, the one freed first."""
        tenant = choice.live.request.tags.stage.tenant
        known = {
            slot: kept[slot].num_shared(tenant, choice.prompt_ids) for slot in self._free if slot in kept
        }
        slot = max(known, key=known.__getitem__, default=-1)
        if slot >= 0 and known[slot] >= MIN_SHARED:
            choice.num_cached = min(known[slot], len(choice.prompt_ids) - 1)  # its last token gives the first
            return slot
        choice.num_cached, slot = 0, self._free[0]
        if slot in kept:
            self._forget(slot, kept)
        return slot

    def _own_tokens(self, choice: Choice, budget: int) -> Tokens:
        if choice.is_prefilling:
            return choice.known_ids[choice.num_cached : choice.num_cached + budget]
        return np.array(choice.output_ids[-1:], np.int32)
