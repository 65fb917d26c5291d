"""A proposer that drafts by a small network, from the served model's results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from agentspec.config import DraftConfig, check_int
from agentspec.draft import Draft
from agentspec.engine.batch import Segment
from agentspec.engine.model.kv_cache import KVCache
from agentspec.engine.passed import PassedRow
from agentspec.engine.sampling.state import SamplerState
from agentspec.proposer import Tokens
from agentspec.stages import StageKey
from lab.drafters.coupled import HEAD, Sharpness, likely_winners
from lab.drafters.growing_tree import GrowingTree, Level
from lab.drafters.live_requests import LiveRequests

MOST_UNREAD = 256  # rows of a request that gets no drafts: their features take memory


class DraftNetwork(Protocol):
    """A network that continues texts, such as an :class:`~lab.drafters.eagle.EagleHead`.

    With features, row i stands for the features of token i and for token i + 1; without, for token i.

    Attributes:
        vocab_size: of the served model.
        hidden_layers: layers of the served model: their inputs are its features; () = it has none.
        most_levels: most tokens of a draft; None = any number.
    """

    vocab_size: int
    hidden_layers: tuple[int, ...]
    most_levels: int | None

    def make_cache(self, num_slots: int, max_len: int) -> KVCache | None:
        """Return a cache of its own keys and values, if it has any."""

    def read(self, features: torch.Tensor | None) -> torch.Tensor:
        """Return the state that rows with known features carry, ``[rows, hidden]``."""

    def forward(
        self, segments: Sequence[Segment], carried: torch.Tensor, cache: KVCache | None
    ) -> torch.Tensor:
        """Return what each row hands on to the next, ``[rows, hidden]``."""

    def log_probs(self, carried: torch.Tensor, level: int) -> torch.Tensor:
        """Return log chances of the next tokens, float32 ``[rows, tokens]``. Level 1 follows the text."""

    def token_ids(self, drafted: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the served model's ids of tokens by their place in :meth:`log_probs`."""


class DraftTree(Protocol):
    """A tree that a network grows level by level, such as a :class:`GrowingTree`."""

    @property
    def num_candidates(self) -> int:
        """Most continuations that are wanted of each row."""

    def add(self, token_ids: NDArray[np.int32], log_probs: NDArray[np.float32]) -> None:
        """Take continuations of each node expanded last, the likeliest first: both ``[nodes, n]``."""

    def expand(self) -> Level | None:
        """Return the nodes to compute next; None if the tree is complete."""


@dataclass(slots=True, eq=False)
class _Context:
    """The state of a request.

    Attributes:
        shift: 1 with features: a row stands for a token and the one after it; else 0.
        num_prompt: tokens of the prompt.
        token_ids: prompt and output.
        slot: of the served model's cache; -1 until its first pass.
        first: place of the first token with features; those before were in the slot already.
        num_seen: tokens that the served model has read and kept.
        num_read: rows that the network has read.
        features: of the rows that it has not read.
        handed_on: what the last row hands on, ``[hidden]``; None if there is none yet.
        sampler: of the request; None until its first pass.
        guess: the likeliest next token and its chance, if the request is sampled, until it is known.
    """

    draft: DraftConfig
    shift: int
    num_prompt: int
    token_ids: list[int]
    slot: int = -1
    first: int = 0
    num_seen: int = 0
    num_read: int = 0
    features: list[torch.Tensor] = field(default_factory=list)
    handed_on: torch.Tensor | None = None
    sampler: SamplerState | None = None
    guess: tuple[int, float] | None = None

    @property
    def num_unread(self) -> int:
        """Rows that can be read now."""
        last = min(len(self.token_ids) - self.shift, self.num_seen + 1 - self.shift)
        return last - self.first - self.num_read

    @property
    def is_ready(self) -> bool:
        """True if the network has read all up to the last token."""
        num_rows = len(self.token_ids) - self.shift - self.first
        return self.handed_on is not None and self.num_read == num_rows

    @property
    def is_sampled(self) -> bool:
        """True if the request's tokens depend on random numbers."""
        return self.sampler is not None and not self.sampler.is_greedy

    def segment(self) -> Segment:
        """Return the rows that can be read."""
        begin = self.first + self.num_read + self.shift
        token_ids = np.array(self.token_ids[begin : begin + self.num_unread], np.int32)
        return Segment(self.slot, self.num_read, token_ids)

    def take_features(self, num_rows: int) -> torch.Tensor:
        """Remove and return the features of the first rows; nothing of a network without features."""
        if not self.shift:
            return torch.empty(0)
        known = torch.cat(self.features)
        self.features = [known[num_rows:]] if num_rows < len(known) else []
        return known[:num_rows]

    def enter(self, slot: int, start: int) -> None:
        """Begin in a slot that holds ``start`` tokens of the prompt already."""
        self.slot, self.num_read, self.handed_on = slot, 0, None
        self.first = start * self.shift
        self.features.clear()


class ModelDrafter:
    """Implements :class:`agentspec.proposer.Proposer` and :class:`agentspec.engine.passed.PassWatcher`.

    The network reads a prompt chunk by chunk, as the served model does. All requests of a step grow their
    trees together: one pass of the network per level.

    Args:
        network: makes the drafts.
        num_slots: of the served model's cache.
        max_len: of the served model's slots.
        width: nodes of a tree that are expanded in a level.
        depth: most levels, and so most accepted tokens of a draft.

    Attributes:
        cache: the network's own keys and values, if it has any, with room for a tree behind each text.

    Raises:
        ConfigError: width or depth is out of range.
    """

    def __init__(
        self, network: DraftNetwork, num_slots: int, max_len: int, *, width: int = 4, depth: int = 12
    ) -> None:
        check_int("width", width, 1, 64)
        check_int("depth", depth, 1, 64)
        self.hidden_layers = network.hidden_layers
        self.vocab_size = network.vocab_size
        self._network = network
        self._width = width
        self._depth = min(depth, network.most_levels or depth)
        self.cache = network.make_cache(num_slots, max_len + width * depth)
        self._contexts = LiveRequests[_Context]()
        self._sharpness = Sharpness()

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
        """Admit a request. Raises DuplicateRequestError if a live one has this id."""
        shift = int(bool(self.hidden_layers))
        context = _Context(draft or DraftConfig(), shift, len(prompt_ids), prompt_ids.tolist())
        self._contexts.add(request_id, context)

    def watch(self, rows: Sequence[PassedRow]) -> None:
        """Take the features of all tokens that stay. Read the prompts so far, and what waits for too long."""
        to_read = []
        for row in rows:
            context = self._contexts.get(row.key)
            if context is None or context.draft.is_off:
                continue
            if (context.slot, context.num_seen) != (row.slot, row.start):
                context.enter(row.slot, row.start)
            context.sampler = row.sampler
            context.num_seen = row.start + len(row.kept)
            if row.hidden is not None:
                context.features.append(_kept(row.hidden, row.kept))
            if self.cache is None:  # only the last row matters
                context.num_read = context.num_seen - context.first - 1
                context.features = [context.features[-1][-1:]]
            elif row.start < context.num_prompt or context.num_unread >= MOST_UNREAD:
                to_read.append(context)
        self._read([context for context in to_read if context.num_unread > 0])

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        """Take accepted tokens without drafting."""
        context = self._contexts[request_id]
        if context.guess is not None and len(token_ids):
            token, chance = context.guess
            self._sharpness.learn(chance, is_true=token == int(token_ids[0]))
            context.guess = None
        context.token_ids += token_ids.tolist()

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        """Forget a request."""
        self._contexts.remove(request_id)

    def step(
        self, updates: Sequence[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        """Take accepted tokens and draft: at most ``depth`` passes of the network for the whole batch."""
        trees = [self._tree(self._contexts[name], max_tokens, min_prob) for name, _ in updates]
        self.grow(updates, trees)
        return [tree.draft() for tree in trees]

    def width_of(self, draft: DraftConfig) -> int:
        """Return how many nodes of a request's tree are expanded in a level."""
        return self._width if draft.mode == "tree" else 1

    def grow(self, updates: Sequence[tuple[str, Tokens]], trees: Sequence[DraftTree]) -> None:
        """Take accepted tokens, and grow a tree behind each request's text."""
        for request_id, token_ids in updates:
            self.observe(request_id, token_ids)
        contexts = [self._contexts[request_id] for request_id, _ in updates]
        self._read([context for context in contexts if context.slot >= 0 and context.num_unread > 0])
        growing = [pair for pair in zip(contexts, trees, strict=True) if pair[0].is_ready]
        if growing:
            self._grow(growing)

    def _tree(self, context: _Context, max_tokens: int, min_prob: float) -> GrowingTree:
        draft = context.draft
        return GrowingTree(
            self.width_of(draft), min(max_tokens, draft.max_tokens), max(min_prob, draft.min_prob)
        )

    def _read(self, contexts: Sequence[_Context]) -> None:
        """Let the network read all rows of these requests that can be read."""
        if not contexts:
            return
        segments = [context.segment() for context in contexts]
        features = [context.take_features(len(one)) for context, one in zip(contexts, segments, strict=True)]
        carried = self._network.read(torch.cat(features) if self.hidden_layers else None)
        rows = self._network.forward(segments, carried, self.cache)
        ends = np.cumsum([len(segment) for segment in segments]) - 1
        for context, segment, end in zip(contexts, segments, ends.tolist(), strict=True):
            context.num_read += len(segment)
            context.handed_on = rows[end]

    def _grow(self, growing: list[tuple[_Context, DraftTree]]) -> None:
        """Compute trees level by level, from what the last rows hand on."""
        rows = torch.stack([context.handed_on for context, _ in growing if context.handed_on is not None])
        sizes = [1] * len(growing)
        for level in range(1, self._depth + 1):
            self._branch(growing, rows, sizes, level)
            if level == self._depth:
                return
            growing, segments, parents = _next_level(growing, sizes)
            if not growing:
                return
            rows = self._network.forward(segments, rows[parents], self.cache)
            sizes = [len(segment) for segment in segments]

    def _branch(
        self,
        growing: Sequence[tuple[_Context, DraftTree]],
        rows: torch.Tensor,
        sizes: Sequence[int],
        level: int,
    ) -> None:
        """Add the likeliest continuations of these rows to their trees, of which each has some rows."""
        owners = [context for (context, _), size in zip(growing, sizes, strict=True) for _ in range(size)]
        sampled = [row for row, context in enumerate(owners) if context.is_sampled]
        log_probs = self._network.log_probs(rows, level)
        most = max(tree.num_candidates for _, tree in growing)
        best, places = log_probs.topk(min(HEAD if sampled else most, log_probs.shape[1]))
        logs, tokens = best.cpu().numpy(), self._network.token_ids(places.cpu().numpy())
        if sampled:
            chosen = [owners[row] for row in sampled]
            logs[sampled], tokens[sampled] = self._winners(logs[sampled], tokens[sampled], chosen, level)
        begin = 0
        for (_, tree), size in zip(growing, sizes, strict=True):
            own = slice(begin, begin + size), slice(0, tree.num_candidates)
            tree.add(tokens[own], logs[own])
            begin += size

    def _winners(
        self,
        log_probs: NDArray[np.float32],
        token_ids: NDArray[np.int32],
        owners: Sequence[_Context],
        level: int,
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Return log chances and tokens of the likeliest samples, by the random numbers of their requests."""
        states = [context.sampler for context in owners if context.sampler is not None]
        positions = np.array([len(state.output_ids) + level - 1 for state in states], np.int64)
        vocab_size = self._network.vocab_size
        logs, tokens = likely_winners(
            log_probs, token_ids, vocab_size, states, positions, self._sharpness.value
        )
        if level == 1:
            for row, context in enumerate(owners):
                context.guess = int(tokens[row, 0]), math.exp(logs[row, 0])
        return logs, tokens


def _next_level(
    growing: Sequence[tuple[_Context, DraftTree]], sizes: Sequence[int]
) -> tuple[list[tuple[_Context, DraftTree]], list[Segment], list[int]]:
    """Return the trees that go on growing, their new nodes, and the row of each one's parent."""
    going, segments, parents, begin = [], [], [], 0
    for (context, tree), size in zip(growing, sizes, strict=True):
        level = tree.expand()
        if level is not None:
            num_earlier = len(level.parents) - len(level.token_ids)
            start = context.num_read + num_earlier
            segments.append(
                Segment(context.slot, start, level.token_ids, level.parents, num_earlier=num_earlier)
            )
            parents += [begin + row for row in level.rows]
            going.append((context, tree))
        begin += size
    return going, segments, parents


def _kept(hidden: torch.Tensor, kept: Sequence[int]) -> torch.Tensor:
    """Return the rows that stay, as a copy: a view would keep those of the whole pass."""
    if kept[-1] == len(kept) - 1:
        return hidden[: len(kept)].clone()
    return hidden[list(kept)]
