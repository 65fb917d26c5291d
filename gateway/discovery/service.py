"""Stages of requests that carry no tag: found by what their prompts have in common.

The hot path is a look-up by a digest of what was seen before, or of the masked prompt, or a template that
fits. What is none of these goes to the stage ``discovered``, and to a thread that finds out what it is.
Whatever has a cluster goes to ``discovered/<name>``, or to the stage that a person named.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import Any, TypeVar

from agentspec.gateway.discovery.cluster import Cluster, Member
from agentspec.gateway.discovery.clusters import Clusters
from agentspec.gateway.discovery.fingerprint import Fingerprint, PromptFeatures, read_clues
from agentspec.gateway.discovery.store import DiscoveryStore
from agentspec.gateway.settings import DiscoverySettings
from agentspec.stages import StageKey

MAX_RECENT = 4096  # prompts of a tenant that are known as they come
MAX_WAITING = 1024
ASK_AGAIN = 16  # requests after which a prompt without a cluster may have one, there being room by now
# without a file names must be the same in every process: nothing is kept that the digests would have to
# protect
_SHARED_KEY = b"agentspec"

Result = TypeVar("Result")
logger = logging.getLogger("agentspec.gateway")


class _Tenant:
    """What one tenant's requests are looked up in."""

    def __init__(self, clusters: Clusters) -> None:
        self.clusters = clusters
        self.recent: OrderedDict[bytes, Member] = OrderedDict()
        self._version = clusters.version
        self._lock = threading.Lock()

    def recall(self, raw: bytes) -> Member | None:
        """The member that a prompt, just as it is, turned out to be."""
        with self._lock:
            if self._version != self.clusters.version:  # they may be others' by now
                self._version = self.clusters.version
                self.recent.clear()
            member = self.recent.get(raw)
            if member is not None:
                self.recent.move_to_end(raw)
            return member

    def remember(self, raw: bytes, member: Member) -> None:
        """That the prompt is this member."""
        with self._lock:
            self.recent[raw] = member
            if len(self.recent) > MAX_RECENT:
                self.recent.popitem(last=False)


class Discovery:
    """Finds stages for requests that name none. Safe from several threads; its own starts when it is needed.

    Args:
        in_background: False: what is to be found out waits for :meth:`catch_up`.

    Raises:
        ConfigError: the file is none of ours, or its folder is not there.
    """

    def __init__(self, settings: DiscoverySettings | None = None, *, in_background: bool = True) -> None:
        self._settings = settings or DiscoverySettings()
        self._store = DiscoveryStore(self._settings.path, keeps_text=self._settings.keeps_text)
        self._raw_key = os.urandom(32)
        self._key = self._store.key or _SHARED_KEY
        self._tenants: dict[str, _Tenant] = {}
        self._changing = threading.Lock()  # clusters and store; never held by the hot path
        self._waiting: Queue[tuple[_Tenant, Member, Fingerprint] | None] = Queue(MAX_WAITING)
        self._has_ended = threading.Event()
        self._starting = threading.Lock()
        self._in_background = in_background
        self._thread: threading.Thread | None = None
        self.save()  # reads what the file holds

    def stage_of(self, tenant: str, body: Mapping[str, Any]) -> StageKey | None:
        """The stage by what the body asks; None if it says nothing to go by."""
        clues = read_clues(body)
        if clues is None:
            return None
        here = self._tenants.get(tenant) or self._met(tenant)
        raw = clues.raw_digest(self._raw_key)
        member = here.recall(raw) or self._recognised(here, raw, clues)
        member.count(clues.opening)
        cluster = member.cluster
        if cluster is None:
            if member.num_requests % ASK_AGAIN == 0:
                self._ask(here, member, Fingerprint.of(clues, self._key))
            return here.clusters.wider
        return cluster.stage

    def clusters(self, tenant: str | None) -> list[Cluster]:
        """A tenant's clusters, those with the most requests first; of all tenants if it is None."""

        def found() -> list[Cluster]:
            here = [one.clusters for one in list(self._tenants.values())]
            own = [cluster for each in here if tenant in (None, each.tenant) for cluster in each]
            return sorted(own, key=lambda one: -one.num_requests)

        return self._change(found)

    def name(self, tenant: str, cluster_id: str, path: str | None) -> Cluster:
        """See :meth:`Clusters.name`. This and what follows is in the file when it returns."""
        return self._change(lambda: self._met(tenant).clusters.name(cluster_id, path))

    def pin(self, tenant: str, cluster_id: str, is_pinned: bool) -> Cluster:
        """See :meth:`Clusters.pin`."""
        return self._change(lambda: self._met(tenant).clusters.pin(cluster_id, is_pinned))

    def merge(self, tenant: str, cluster_id: str, into: str) -> Cluster:
        """See :meth:`Clusters.merge`."""
        return self._change(lambda: self._met(tenant).clusters.merge(cluster_id, into))

    def split(self, tenant: str, cluster_id: str, digests: Sequence[str] | None = None) -> list[Cluster]:
        """See :meth:`Clusters.split`."""
        return self._change(lambda: self._met(tenant).clusters.split(cluster_id, digests))

    def catch_up(self) -> None:
        """Find out now whatever is waiting to be, and write it to the file."""
        while self._place_next(timeout_s=0):
            pass
        self.save()

    def save(self, *, with_counts: bool = True) -> None:
        """Write what is new to the file, and read what others wrote."""
        self._change(lambda: None, with_counts=with_counts)

    def close(self) -> None:
        """Write what was not written yet, and end the thread. The last call; more do nothing."""
        self._has_ended.set()
        if self._thread is not None:
            with suppress(Full):
                self._waiting.put_nowait(None)  # wakes it
            self._thread.join()
        self.save()
        self._store.close()

    def _change(self, work: Callable[[], Result], *, with_counts: bool = True) -> Result:
        """Do this to the clusters as the file has them, with nobody else writing meanwhile."""
        with self._changing:
            self._store.begin()
            try:
                for other, kept in (self._store.news() or {}).items():
                    self._met(other).clusters.adopt(kept.clusters, kept.refused)
                result = work()
            except BaseException:
                self._store.rollback()
                raise
            self._store.commit(
                [here.clusters for here in list(self._tenants.values())], with_counts=with_counts
            )
            return result

    def _work(self) -> None:
        """The thread: place what waits, at leisure; save what was found, and at times the counts."""
        next_save_s = 0.0
        while not self._has_ended.is_set():
            try:
                begun_s = time.thread_time()
                has_placed = self._place_next(timeout_s=self._settings.save_every_s)
                if time.monotonic() >= next_save_s:
                    self.save()
                    next_save_s = time.monotonic() + self._settings.save_every_s
                elif has_placed and self._waiting.empty():
                    self.save(with_counts=False)
                busy_s = time.thread_time() - begun_s
                self._has_ended.wait(busy_s / self._settings.cpu_share - busy_s)
            except Exception as error:  # not its text: that may be the prompt's
                logger.error("a stage could not be discovered: %s", type(error).__name__)

    def _place_next(self, timeout_s: float) -> bool:
        """Find the cluster of the prompt that waits the longest; False if none came in time."""
        try:
            waiting = self._waiting.get(block=timeout_s > 0, timeout=timeout_s or None)
        except Empty:
            return False
        try:
            if waiting is not None:
                here, member, fingerprint = waiting
                with self._changing:
                    here.clusters.place(member, fingerprint)
            return waiting is not None
        finally:
            self._waiting.task_done()

    def _recognised(self, here: _Tenant, raw: bytes, clues: PromptFeatures) -> Member:
        """The member of a prompt that is new as it is, but maybe not when it is masked."""
        fingerprint = Fingerprint.of(clues, self._key)
        member = here.clusters.find(fingerprint.digest)
        if member is None:
            member = Member(fingerprint.digest, fingerprint.is_system, here.clusters.match(fingerprint))
            self._ask(here, member, fingerprint)
        here.remember(raw, member)
        return member

    def _ask(self, here: _Tenant, member: Member, fingerprint: Fingerprint) -> None:
        with suppress(Full):  # it will come again
            self._waiting.put_nowait((here, member, fingerprint))
        if self._thread is None and self._in_background and not self._has_ended.is_set():
            self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="agentspec-discovery", daemon=True)
                self._thread.start()

    def _met(self, tenant: str) -> _Tenant:
        here = self._tenants.get(tenant)
        if here is None:
            here = self._tenants.setdefault(tenant, _Tenant(Clusters(tenant, self._settings.max_clusters)))
        return here
