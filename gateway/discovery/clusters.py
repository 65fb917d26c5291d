"""The clusters of one tenant, and the changes that users made to them.

This module handles no threads, files or bodies. The rules:

* A new system prompt immediately gets a cluster of its own: most agents' prompts are the same each time.
* A prompt that was seen in few conversations is *unclustered*. When enough unclustered prompts are similar,
  the words that they have in common form a template, and they form one cluster. The required number grows
  with their difference.
* A slot of a template with few values, all of which recur, identifies the stage. Each of its values gets a
  cluster of its own.
* A prompt that recurs in several conversations keeps its own cluster and is not merged with others. So two
  roles that differ in one word stay two stages, and a stage in use keeps its name.
* Discovery does not change clusters that users named, pinned, merged or split.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

from agentspec.errors import RequestError
from agentspec.gateway.discovery.candidates import UnclusteredPrompts
from agentspec.gateway.discovery.cluster import Cluster, Member
from agentspec.gateway.discovery.fingerprint import Fingerprint
from agentspec.gateway.discovery.naming import slug
from agentspec.gateway.discovery.templates import Slots, Template
from agentspec.gateway.errors import UnknownClusterError
from agentspec.stages import StageKey

WIDER_STAGE = "discovered"  # stage of requests without a cluster, and parent of the discovered stages
MAX_FOUNDERS = 16
MAX_MEMBERS = 64  # found by digest; further prompts are found by their template
MAX_TEXT_CHARS = 2000
IDLE_S = 3600.0


class Clusters:
    """All clusters of one tenant, at most ``max_clusters``.

    Any thread may call :meth:`find` and :meth:`match` while one thread makes changes.

    Attributes:
        version: number that changes whenever the cluster of non-member prompts may change.
        changed: clusters with unsaved changes.
        gone: ids of removed clusters.
        refused: templates that users split.
    """

    def __init__(self, tenant: str, max_clusters: int) -> None:
        self.tenant = tenant
        self.wider = StageKey(tenant, (WIDER_STAGE,))
        self.version = 0
        self.changed: set[Cluster] = set()
        self.gone: set[str] = set()
        self.refused: list[tuple[bytes, Template]] = []
        self._max_clusters = max_clusters
        self._clusters: dict[str, Cluster] = {}
        self._members: dict[bytes, Member] = {}
        self._matching: dict[bytes, tuple[tuple[Template, Cluster], ...]] = {}  # by shape
        self._unclustered = UnclusteredPrompts()
        self._slots: dict[Template, Slots] = {}

    def __iter__(self) -> Iterator[Cluster]:
        return iter(list(self._clusters.values()))

    def __len__(self) -> int:
        return len(self._clusters)

    def get(self, cluster_id: str) -> Cluster | None:
        """Return the cluster with this id, or None."""
        return self._clusters.get(cluster_id)

    def find(self, digest: bytes) -> Member | None:
        """Return the member with this digest, or None."""
        return self._members.get(digest)

    def match(self, fingerprint: Fingerprint) -> Cluster | None:
        """Return the cluster of the template with the most words in the prompt, or None."""
        found = self._match(fingerprint)
        return found and found[1]

    def place(self, member: Member, fingerprint: Fingerprint) -> None:
        """Find or create the cluster of a new prompt, which may have to wait for similar ones."""
        known = self._members.get(member.digest)
        if known is not None:
            member.cluster = known.cluster
            return
        is_new = member.digest not in self._unclustered
        if is_new:
            self._unclustered.note_ending(fingerprint)
        found = self._match(fingerprint)
        cluster = found and found[1]
        if found and is_new:
            cluster = self._noted(*found, fingerprint)
        if cluster is None and is_new:
            cluster = self._opened(member, fingerprint)
        if cluster is None and fingerprint.is_system:
            cluster = self._begun(fingerprint)
        if cluster is not None:
            self._join(cluster, member)

    def name(self, cluster_id: str, path: str | None) -> Cluster:
        """Assign the cluster's requests to the stage ``path``; None = to its own stage again.

        Raises:
            StageError: the path is invalid.
            UnknownClusterError: there is no such cluster.
        """
        cluster = self._known(cluster_id)
        stage = cluster.own_stage if path is None else StageKey.parse(path, self.tenant)
        cluster.stage, cluster.is_named = stage, path is not None
        self.changed.add(cluster)
        return cluster

    def pin(self, cluster_id: str, is_pinned: bool) -> Cluster:
        """Pin or unpin a cluster. Pinned ones are never evicted. Raises UnknownClusterError."""
        cluster = self._known(cluster_id)
        cluster.is_pinned = is_pinned
        self.changed.add(cluster)
        return cluster

    def merge(self, cluster_id: str, into: str) -> Cluster:
        """Merge one cluster into another, which keeps its stage.

        Raises:
            UnknownClusterError: there is no such cluster.
            RequestError: both ids name the same cluster.
        """
        cluster, target = self._known(cluster_id), self._known(into)
        if cluster is target:
            raise RequestError(f"cluster {cluster_id!r} can't be merged into itself", param="into")
        self._absorb(target, cluster)
        target.is_user_edited = True
        return target

    def split(self, cluster_id: str, digests: Sequence[str] | None = None) -> list[Cluster]:
        """Split a cluster: move every fingerprint to its own cluster, or the given ones to a new cluster.

        The cluster keeps the fingerprint with the most requests, or those that were not given.

        Raises:
            UnknownClusterError: there is no such cluster.
            RequestError: a fingerprint is unknown, none would stay or leave, or there would be too many
                clusters.
        """
        cluster = self._known(cluster_id)
        leaving = self._leaving(cluster, digests)
        groups = [[member] for member in leaving] if digests is None else [leaving]
        if len(self._clusters) + len(groups) > self._max_clusters:
            raise RequestError(
                f"splitting {cluster_id!r} makes more than {self._max_clusters} clusters: merge some first",
                code="too_many_clusters",
            )
        if digests is None:
            self.refused.extend(cluster.templates)
            cluster.templates.clear()
        cluster.is_user_edited = True
        parts = [self._part(cluster, group) for group in groups]
        self.changed.add(cluster)
        self._index_templates()
        return [cluster, *parts]

    def adopt(self, kept: Mapping[str, Cluster], refused: Sequence[tuple[bytes, Template]]) -> None:
        """Apply changes that other processes wrote. ``kept`` is all clusters in the file, by id.

        Unsaved clusters of this process stay. Edits by users in the file take precedence.
        """
        self.refused = list(refused)
        for cluster in kept.values():
            if cluster.id in self.gone and cluster.is_free:
                continue  # removed here, but not yet in the file
            self.gone.discard(cluster.id)
            self._adopt_one(cluster)
        for cluster in self:
            if cluster.id not in kept and cluster.is_saved:
                self.drop(cluster)
                self.gone.discard(cluster.id)  # already removed from the file

    def _adopt_one(self, kept: Cluster) -> None:
        here = self._clusters.get(kept.id)
        if here is None:
            self._restore(kept)
            return
        here.num_requests += kept.num_saved - here.num_saved
        here.num_saved = kept.num_saved
        here.stage, here.own_stage = kept.stage, kept.own_stage
        here.is_named, here.is_pinned, here.is_user_edited = (
            kept.is_named,
            kept.is_pinned,
            kept.is_user_edited,
        )
        if not (kept.templates or kept.is_user_edited):  # the file may keep no text
            kept.templates = here.templates
        here.is_saved = True
        is_theirs = kept.is_user_edited or here not in self.changed
        if is_theirs and _contents(here) != _contents(kept):
            kept.num_requests = here.num_requests
            kept.text = kept.text or here.text
            self._restore(kept)

    def _restore(self, cluster: Cluster) -> None:
        """Replace the cluster with the same id by a saved one."""
        before = self._clusters.pop(cluster.id, None)
        if before is not None:
            self._forget_members(before)
            self.changed.discard(before)
        self._clusters[cluster.id] = cluster
        self._members.update(cluster.members)
        self._index_templates()

    def unsave(self) -> None:
        """Note that nothing is stored any more: all is written again, unless another process has done so."""
        self.gone.clear()
        for cluster in self:
            cluster.is_saved = False
            self.changed.add(cluster)

    def drop(self, cluster: Cluster) -> None:
        """Remove a cluster. Its prompts count as new ones later."""
        del self._clusters[cluster.id]
        self.changed.discard(cluster)
        if cluster.is_saved:
            self.gone.add(cluster.id)
        self._forget_members(cluster)
        if cluster.templates:
            self._index_templates()

    def _match(self, fingerprint: Fingerprint) -> tuple[Template, Cluster] | None:
        candidates = self._matching.get(self._unclustered.shape(fingerprint))
        if not candidates:
            return None
        text = f" {fingerprint.words} "
        scores = [template.num_words_in(text) for template, _ in candidates]
        best = max(scores)
        return candidates[scores.index(best)] if best else None

    def _noted(self, template: Template, cluster: Cluster, fingerprint: Fingerprint) -> Cluster:
        """Return the cluster of a prompt that fits ``template``, after recording the values of its slots."""
        slots = self._slots.setdefault(template, Slots())
        slots.note(template.values_in(f" {fingerprint.words} "))
        deciding_slot = slots.deciding_slot() if cluster.is_free else None
        if deciding_slot is None or len(self._clusters) + len(deciding_slot[1]) > self._max_clusters:
            return cluster
        self._slots[template] = Slots()
        self._refine(template, cluster, self._unclustered.shape(fingerprint), *deciding_slot)
        return self.match(fingerprint) or cluster

    def _refine(
        self, template: Template, cluster: Cluster, shape: bytes, place: int, values: Sequence[str]
    ) -> None:
        """Create a cluster for each of these values of a slot. Prompts with other values stay."""
        for value in values:
            narrower = template.with_value(place, value)
            seed = blake2b(narrower.text.encode() + shape, digest_size=16).digest()
            words = slug((value, template.text))
            part = self._clusters.get(seed.hex()[:12]) or self._added(seed, words, narrower.text)
            part.templates.append((shape, narrower))
        self._forget_members(cluster)  # they fit one of the narrower templates
        cluster.members.clear()
        self.changed.add(cluster)
        self._index_templates()

    def _forget_members(self, cluster: Cluster) -> None:
        for digest, member in cluster.members.items():
            if self._members.get(digest) is member:
                del self._members[digest]
            member.cluster = None
            self._unclustered.remove(digest)

    def _opened(self, member: Member, fingerprint: Fingerprint) -> Cluster | None:
        """Create a cluster from this prompt and its neighbours; None if too few or too different."""
        neighbours, shape = self._unclustered.add(member, fingerprint), self._unclustered.shape(fingerprint)
        if not neighbours:
            return None
        template = Template.of(
            [fingerprint.words, *(one.fingerprint.words for one in neighbours[:MAX_FOUNDERS])]
        )
        if template is None or self._is_refused(fingerprint, shape) or not self._has_room():
            return None
        return self._founded(template, fingerprint, shape)

    def _is_refused(self, fingerprint: Fingerprint, shape: bytes) -> bool:
        text = f" {fingerprint.words} "
        return any(other == shape and one.num_words_in(text) for other, one in self.refused)

    def _founded(self, template: Template, fingerprint: Fingerprint, shape: bytes) -> Cluster:
        words = slug((template.text, *fingerprint.tools, fingerprint.schema))
        seed = blake2b(words.encode() + shape, digest_size=16).digest()
        cluster = self._clusters.get(seed.hex()[:12])
        if cluster is None or cluster.templates or not cluster.is_free:  # else it was saved without text
            cluster = self._added(fingerprint.digest if cluster else seed, words, template.text)
        cluster.templates.append((shape, template))
        for prompt in self._unclustered:
            text = f" {prompt.fingerprint.words} "
            if prompt.shape == shape and prompt.is_unclustered and template.num_words_in(text):
                self._unclustered.remove(prompt.member.digest)
                before = prompt.member.cluster
                if before is not None:
                    self._absorb(cluster, before)
                else:
                    self._join(cluster, prompt.member)
        self._index_templates()
        return cluster

    def _begun(self, fingerprint: Fingerprint) -> Cluster | None:
        """Return the cluster of this single prompt, or create it; None if there is no room."""
        known = self._clusters.get(fingerprint.digest.hex()[:12])
        if known is not None:
            return known
        if not self._has_room():
            return None
        words = slug((fingerprint.words, *fingerprint.tools, fingerprint.schema))
        return self._added(fingerprint.digest, words, fingerprint.words)

    def _has_room(self) -> bool:
        """True if there is room for another cluster, after evicting a little-used one if needed.

        The candidates are clusters that are not recurring, else those idle for an hour; the one idle longest
        is evicted. A stage in use is never evicted for a new one: its tree is worth more, and two stages that
        evict each other would both lose their trees.
        """
        if len(self._clusters) < self._max_clusters:
            return True
        idle_since_s = time.time() - IDLE_S
        free = [one for one in self._clusters.values() if one.is_free]
        losable = [one for one in free if not one.is_recurring] or [
            one for one in free if one.last_seen_s < idle_since_s
        ]
        if losable:
            self.drop(min(losable, key=lambda one: one.last_seen_s))
        return bool(losable)

    def _added(self, seed: bytes, words: str, text: str) -> Cluster:
        stage = self._free_stage(words, seed.hex())
        cluster = Cluster(seed.hex()[:12], stage, stage, text=text[:MAX_TEXT_CHARS])
        self._clusters[cluster.id] = cluster
        self.gone.discard(cluster.id)
        self.changed.add(cluster)
        return cluster

    def _free_stage(self, words: str, digits: str) -> StageKey:
        taken = {cluster.own_stage.path[-1] for cluster in self._clusters.values()}
        names = (f"{words}-{digits[:size]}" for size in (4, 8, 32))
        name = next(name for name in names if name not in taken)
        return StageKey(self.tenant, (WIDER_STAGE, name))

    def _join(self, cluster: Cluster, member: Member) -> None:
        if member.cluster is not cluster:
            cluster.num_requests += member.num_requests
        member.cluster = cluster
        cluster.last_seen_s = time.time()
        if len(cluster.members) < MAX_MEMBERS:
            cluster.members[member.digest] = member
            self._members[member.digest] = member
            self.changed.add(cluster)

    def _absorb(self, target: Cluster, cluster: Cluster) -> None:
        for member in cluster.members.values():
            member.cluster = target
        target.members.update(cluster.members)
        target.templates.extend(cluster.templates)
        target.num_requests += cluster.num_requests
        target.last_seen_s = max(target.last_seen_s, cluster.last_seen_s)
        del self._clusters[cluster.id]
        self.changed.discard(cluster)
        self.changed.add(target)
        if cluster.is_saved:
            self.gone.add(cluster.id)
        self._index_templates()

    def _leaving(self, cluster: Cluster, digests: Sequence[str] | None) -> list[Member]:
        members = sorted(cluster.members.values(), key=lambda member: -member.num_requests)
        if len(members) < 2:
            raise RequestError(
                f"cluster {cluster.id!r} has one fingerprint: there is nothing to split",
                code="nothing_to_split",
            )
        if digests is None:
            return members[1:]
        known = {member.digest.hex(): member for member in members}
        if unknown := sorted(set(digests) - set(known)):
            raise RequestError(
                f"cluster {cluster.id!r} has no fingerprint {unknown[0]!r}", param="fingerprints"
            )
        chosen = set(digests)
        if not 0 < len(chosen) < len(known):
            raise RequestError(
                f"of the {len(known)} fingerprints of {cluster.id!r} one must leave and one must stay",
                param="fingerprints",
            )
        return [known[digest] for digest in sorted(chosen)]

    def _part(self, cluster: Cluster, members: Iterable[Member]) -> Cluster:
        members = list(members)
        words = cluster.own_stage.path[-1].rpartition("-")[0]
        seed = members[0].digest
        if seed.hex()[:12] in self._clusters:  # the split cluster was created from this prompt
            seed = blake2b(seed + cluster.id.encode(), digest_size=16).digest()
        part = self._added(seed, words, "")
        part.is_user_edited = True
        for member in members:
            del cluster.members[member.digest]
            cluster.num_requests -= member.num_requests
            self._join(part, member)
        return part

    def _known(self, cluster_id: str) -> Cluster:
        cluster = self._clusters.get(cluster_id)
        if cluster is None:
            raise UnknownClusterError(f"there is no cluster {cluster_id!r}")
        return cluster

    def _index_templates(self) -> None:
        self.version += 1
        matching: dict[bytes, list[tuple[Template, Cluster]]] = {}
        for cluster in self._clusters.values():
            for shape, template in cluster.templates:
                matching.setdefault(shape, []).append((template, cluster))
        for shape in matching:
            self._unclustered.keep_ending(shape)
        self._matching = {shape: tuple(pairs) for shape, pairs in matching.items()}
        known = {template for pairs in matching.values() for template, _ in pairs}
        self._slots = {template: slots for template, slots in self._slots.items() if template in known}


def _contents(cluster: Cluster) -> tuple[frozenset[bytes], frozenset[tuple[bytes, Template]]]:
    return frozenset(cluster.members), frozenset(cluster.templates)
