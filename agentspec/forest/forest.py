"""The forest: all suffix trees of one engine, by stage, session and request.

Owns the live requests. ``registry`` owns the names of the trees, ``persistence`` saves and loads them. The
native core owns tokens, counts, budgets and drafts. This package knows no HTTP and no engine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec._native import DraftMaker, DraftOptions, ForestCore, LiveRows, check_tokens
from agentspec.config import MOST_DRAFT_TOKENS, DraftConfig, ForestConfig, check_int, check_prob
from agentspec.draft import TREES, Draft, Origin
from agentspec.errors import (
    ConfigError,
    DuplicateRequestError,
    ForkedForestError,
    StageError,
    TokenError,
    UnknownRequestError,
)
from agentspec.forest import persistence
from agentspec.forest.file import SavedForest, reading, writing
from agentspec.forest.registry import RequestTrees, TreeRegistry
from agentspec.forest.sessions import SessionKey, session_hash
from agentspec.stages import StageKey

Tokens = NDArray[np.int32]

_INT32 = np.dtype(np.int32)
_NO_TOKENS: Tokens = np.empty(0, np.int32)
_MAKER = DraftMaker(Draft, TREES)


@dataclass(frozen=True, slots=True)
class ForestStats:
    """The size of one stage's tree, or of the whole forest.

    Attributes:
        tree_bytes: bytes allocated; for the whole forest, including the trees of live requests.
        num_sequences: outputs in the tree, including running ones.
        num_tokens: their tokens.
        num_requests: live requests.
    """

    tree_bytes: int = 0
    num_sequences: int = 0
    num_tokens: int = 0
    num_requests: int = 0


@dataclass(slots=True)
class _Request:
    """A live request. ``number`` is its id in the native core."""

    number: int
    stage: StageKey
    session: SessionKey | None = None
    shared: tuple[int, ...] = ()  # the trees that it drafts from, but for its own


class Forest:
    """Drafts for live requests from all trees that may help them. Safe to call from several threads.

    A request drafts from its own tree (prompt, prediction, output) and from those of its session, its stage,
    all parent paths and its tenant. The shared trees hold outputs only. Running outputs help other requests
    immediately, or from the next step on (``learns_later``). Trees of different tenants are never shared. A
    call that raises has changed nothing. Other threads must not write to the arrays until the call returns.
    In a forked process, every use of a forest of the parent raises ForkedForestError.
    """

    def __init__(
        self,
        config: ForestConfig | None = None,
        *,
        prior: bytes | None = None,
        learns_later: bool = False,
    ) -> None:
        """Make an empty forest.

        Args:
            config: limits and trees.
            prior: state of the model that each stage starts from; None = the shipped prior.
            learns_later: where drafts save few steps, :meth:`step` drafts from the trees as of the step
                before, and a thread adds the new tokens while the model runs. Requests with two to eight new
                tokens each on the mean also draft from each other's. Drafts still do not depend on time.

        Raises:
            ConfigError: the prior is not the state of a model.
        """
        if prior is not None:
            ForestCore.check_model_state(prior)
        self.config = config or ForestConfig()
        # contexts have up to `depth` tokens, so the strings counted are one longer
        self._core = ForestCore(self.config.depth + 1, self.config.total_limit_bytes, self.config.threads)
        self._step = functools.partial(self._core.step, learn_later=learns_later)
        self._trees = TreeRegistry(self.config, self._core, prior)
        self._saving = threading.Lock()  # one thread at a time reads a tree
        self._moving = threading.Lock()  # of a session's past into its tree: an erasure misses neither
        self._lock = threading.Lock()  # guards the requests; never held during long work of the core
        self._requests: dict[str, _Request] = {}
        self._num_started = 0
        self._trains_on_all = True  # the models
        _FORESTS.add(self)

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
        wait: bool = True,
        is_personal: bool = False,
        learns_at_end: bool = False,
    ) -> None:
        """Admit a request and index its prompt; O(prompt tokens), concurrently with other calls.

        Args:
            request_id: any string that no live request has.
            stage: stage of the request. It drafts from the stage's trees and adds to them.
            prompt_ids: int32 ``[n]``, may be empty.
            session: run of the workflow that the request belongs to.
            prediction_ids: int32 ``[n]``, output that the client expects (OpenAI's ``prediction``).
            draft: draft settings; None = the defaults of DraftConfig.
            learn: False keeps its output out of all shared trees.
            wait: False returns once the prompt is copied (microseconds; a millisecond if the session comes
                from another engine) and indexes it in the background. Use it inside a decode step. Until the
                index is ready, only the shared trees draft. The step at which the index takes part is not
                deterministic. All else is reproducible.
            is_personal: its output may hold a person's data (:meth:`learn_nothing_personal`).
            learns_at_end: no shared tree holds its output while it is written: :meth:`finish` says what of
                it they learn.

        Raises:
            DuplicateRequestError: a live request has this id.
            TokenError: an array is not one-dimensional int32, or holds a negative id.
            StageError, ConfigError: the stage is not a StageKey, or the session not a string.
        """
        if not isinstance(stage, StageKey):
            raise StageError(f"a stage is a StageKey, not {stage!r}")
        if session is not None and not isinstance(session, str):
            raise ConfigError(f"a session is a string or None, not {session!r}")
        prompt = _check_tokens(prompt_ids)
        prediction = _NO_TOKENS if prediction_ids is None else _check_tokens(prediction_ids)
        draft = draft or DraftConfig()
        options = _native_options(draft)
        request = self._admit(request_id, stage)
        try:
            is_learned = draft.rule == "learned" and not draft.is_off
            trees = self._enter(request, session, is_learned=is_learned, is_awaited=not wait)
            request.shared = tuple(index for index, _ in trees.shared)
            self._core.start(
                request.number,
                trees.group,
                prompt,
                prediction,
                trees.shared,
                options,
                learn=learn and not learns_at_end,
                in_background=not wait,
                model=trees.model,
                is_private=not self._trains_on_all and (is_personal or not learn),
            )
        except BaseException:
            self._dismiss(request_id)
            raise
        finally:
            self._trees.drop_unwanted()

    def wait(self, request_id: str) -> None:
        """Return once the prompt of a request that was started with ``wait=False`` is indexed.

        Raises:
            UnknownRequestError: no live request has this id.
        """
        number = self._live(request_id).number
        with _naming(request_id):
            self._core.wait(number)

    def observe(self, request_id: str, token_ids: Tokens) -> None:
        """Take newly accepted output tokens without drafting; O(tokens) per tree.

        More than a few hundred tokens are taken in pieces, with other calls in between. If another thread
        finishes the request meanwhile, the rest is dropped. The same applies to :meth:`step`, which then
        drafts nothing.

        Raises:
            UnknownRequestError: no live request has this id.
            TokenError: not one-dimensional int32, or a negative id.
        """
        number = self._live(request_id).number
        tokens = np.ascontiguousarray(_check_array(token_ids))
        with _naming(request_id):
            self._core.observe(number, tokens)

    def draft(self, request_id: str, max_tokens: int = 32, min_prob: float = 0.0) -> Draft:
        """Draft for one request in its present state. Raises as :meth:`step`."""
        return self.step([(request_id, _NO_TOKENS)], max_tokens, min_prob)[0]

    def step(
        self, updates: Iterable[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        """Take each request's newly accepted tokens and draft for the whole batch, in one native call.

        Args:
            updates: (request id, int32 ``[n]``, may be empty), each request at most once.
            max_tokens: most tokens per draft; a request's own DraftConfig may set a lower limit.
            min_prob: present cost of a draft token, higher on a loaded server. A request's own DraftConfig
                may set a higher one.

        Returns:
            One draft per update, in order. A draft is empty if there is no proposal.

        Raises:
            UnknownRequestError: no live request has one of the ids.
            DuplicateRequestError: an id occurs twice.
            TokenError: an array is not one-dimensional int32, or holds a negative id.
            ConfigError: max_tokens is negative or not an integer, or min_prob is not between 0 and 1.
        """
        return self._drafts(self._step, updates, max_tokens, min_prob)

    def draft_after(
        self, assumed: Iterable[tuple[str, Tokens]], max_tokens: int = 32, min_prob: float = 0.0
    ) -> list[Draft]:
        """Draft as if some tokens followed each request's output, e.g. those of a model's draft.

        Nothing changes, and the learned rule learns nothing from these drafts. Arguments, result and errors
        are those of :meth:`step`.
        """
        return self._drafts(self._core.draft_after, assumed, max_tokens, min_prob)

    def rows(self) -> LiveRows:
        """Return the rows of an engine that keeps its batch as a matrix: :meth:`step` without Python per row.

        A background thread adds the tokens of a step to the shared trees while the model runs. Calls with
        results that depend on them wait for it. Statistics may be a step behind (:meth:`settle`).
        """
        return LiveRows(self._core)

    def number(self, request_id: str) -> int:
        """Return the number of a live request in :meth:`rows`. Raises UnknownRequestError."""
        return self._live(request_id).number

    def start_threads(self) -> None:
        """Start all threads now, on the processor cores of this thread.

        Otherwise they start when they are first needed, on the cores of the thread that needs them.
        """
        self._core.start_threads()

    def settle(self) -> None:
        """Return once the trees have learned all tokens of past steps, if a thread does so later."""
        self._core.settle()

    def finish(self, request_id: str, learn: bool = True, output: Tokens | None = None) -> None:
        """Forget a live request. Its output stays in the shared trees, or is withdrawn if not ``learn``.

        Args:
            output: int32 ``[n]``, what the shared trees learn in place of the output so far. That of a
                request that ``learns_at_end`` is in none of them yet.

        Raises:
            UnknownRequestError: no live request has this id.
            TokenError: the output is not one-dimensional int32, or holds a negative id.
        """
        request = self._live(request_id)
        number = request.number
        if output is not None:
            if learn:
                shared = np.array(request.shared, np.uint64)
                self._core.learn(shared, _check_tokens(output))
            learn = False
        # the core first: it refuses a request that another thread is just starting or has just finished
        try:
            self._core.finish(number, learn)
        except UnknownRequestError:
            raise _unknown(request_id) from None
        except BaseException:
            self._dismiss(request_id)
            raise
        self._dismiss(request_id)

    # ---- trees ----

    def learn(
        self,
        stage: StageKey,
        token_ids: Tokens,
        uses: int = 1,
        origin: Origin = Origin.LOCAL,
        session: bytes = b"",
    ) -> None:
        """Add one past output to the trees of a stage, its parents and its tenant.

        Args:
            stage: stage of the output.
            token_ids: int32 ``[n]``. With a session, they must not change any more.
            uses: how often it occurred.
            origin: where it was written.
            session: :func:`session_hash` of a run that other engines serve. If it has live requests here, its
                tree learns the output, else it does so, as one of the fleet's, when the next one starts.

        Raises:
            TokenError: not one-dimensional int32, or a negative id.
            ConfigError: ``uses`` is not between 1 and 65535.
        """
        tokens = _check_tokens(token_ids)
        self._core.learn(np.array(self._trees.shared(stage), np.uint64), tokens, uses, origin)
        if session:
            with self._moving:
                trees = self._trees.busy_session((stage.tenant, session), tokens)
            self._core.learn(np.array(trees, np.uint64), tokens, uses, origin)
        self._trees.drop_unwanted()

    def forget(self, stage: StageKey, token_ids: Tokens) -> None:
        """Remove an output, and all equal ones, from every shared tree that may hold it.

        These are the trees of the stage, its parents, its tenant and the tenant's sessions. What remains of
        an output that lost its end near a budget is removed, too. Running outputs stay. The past of the
        tenant's sessions that have no tree here is forgotten. Other calls run in between.

        Raises:
            TokenError: not one-dimensional int32, or a negative id.
        """
        tokens = _check_tokens(token_ids)
        with self._moving:
            self._trees.drop_pasts(stage.tenant)
            holders = self._trees.holders(stage)
        self._core.forget(np.array(holders, np.uint64), tokens)

    def model_states(self) -> list[bytes]:
        """Return the states of the acceptance models: of stages, and those that several of them share."""
        return [saved.state for saved in persistence.models(self._core, self._trees)]

    def learn_nothing_personal(self) -> None:
        """From now on, requests that are personal, or do not learn, train no acceptance model.

        An engine with a corpus needs it: what a model has learned of whom can't be erased from it.
        """
        self._trains_on_all = False

    def forget_models(self, tenant: str, path: tuple[str, ...]) -> None:
        """Forget what the models of a stage, and of all stages below it, have learned. ``()`` means all.

        The model that the tenant's stages share is forgotten as a whole. Live requests keep their model
        until they end.
        """
        self._trees.drop_models(tenant, path)

    def evict(self, stage: StageKey) -> None:
        """Forget everything that this stage's own tree has learned. Parents and tenant keep theirs.

        Live requests of the stage continue without the tree, and it does not learn their later output.
        """
        index = self._trees.remove(stage)
        if index is not None:
            self._core.drop_index(index)

    def evict_tenant(self, tenant: str) -> None:
        """Forget everything that a tenant's shared trees have learned, those of its sessions included.

        Live requests continue without these trees, which do not learn their later output.
        """
        with self._moving:
            self._trees.remove_tenant(tenant)
        self._trees.drop_unwanted()

    def memory_bytes(self, stage: StageKey | None = None) -> int:
        """Return the bytes allocated for a stage's tree (0 if it has none), or for the whole forest."""
        return self._all_bytes() if stage is None else self._trees.sizes(stage).num_bytes

    def stats(self, stage: StageKey | None = None) -> ForestStats:
        """Return the size of a stage's tree, or of the whole forest (an output counts once per tree)."""
        sizes = self._trees.sizes(stage)
        with self._lock:
            if stage is None:
                num_requests = len(self._requests)
            else:
                num_requests = sum(live.stage == stage for live in self._requests.values())
        tree_bytes = self._all_bytes() if stage is None else sizes.num_bytes
        return ForestStats(tree_bytes, sizes.num_sequences, sizes.num_tokens, num_requests)

    # ---- files ----

    def save(self, path: str | os.PathLike[str], *, vocabulary: str) -> SavedForest:
        """Write the finished outputs of all trees, and the state of the learned rule, to a file.

        Can run concurrently with decode steps. A tree is read some 16,000 tokens at a time, with other calls
        in between. Outputs that finish meanwhile may or may not be saved. Running outputs and sessions are
        not saved. The complete file replaces an older one. Only its owner may read it.

        Args:
            path: file, in an existing folder.
            vocabulary: name of the tokenizer that the token ids belong to.

        Raises:
            ForestFileError: the system refuses, or another save to this file is running. An older file stays.
            ConfigError: the vocabulary is not a string, or empty.
        """
        _check_vocabulary(vocabulary)
        with self._saving, writing(path, vocabulary) as file:
            return persistence.save(file, self._core, self._trees)

    def load(self, path: str | os.PathLike[str], *, vocabulary: str) -> SavedForest:
        """Add the content of a file that :meth:`save` wrote. Can run concurrently with other calls.

        The outputs are learned again, tree by tree, each from its oldest to its youngest. If a budget is
        too small for all, the youngest stay. Drafts equal those of the saved forest, with one exception:
        among equally frequent continuations another may be preferred, if outputs grew in parallel or were
        evicted or withdrawn before.

        New trees and models count as used less recently than all present ones. They are left out if
        ``max_trees`` or the models' share is full, or if ``sources`` does not include their kind. A model
        that is present stays unchanged.

        Args:
            path: file to load. It is read twice: it is verified completely before anything changes.
            vocabulary: name of the tokenizer; it must match the file's.

        Returns:
            The amount learned again, and the size of the file.

        Raises:
            ForestFileError: the file can't be read, or is not a forest.
            UnusableForestError: it is damaged, or of another format or vocabulary.
            ConfigError: the vocabulary is not a string, or empty.
        """
        _check_vocabulary(vocabulary)
        with reading(path, vocabulary) as file:
            return persistence.load(file, self._core, self._trees)

    def check_integrity(self) -> None:
        """Recount every tree. Raises AssertionError if an invariant is broken. For tests."""
        self._core.check_integrity()

    # ---- live requests ----

    def _admit(self, request_id: str, stage: StageKey) -> _Request:
        with self._lock:
            if request_id in self._requests:
                raise DuplicateRequestError(f"request {request_id!r} is live already")
            request = _Request(self._num_started, stage)
            self._num_started += 1
            self._requests[request_id] = request
            return request

    def _all_bytes(self) -> int:
        return self._core.memory_bytes() + self._trees.past_bytes()

    def _enter(
        self, request: _Request, session: str | None, *, is_learned: bool, is_awaited: bool
    ) -> RequestTrees:
        """Return a request's trees. A session that other engines have served brings its outputs along."""
        key = None if session is None else session_hash(request.stage.tenant, session)
        trees = self._trees.enter(request.stage, key, is_learned=is_learned)
        request.session = trees.session
        if trees.session is not None and self._trees.has_past(trees.session):
            self._learn_past(trees.session, is_awaited=is_awaited)
        return trees

    def _learn_past(self, session: SessionKey, *, is_awaited: bool) -> None:
        """Add the outputs that other engines have written for a session to its tree here.

        Without memory the rest is left out: that costs drafts, and no request.
        """
        with self._moving, contextlib.suppress(MemoryError):
            index, past = self._trees.take_past(session)
            for tokens in past:
                self._core.learn(np.array([index], np.uint64), tokens, 1, Origin.FLEET, is_awaited)

    def _dismiss(self, request_id: str) -> None:
        with self._lock:
            session = self._requests.pop(request_id).session
        if session is not None:
            self._trees.leave(session)
        self._trees.drop_unwanted()

    def _live(self, request_id: str) -> _Request:
        request = self._requests.get(request_id)
        if request is None:
            raise _unknown(request_id)
        return request

    def _drafts(
        self,
        make: Callable[..., list[Draft] | None],
        updates: Iterable[tuple[str, Tokens]],
        max_tokens: int,
        min_prob: float,
    ) -> list[Draft]:
        check_int("max_tokens", max_tokens, 0, MOST_DRAFT_TOKENS)
        check_prob("min_prob", min_prob)
        batch = list(updates)
        drafts = make(self._requests, batch, max_tokens, min_prob, _MAKER)
        if drafts is None:
            drafts = make(self._requests, self._checked(batch), max_tokens, min_prob, _MAKER)
        if drafts is None:
            raise UnknownRequestError("another thread is just starting or finishing a request of the batch")
        return drafts

    def _checked(self, updates: list[tuple[str, Tokens]]) -> list[tuple[str, Tokens]]:
        """Return the updates as contiguous arrays. Raises an error if one is invalid."""
        for update in updates:
            if not isinstance(update, tuple) or len(update) != 2:
                raise ConfigError(f"an update is a pair of request id and token ids, not {update!r}")
        for request_id, count in Counter(request_id for request_id, _ in updates).items():
            self._live(request_id)
            if count > 1:
                raise DuplicateRequestError(f"request {request_id!r} occurs twice in one step")
        return [(request_id, np.ascontiguousarray(_check_array(tokens))) for request_id, tokens in updates]


class _InheritedForest(Forest):
    """A forest that was made before this process was forked. Every use of it raises an error."""

    def __getattribute__(self, name: str) -> Any:
        raise ForkedForestError(
            f"this forest is the parent process's: make one after the fork to use {name!r}"
        )


_FORESTS: weakref.WeakSet[Forest] = weakref.WeakSet()  # of this process


def _disown_forests() -> None:
    for forest in _FORESTS:
        forest.__class__ = _InheritedForest
    _FORESTS.clear()


os.register_at_fork(after_in_child=_disown_forests)


@contextlib.contextmanager
def _naming(request_id: str) -> Iterator[None]:
    """Replace the core's number in UnknownRequestError by the request's name."""
    try:
        yield
    except UnknownRequestError:
        raise _unknown(request_id) from None


def _unknown(request_id: str) -> UnknownRequestError:
    return UnknownRequestError(f"no live request has the id {request_id!r}")


def _check_vocabulary(vocabulary: object) -> None:
    if not isinstance(vocabulary, str) or not vocabulary:
        raise ConfigError(f"a vocabulary is named by a string that is not empty, not {vocabulary!r}")


@functools.lru_cache(64)
def _native_options(draft: DraftConfig) -> DraftOptions:
    max_tokens = 0 if draft.is_off else draft.max_tokens
    return DraftOptions(
        draft.mode == "tree", max_tokens, draft.alpha, draft.min_match, draft.min_prob, draft.doubt
    )


def _check_array(token_ids: Tokens) -> Tokens:
    if not isinstance(token_ids, np.ndarray) or token_ids.dtype != _INT32 or token_ids.ndim != 1:
        shown = (
            f"{token_ids.dtype} {token_ids.shape}" if isinstance(token_ids, np.ndarray) else repr(token_ids)
        )
        raise TokenError(f"token ids are a one-dimensional int32 array, not {shown}")
    if not token_ids.flags.aligned:
        raise TokenError(
            f"token ids are aligned in memory, not at {token_ids.ctypes.data:#x}: copy the array"
        )
    return token_ids


def _check_tokens(token_ids: Tokens) -> Tokens:
    tokens = np.ascontiguousarray(_check_array(token_ids))
    check_tokens(tokens)
    return tokens
