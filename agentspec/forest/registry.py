"""The trees and models of a forest by name: tenants, stage paths and sessions.

Owns names, limits and the order of use. The native core owns what the trees hold.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentspec._native import MODEL_BYTES, ForestCore
from agentspec.config import ForestConfig
from agentspec.draft import Source
from agentspec.forest.file import TreeName
from agentspec.forest.model_table import ModelTable
from agentspec.forest.sessions import SessionKey, SessionPasts, SessionTable
from agentspec.stages import MAX_SEGMENTS, StageKey

Tokens = NDArray[np.int32]
Path = tuple[str, ...]  # of a stage or of an enclosing path; () is the tenant's own tree

_MODELS_SHARE = 16  # of a budget
_FIRST_SHARE = 4  # of a budget, for a single model
_IDLE_SESSIONS_SHARE = 8  # of a tenant's budget
_PASTS_SHARE = 64  # of the total budget, in addition to it
_WEIGHT_PER_WIDER_TREE = 64
_MOST_EXPIRED = 8  # sessions per call: more than one request can leave behind


@dataclass(slots=True)
class _Tenant:
    """One tenant's group in the core and its trees, the most recently used last."""

    group: int
    trees: dict[Path, int] = field(default_factory=dict)


class RequestTrees(NamedTuple):
    """What one request drafts from: its tenant's group in the core, shared trees, and its stage's model.

    ``shared`` has (index in the core, source) of each tree, the most specific first.
    """

    group: int
    shared: list[tuple[int, Source]]
    model: int | None
    session: SessionKey | None  # None = it runs without one


class TreeSizes(NamedTuple):
    """Sums over some trees. An output counts once per tree."""

    num_bytes: int
    num_sequences: int
    num_tokens: int


class TreeRegistry:
    """Maps names to the core's indices and models, and creates them on first use. Thread-safe.

    Its lock is never held during long work of the core. Trees that lose their name are only noted:
    :meth:`drop_unwanted` frees them outside the lock.
    """

    def __init__(self, config: ForestConfig, core: ForestCore, prior: bytes | None = None) -> None:
        self._config = config
        self._core = core
        self._lock = threading.Lock()
        self._tenants: dict[str, _Tenant] = {}
        self._models = ModelTable(
            core, _most_models(config.total_limit_bytes), _most_models(self._most_tenant_bytes()), prior
        )
        self._unwanted: list[int] = []  # indices without a name
        self._sessions = SessionTable(
            config.max_sessions,
            self._most_tenant_bytes() // _IDLE_SESSIONS_SHARE,
            config.session_ttl_s,
            self._unwanted.append,
        )
        self._pasts = SessionPasts(config.total_limit_bytes // _PASTS_SHARE, config.session_ttl_s)

    # ---- one request's trees ----

    def enter(self, stage: StageKey, session: bytes | None, *, is_learned: bool) -> RequestTrees:
        """Begin a request: return its trees, as configured. Drops some sessions that were idle for too long.

        It runs without its session if the forest has no session trees, or the tenant has no room for
        another session. Without ``is_learned`` it has no model. A call that raises has begun nothing.
        """
        with self._lock:
            self._sessions.expire(_MOST_EXPIRED)
            tenant = self._tenant(stage.tenant)
            shared = self._shared(tenant, stage.path)
            name = (stage.tenant, stage.path)
            model = self._models.enter(tenant.group, name) if is_learned else None
            key = None if session is None else self._enter_session(tenant, (stage.tenant, session))
            if key is not None:
                shared.insert(0, (self._sessions.index(key), Source.SESSION))
            return RequestTrees(tenant.group, shared, model, key)

    def leave(self, session: SessionKey) -> None:
        """End a request in a session."""
        num_bytes = self._core.index_bytes(self._sessions.index(session))  # it is there: the request is in it
        with self._lock:
            self._sessions.leave(session, num_bytes)

    def shared(self, stage: StageKey) -> list[int]:
        """Return the trees of a stage, its parent paths and its tenant, as configured."""
        with self._lock:
            return [index for index, _ in self._shared(self._tenant(stage.tenant), stage.path)]

    # ---- outputs of sessions from other engines ----

    def busy_session(self, key: SessionKey, tokens: Tokens) -> list[int]:
        """Return the tree of a session with live requests. If it has none, keep the output until it has."""
        if Source.SESSION not in self._config.sources:
            return []
        with self._lock:
            index = self._sessions.busy(key)
            if index is None:
                self._pasts.add(key, tokens)
            return [] if index is None else [index]

    def has_past(self, key: SessionKey) -> bool:
        """Return True if outputs of the session wait for its tree."""
        with self._lock:
            return key in self._pasts

    def take_past(self, key: SessionKey) -> tuple[int, list[Tokens]]:
        """Return the tree of a session with live requests, and the outputs that it has to learn now."""
        with self._lock:
            return self._sessions.index(key), self._pasts.take(key)

    def drop_pasts(self, tenant: str) -> None:
        """Forget the outputs of all sessions of a tenant that wait for a tree."""
        with self._lock:
            self._pasts.drop_tenant(tenant)

    def past_bytes(self) -> int:
        """Return the bytes of outputs that wait. Drops those that have waited for too long."""
        with self._lock:
            self._pasts.drop_old()
            return self._pasts.num_bytes

    # ---- all trees ----

    def remove(self, stage: StageKey) -> int | None:
        """Remove the name of the stage's own tree. Return its index, or None if it has none."""
        with self._lock:
            tenant = self._tenants.get(stage.tenant)
            return None if tenant is None else tenant.trees.pop(stage.path, None)

    def remove_tenant(self, name: str) -> None:
        """Remove the names of all shared trees of a tenant. :meth:`drop_unwanted` frees them."""
        with self._lock:
            tenant = self._tenants.get(name)
            if tenant is None:
                return
            self._pasts.drop_tenant(name)
            self._unwanted.extend(tenant.trees.values())
            tenant.trees.clear()
            limit = self._config.session_limit_bytes
            self._sessions.empty(name, lambda: self._core.create_index(tenant.group, limit))

    def drop_models(self, tenant: str, path: Path) -> None:
        """Drop the models of a stage and of all stages below it. Live requests keep them."""
        with self._lock:
            self._models.drop(tenant, path)

    def holders(self, stage: StageKey) -> list[int]:
        """Return the trees that may hold an output of the stage, those of the tenant's sessions included."""
        with self._lock:
            tenant = self._tenants.get(stage.tenant)
            trees = tenant.trees if tenant else {}
            paths = [stage.path[:size] for size in range(len(stage.path) + 1)]
            named = [trees[path] for path in paths if path in trees]
            return named + self._sessions.indices(stage.tenant)

    def sizes(self, stage: StageKey | None = None) -> TreeSizes:
        """Return the size of the stage's own tree, or of all trees."""
        with self._lock:
            indices = self._all() if stage is None else self._own(stage)
            counts = [self._core.index_size(index) for index in indices]
            num_bytes = sum(self._core.index_bytes(index) for index in indices)
        return TreeSizes(num_bytes, sum(n for n, _ in counts), sum(n for _, n in counts))

    def trees(self) -> list[tuple[TreeName, int]]:
        """Return all named trees, each tenant's most recently used first."""
        with self._lock:
            return [
                ((name, path), index)
                for name, tenant in self._tenants.items()
                for path, index in reversed(tenant.trees.items())
            ]

    def models(self) -> list[tuple[TreeName, int]]:
        """Return the models: those that stages share first, with the path (), then stages' own ones."""
        with self._lock:
            return list(self._models)

    def add_tree(self, name: TreeName) -> int | None:
        """Return the tree of this name, or a new one as the least recently used.

        Returns None if there is no room for it, or if ``sources`` does not include its kind.
        """
        path = name[1]
        kinds = {Source.STAGE, Source.WORKFLOW} if path else {Source.TENANT}
        is_kept = not kinds.isdisjoint(self._config.sources)
        with self._lock:
            tenant = self._tenant(name[0])
            if path not in tenant.trees and is_kept and len(tenant.trees) < self._config.max_trees:
                tenant.trees = {path: self._new_tree(tenant, path), **tenant.trees}
            return tenant.trees.get(path)

    def add_model(self, name: TreeName, state: bytes | None = None) -> int | None:
        """Return the model of this name, or a new one as the least recently used; None: there is no room.

        Args:
            name: tenant and path of the stage; () = the model that stages share.
            state: of a new one; None = the prior.
        """
        with self._lock:
            return self._models.add(self._tenant(name[0]).group, name, state)

    def drop_unwanted(self) -> None:
        """Free the trees that lost their name."""
        while self._unwanted:
            with contextlib.suppress(IndexError):  # another thread may take the last one
                self._core.drop_index(self._unwanted.pop())

    # ---- the lock is held ----

    def _all(self) -> list[int]:
        named = [index for tenant in self._tenants.values() for index in tenant.trees.values()]
        return named + self._sessions.indices()

    def _own(self, stage: StageKey) -> Iterable[int]:
        tenant = self._tenants.get(stage.tenant)
        index = None if tenant is None else tenant.trees.get(stage.path)
        return () if index is None else (index,)

    def _tenant(self, name: str) -> _Tenant:
        if name not in self._tenants:
            self._tenants[name] = _Tenant(self._core.create_group(self._config.tenant_limit_bytes))
        return self._tenants[name]

    def _tree(self, tenant: _Tenant, path: Path) -> int:
        """Return the tenant's tree of this path and mark it as most recently used."""
        index = tenant.trees.pop(path, None)
        if index is None:
            index = self._new_tree(tenant, path)
        tenant.trees[path] = index
        if len(tenant.trees) > self._config.max_trees:
            self._unwanted.append(tenant.trees.pop(next(iter(tenant.trees))))
        return index

    def _shared(self, tenant: _Tenant, path: Path) -> list[tuple[int, Source]]:
        return [
            (self._tree(tenant, path[:size]), source)
            for size, source in _sources(len(path))
            if source in self._config.sources
        ]

    def _enter_session(self, tenant: _Tenant, key: SessionKey) -> SessionKey | None:
        if Source.SESSION not in self._config.sources:
            return None
        limit = self._config.session_limit_bytes
        has_entered = self._sessions.enter(key, lambda: self._core.create_index(tenant.group, limit))
        return key if has_entered else None

    def _new_tree(self, tenant: _Tenant, path: Path) -> int:
        return self._core.create_index(tenant.group, self._config.stage_limit_bytes, self._weight(path))

    def _weight(self, path: Path) -> int:
        """Return the eviction weight of a tree: it is higher if wider trees hold its outputs as well."""
        num_wider = (Source.TENANT in self._config.sources) * (path != ())
        num_wider += (Source.WORKFLOW in self._config.sources) * max(len(path) - 1, 0)
        return int(_WEIGHT_PER_WIDER_TREE ** min(num_wider, 2))

    def _most_tenant_bytes(self) -> int:
        return min(self._config.tenant_limit_bytes, self._config.total_limit_bytes)


@lru_cache(MAX_SEGMENTS + 1)
def _sources(path_size: int) -> tuple[tuple[int, Source], ...]:
    """Return (length of the path, source) of the trees above a path of this length, itself included."""
    parents = ((size, Source.WORKFLOW) for size in range(path_size - 1, 0, -1))
    return ((path_size, Source.STAGE), *parents, (0, Source.TENANT))


def _most_models(budget_bytes: int) -> int:
    """Return how many models a budget has room for. The first may take a greater part of it."""
    return max(budget_bytes // _MODELS_SHARE, min(budget_bytes // _FIRST_SHARE, MODEL_BYTES)) // MODEL_BYTES
