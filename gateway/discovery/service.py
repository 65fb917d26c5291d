"""The discovery service: finds the stage of a request without a tag, by its prompt.

The hot path looks up the digest of the raw prompt, then the digest of the masked prompt, then a matching
template. A prompt without a match gets the stage ``discovered``, and a background thread clusters it. The
same thread judges a sample of the answers, which may divide a cluster (``answers``). Requests of a cluster
get the stage ``discovered/<name>``, or the stage that a user named.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, Full, Queue
from typing import Any, TypeVar

from agentspec.gateway.discovery.answer_text import text_of
from agentspec.gateway.discovery.answers import Answer, prompt_of
from agentspec.gateway.discovery.cluster import Cluster, Member
from agentspec.gateway.discovery.clusters import Clusters
from agentspec.gateway.discovery.fingerprint import Fingerprint, PromptFeatures, read_features
from agentspec.gateway.discovery.sqlite_store import SqliteDiscoveryStore
from agentspec.gateway.discovery.stored import DiscoveryStore
from agentspec.gateway.settings import DiscoverySettings
from agentspec.stages import StageKey

MAX_RECENT = 4096  # cached raw prompts per tenant
MAX_WAITING = 1024
SAVE_EVERY_S = 5.0  # seconds between two saves of counts; new clusters are saved immediately
MAX_WAITING_ANSWERS = 16  # each keeps a request and the first bytes of its response
MAX_ANSWER_BYTES = 1 << 14
MAX_BODY_BYTES = 1 << 18  # a larger request body's answer is not sampled
ASK_AGAIN = 16  # clustering of an unclustered prompt is tried again after this many requests
# without a file, a fixed key gives the same names in every process; no stored digest needs a secret then
_SHARED_KEY = b"agentspec"

Result = TypeVar("Result")
logger = logging.getLogger("agentspec.gateway")


class _Tenant:
    """The clusters of one tenant, and a cache of its recent prompts."""

    def __init__(self, clusters: Clusters) -> None:
        self.clusters = clusters
        self.recent: OrderedDict[bytes, Member] = OrderedDict()
        self._version = clusters.version
        self._lock = threading.Lock()

    def recall(self, raw: bytes) -> Member | None:
        """Return the cached member of a raw prompt, or None."""
        with self._lock:
            if self._version != self.clusters.version:  # the cached members may have other clusters now
                self._version = self.clusters.version
                self.recent.clear()
            member = self.recent.get(raw)
            if member is not None:
                self.recent.move_to_end(raw)
            return member

    def remember(self, raw: bytes, member: Member) -> None:
        """Cache the member of a raw prompt."""
        with self._lock:
            self.recent[raw] = member
            if len(self.recent) > MAX_RECENT:
                self.recent.popitem(last=False)


class Listener:
    """Receives the bytes of a response while they pass, and keeps the first ones."""

    __slots__ = ("body", "features", "here", "kept", "member", "num_bytes")

    def __init__(
        self, here: _Tenant, member: Member, features: PromptFeatures, body: Mapping[str, Any]
    ) -> None:
        self.here, self.member, self.features, self.body = here, member, features, body
        self.kept: list[bytes] = []
        self.num_bytes = 0

    def __call__(self, part: bytes) -> None:
        """Add the next bytes."""
        if self.num_bytes < MAX_ANSWER_BYTES:
            self.kept.append(part[: MAX_ANSWER_BYTES - self.num_bytes])
            self.num_bytes += len(part)


class Discovery:
    """Finds the stage of requests without a tag. Thread-safe; starts its thread when it is first needed.

    Args:
        store: keeps the stages; None = the file named in the settings.
        in_background: False to leave clustering to :meth:`catch_up`.

    Raises:
        ConfigError: the file has another format, or its folder does not exist.
    """

    def __init__(
        self,
        settings: DiscoverySettings | None = None,
        store: DiscoveryStore | None = None,
        *,
        in_background: bool = True,
    ) -> None:
        self._settings = settings or DiscoverySettings()
        self._store = store or SqliteDiscoveryStore(self._settings.path, keeps_text=self._settings.keeps_text)
        self._raw_key = os.urandom(32)
        self._key = self._store.key or _SHARED_KEY
        self._tenants: dict[str, _Tenant] = {}
        self._changing = threading.Lock()  # guards clusters and store; the hot path never takes it
        self._waiting: Queue[Callable[[], object] | None] = Queue(MAX_WAITING)
        self._last: tuple[_Tenant, Member, PromptFeatures, Mapping[str, Any]] | None = None
        self._has_ended = threading.Event()
        self._starting = threading.Lock()
        self._in_background = in_background
        self._thread: threading.Thread | None = None
        self.save()  # also reads the content of the file

    def stage_of(self, tenant: str, body: Mapping[str, Any]) -> StageKey | None:
        """Return the stage of a body; None if the body has no prompt features."""
        features = read_features(body)
        if features is None:
            return None
        here = self._tenants.get(tenant) or self._met(tenant)
        raw = features.raw_digest(self._raw_key)
        member = here.recall(raw) or self._recognised(here, raw, features)
        member.count(features.opening)
        self._last = here, member, features, body
        cluster = member.cluster
        if cluster is None:
            if member.num_requests % ASK_AGAIN == 0:
                self._ask(here, member, Fingerprint.of(features, self._key))
            return here.clusters.wider
        return cluster.stage

    def listener(self, body: Mapping[str, Any], num_bytes: int) -> Listener | None:
        """Return a listener for the response to a body of ``num_bytes``; None if the sample needs no answer
        of it.

        Call this method directly after :meth:`stage_of`, in the same thread.
        """
        last, self._last = self._last, None
        if last is None or last[3] is not body or num_bytes > MAX_BODY_BYTES:
            return None
        cluster, opening = last[1].cluster, last[2].opening
        return Listener(*last) if cluster is not None and cluster.answers.wants_next(opening) else None

    def hear(self, listener: Listener) -> None:
        """Queue a response that the client received completely. Never blocks: a full queue drops it."""
        if self._waiting.qsize() < MAX_WAITING_ANSWERS:
            self._submit(partial(self._hear, listener))

    def _hear(self, listener: Listener) -> None:
        try:
            text = text_of(b"".join(listener.kept))
        except (ValueError, RecursionError):  # incomplete JSON, or the response has no text
            return
        if not text:
            return
        prompt, opening = prompt_of(listener.body), listener.features.opening
        fingerprint = Fingerprint.of(listener.features, self._key)
        listener.here.clusters.hear(
            listener.member,
            fingerprint,
            lambda static: Answer.of(text, prompt, static, opening, fingerprint.words, self._raw_key),
        )

    def clusters(self, tenant: str | None) -> list[Cluster]:
        """Return the clusters of a tenant, or of all tenants if None, those with the most requests first."""

        def found() -> list[Cluster]:
            here = [one.clusters for one in list(self._tenants.values())]
            own = [cluster for each in here if tenant in (None, each.tenant) for cluster in each]
            return sorted(own, key=lambda one: -one.num_requests)

        return self._change(found)

    def name(self, tenant: str, cluster_id: str, path: str | None) -> Cluster:
        """See :meth:`Clusters.name`. This method and the next ones save before they return."""
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
        """Cluster all waiting prompts now, and save the result."""
        while self._place_next(timeout_s=0):
            pass
        self.save()

    def save(self, *, with_counts: bool = True) -> None:
        """Write changes to the store, and read the changes of other processes."""
        self._change(lambda: None, with_counts=with_counts)

    def close(self) -> None:
        """Stop the thread, save, and close the store. No other call may follow; repeated calls do nothing."""
        self._has_ended.set()
        if self._thread is not None:
            with suppress(Full):
                self._waiting.put_nowait(None)  # wakes the thread
            self._thread.join()
        self.save()
        self._store.close()

    def _change(self, work: Callable[[], Result], *, with_counts: bool = True) -> Result:
        """Read the store, run ``work`` on the clusters, and write them. Other writers are locked out."""
        with self._changing:
            self._store.begin()
            if self._store.has_lost:
                for here in list(self._tenants.values()):
                    here.clusters.unsave()
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
        """Run the thread: cluster prompts within ``cpu_share``, save results and, less often, counts."""
        next_save_s = 0.0
        while not self._has_ended.is_set():
            try:
                begun_s = time.thread_time()
                has_placed = self._place_next(timeout_s=SAVE_EVERY_S)
                if time.monotonic() >= next_save_s:
                    self.save()
                    next_save_s = time.monotonic() + SAVE_EVERY_S
                elif has_placed and self._waiting.empty():
                    self.save(with_counts=False)
                busy_s = time.thread_time() - begun_s
                self._has_ended.wait(busy_s / self._settings.cpu_share - busy_s)
            except Exception as error:  # the error's text may contain a prompt, so the log has only its type
                logger.error("a stage could not be discovered: %s", type(error).__name__)

    def _place_next(self, timeout_s: float) -> bool:
        """Process the prompt or answer that has waited longest. Return False if none arrived in time."""
        try:
            waiting = self._waiting.get(block=timeout_s > 0, timeout=timeout_s or None)
        except Empty:
            return False
        try:
            if waiting is not None:
                with self._changing:
                    waiting()
            return waiting is not None
        finally:
            self._waiting.task_done()

    def _recognised(self, here: _Tenant, raw: bytes, features: PromptFeatures) -> Member:
        """Return the member of a prompt that is not cached, found by its masked form or by a template."""
        fingerprint = Fingerprint.of(features, self._key)
        member = here.clusters.find(fingerprint.digest)
        if member is None:
            member = Member(fingerprint.digest, fingerprint.is_system, here.clusters.match(fingerprint))
            self._ask(here, member, fingerprint)
        here.remember(raw, member)
        return member

    def _ask(self, here: _Tenant, member: Member, fingerprint: Fingerprint) -> None:
        self._submit(partial(here.clusters.place, member, fingerprint))

    def _submit(self, work: Callable[[], object]) -> None:
        with suppress(Full):  # a later request of the prompt tries again
            self._waiting.put_nowait(work)
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
