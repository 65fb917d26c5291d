"""The clusters of one tenant, and the changes that users made to them.

This module handles no threads, files or bodies. The rules:

* A system prompt that matches no cluster gets its own cluster immediately. So does a user's text that
  consists of instructions followed by turns. The cluster's *frame* is the prompt's content without values
  (``units``).
* A later prompt of the same frame joins the cluster. The frame then shrinks to their common content.
* A prompt with other instructions has another cluster, even if both share much text.
* A short user's text waits until there are enough similar ones.
* A cluster is named after its frame. While it has few prompts, its name may change.
* If the answers of a cluster differ depending on a mark in its prompts, two clusters replace it
(``answers``).
* Discovery does not change clusters that users merged or split, and does not rename clusters that users named
  or pinned.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice

from agentspec.errors import RequestError
from agentspec.gateway.discovery.answers import Answer
from agentspec.gateway.discovery.cluster import Cluster, Member
from agentspec.gateway.discovery.fingerprint import Fingerprint
from agentspec.gateway.discovery.frames import (
    ENOUGH_COMMON_WORDS,
    ENOUGH_OWN_WORDS,
    FEWEST_FRAME_WORDS,
    Fit,
    Frame,
    Prompt,
)
from agentspec.gateway.discovery.naming import slug
from agentspec.gateway.discovery.templates import Template
from agentspec.gateway.discovery.units import Unit
from agentspec.gateway.errors import UnknownClusterError
from agentspec.stages import StageKey

WIDER_STAGE = "discovered"  # stage of requests without a cluster, and parent of the discovered stages
MAX_COMPARED = 24  # limit of frames that a new prompt is compared with
MAX_WAITING = 128
FEWEST_ALIKE = 6  # similar prompts needed before their differences count as values
MORE_ALIKE = 12  # additional ones needed for prompts with nearly nothing in common
RECURRING_FACTOR = 4  # factor of both numbers for recurring prompts
FOREIGN_SHARE = 1 / 3  # share of the other frames that must lack a unit for it to distinguish a stage
CROSSING_SHARE = 0.6  # share of one side's differing words that a third frame must contain
RENAMED_UNTIL = 8  # with more prompts, a cluster keeps its name
MAX_MEMBERS = 64  # members found by digest; further prompts are found by their template
MAX_TEXT_CHARS = 2000
MAX_REFUSED = 64
IDLE_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """User texts of one frame that are too few for a cluster."""

    frame: Frame
    members: dict[bytes, Member]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A frame that a new prompt was compared with, and the owner of the frame."""

    fit: Fit
    frame: Frame
    owner: Cluster | _Waiting

    @property
    def is_free(self) -> bool:
        """True if discovery may change the frame's owner."""
        return isinstance(self.owner, _Waiting) or self.owner.is_free

    @property
    def is_recurring(self) -> bool:
        """True if one of the owner's prompts was seen in two conversations."""
        return any(member.is_system and member.num_openings > 1 for member in self.owner.members.values())

    def is_same(self, others: Sequence[Frame]) -> bool:
        """True if the prompt is of this frame's stage, judged with the frames of other stages.

        The differences between the prompt and the frame may be values. They are, if few of their words
        instruct and much of the common text is in no other frame; or if a third frame contains most of one
        side's differing text, but little of the common text.
        """
        if self.fit.is_same or not self.fit.is_enough or not self.fit.num_own:
            return self.fit.is_same
        third = [one for one in others if one is not self.frame]
        if self.fit.num_own < ENOUGH_OWN_WORDS and self._is_distinct(third):
            return True
        return any(self._is_crossed(one, own) for one in third for own in (self.fit.extra, self.fit.missing))

    def _is_distinct(self, others: Sequence[Frame]) -> bool:
        """True if many other frames lack much of the text that the prompt and this frame share."""
        num_enough = max(2, FOREIGN_SHARE * len(others))
        num_words = sum(
            len(unit.words)
            for unit in self._shared
            if sum(not one.has(unit.key) for one in others) >= num_enough
        )
        return num_words >= ENOUGH_COMMON_WORDS

    def _is_crossed(self, third: Frame, own: Mapping[str, float]) -> bool:
        known = sum(num_words for key, num_words in own.items() if third.has(key))
        total = sum(own.values())
        if known < CROSSING_SHARE * total:
            return False
        return total < sum(len(unit.words) for unit in self._shared if not third.has(unit.key))

    @property
    def _shared(self) -> Iterator[Unit]:
        """Yield the units that the prompt and the frame share word for word."""
        return (unit for key, unit in self.fit.pairs if unit.weight and unit.key == key)


class Clusters:
    """All clusters of one tenant, at most ``max_clusters``.

    Any thread may call :meth:`find` and :meth:`match` while one thread makes changes.

    Attributes:
        version: number that changes whenever a prompt without a member may match another cluster than before.
        changed: clusters with unsaved changes.
        gone: ids of removed clusters.
        refused: templates of clusters that users split, or that answers divided (:meth:`Template.divided`).
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
        self._frames: dict[bytes, tuple[tuple[Frame, Cluster], ...]] = {}  # by shape
        self._waiting: OrderedDict[bytes, _Waiting] = OrderedDict()  # by the digest of the first text
        self._shared_keys: set[bytes] = set()  # seeds of names that several frames would get

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
        candidates = self._matching.get(self._shape(fingerprint) if self.refused else fingerprint.shape)
        if not candidates:
            return None
        text = f" {fingerprint.text} "
        scores = [template.num_words_in(text) for template, _ in candidates]
        best = max(scores)
        return candidates[scores.index(best)][1] if best else None

    def place(self, member: Member, fingerprint: Fingerprint) -> None:
        """Assign a new prompt to a cluster, create one, or let the prompt wait for similar ones."""
        known = self._members.get(member.digest)
        if known is not None:
            member.cluster = known.cluster
            return
        shaped = replace(fingerprint, shape=self._shape(fingerprint))
        cluster = self.match(fingerprint) or self._compared(member, shaped)
        if cluster is not None:
            self._join(cluster, member)

    def hear(self, member: Member, fingerprint: Fingerprint, answer: Callable[[str], Answer]) -> None:
        """Note an answer to a prompt. ``answer`` digests it, given the common text of the stage's prompts.

        If the answers divide the cluster by a mark, the cluster is removed, and its prompts get two shapes.
        """
        cluster = member.cluster
        if cluster is None or not cluster.is_free or len(cluster.frames) != 1:
            return
        frame = cluster.frames[0]
        if not cluster.answers.add(answer(frame.text)) or frame.template is None:
            return
        mark = cluster.answers.dividing_mark(frame.marks)
        if mark is not None and len(self.refused) < MAX_REFUSED:
            self.refused.append((frame.shape, frame.template.divided(mark)))
            self.drop(cluster)

    def _shape(self, fingerprint: Fingerprint) -> bytes:
        """Return the shape of a prompt. Marks that divided clusters are part of it."""
        shape, text = fingerprint.shape, f" {fingerprint.text} "
        for divided, template in self.refused:
            if divided == shape and template.mark is not None and template.num_words_in(text):
                needle, count = template.mark
                has_mark = text.count(needle) >= count
                shape = blake2b(f"{has_mark:d}{needle}".encode() + shape, digest_size=16).digest()
        return shape

    def name(self, cluster_id: str, path: str | None) -> Cluster:
        """Assign the cluster's requests to the stage ``path``; None restores the cluster's own stage.

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
        """Pin or unpin a cluster. Pinned clusters are never evicted. Raises UnknownClusterError."""
        cluster = self._known(cluster_id)
        cluster.is_pinned = is_pinned
        self.changed.add(cluster)
        return cluster

    def merge(self, cluster_id: str, into: str) -> Cluster:
        """Merge one cluster into another. The other keeps its stage.

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

        The cluster keeps the fingerprint with the most requests, or those that ``digests`` does not name.

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
            cluster.frames.clear()
        cluster.is_user_edited = True
        parts = [self._part(cluster, group) for group in groups]
        self.changed.add(cluster)
        self._index_templates()
        return [cluster, *parts]

    def adopt(self, kept: Mapping[str, Cluster], refused: Sequence[tuple[bytes, Template]]) -> None:
        """Apply changes that other processes wrote. ``kept`` has all clusters of the file, by id.

        Unsaved clusters of this process stay. Users' edits in the file override this process's state.
        """
        divided = [one for one in self.refused if one[1].mark is not None and one not in refused]
        self.refused = [*refused, *divided]
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
        if not (kept.templates or kept.is_user_edited):  # the file may omit texts
            kept.frames = here.frames
        here.is_saved = True
        is_theirs = kept.is_user_edited or here not in self.changed
        if is_theirs and _contents(here) != _contents(kept):
            kept.num_requests, kept.answers = here.num_requests, here.answers
            kept.text = kept.text or here.text
            self._restore(kept)

    def _restore(self, cluster: Cluster) -> None:
        """Replace the cluster that has the same id by a saved one."""
        before = self._clusters.pop(cluster.id, None)
        if before is not None:
            self._forget_members(before)
            self.changed.discard(before)
        self._clusters[cluster.id] = cluster
        self._members.update(cluster.members)
        self._index_templates()

    def unsave(self) -> None:
        """Mark all clusters as unsaved, since the store lost its content. The next save writes them again."""
        self.gone.clear()
        for cluster in self:
            cluster.is_saved = False
            self.changed.add(cluster)

    def drop(self, cluster: Cluster) -> None:
        """Remove a cluster. Its prompts count as new prompts later."""
        del self._clusters[cluster.id]
        self.changed.discard(cluster)
        if cluster.is_saved:
            self.gone.add(cluster.id)
        self._forget_members(cluster)
        if cluster.frames:
            self._index_templates()

    def _forget_members(self, cluster: Cluster) -> None:
        for digest, member in cluster.members.items():
            if self._members.get(digest) is member:
                del self._members[digest]
            member.cluster = None

    def _compared(self, member: Member, fingerprint: Fingerprint) -> Cluster | None:
        """Return the cluster with the most similar prompts, or a new one; None if the prompt must wait."""
        if self._is_refused(fingerprint):
            return self._begun(fingerprint) if fingerprint.is_system else None
        if any(member.digest in one.members for one in self._waiting.values()):
            return None
        prompt = Prompt.of(fingerprint.words, fingerprint.is_system)
        fits = self._fits(prompt, fingerprint.shape)
        frames = [one.frame for one in fits] + self._frames_of_other_shapes(fingerprint.shape)
        same = [one for one in fits if one.is_same(frames)]
        if same:
            return self._joined(max(same, key=lambda one: one.fit.score), member, fingerprint, prompt)
        siblings = self._siblings(prompt, fits)
        if siblings:
            return self._united(siblings, member, fingerprint, prompt)
        frame = Frame.of(prompt, fingerprint.shape)
        if fingerprint.is_system or prompt.is_of_turns:
            return self._begun(fingerprint, frame)
        self._waiting[member.digest] = _Waiting(frame, {member.digest: member})
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)
        return None

    def _fits(self, prompt: Prompt, shape: bytes) -> list[_Candidate]:
        """Compare a prompt with the frames of its shape, or with the most similar ones if there are many."""
        keys = {unit.key for unit in prompt.units}
        framed: list[tuple[Frame, Cluster | _Waiting]] = [*self._frames.get(shape, ())]
        framed += [(one.frame, one) for one in self._waiting.values() if one.frame.shape == shape]
        framed.sort(key=lambda one: -one[0].num_in(keys))
        return [_Candidate(frame.compare(prompt), frame, owner) for frame, owner in framed[:MAX_COMPARED]]

    def _frames_of_other_shapes(self, shape: bytes) -> list[Frame]:
        others = (framed for other, framed in self._frames.items() if other != shape)
        return list(islice((frame for framed in others for frame, _ in framed), MAX_COMPARED))

    def _joined(
        self, best: _Candidate, member: Member, fingerprint: Fingerprint, prompt: Prompt
    ) -> Cluster | None:
        if isinstance(best.owner, Cluster):
            return self._refine(best.owner, best.frame, best.fit, prompt, fingerprint)
        best.frame.join(prompt, best.fit)
        best.owner.members[member.digest] = member
        num_enough = 2 if best.frame.num_role_words >= FEWEST_FRAME_WORDS else FEWEST_ALIKE
        cluster = self._begun(fingerprint, best.frame) if len(best.owner.members) >= num_enough else None
        if cluster is not None:
            self._stop_waiting(best.owner, cluster)
        return cluster

    def _stop_waiting(self, waiting: _Waiting, cluster: Cluster) -> None:
        for digest, member in waiting.members.items():
            self._waiting.pop(digest, None)
            self._join(cluster, member)

    def _siblings(self, prompt: Prompt, fits: Sequence[_Candidate]) -> list[_Candidate]:
        """Return prompts that differ from this prompt only in units that no second prompt repeats.

        With enough such prompts, the differing units are values, for example a document of any length.
        Returns an empty list if there are too few. Recurring prompts are needed in larger numbers.
        """
        near = [one for one in fits if one.fit.is_enough and one.frame.first is not None and one.is_free]
        if not near:
            return []
        share = max(one.fit.num_common for one in near) / max(prompt.num_role_words, 1)
        num_enough = FEWEST_ALIKE + MORE_ALIKE * (1 - min(share, 1))
        single = [one for one in near if not one.is_recurring]
        chosen = single if len(single) + 1 >= num_enough else near
        if len(chosen) + 1 < num_enough * (1 if chosen is single else RECURRING_FACTOR):
            return []
        return chosen

    def _united(
        self, siblings: Sequence[_Candidate], member: Member, fingerprint: Fingerprint, prompt: Prompt
    ) -> Cluster | None:
        """Create one cluster of a prompt and its siblings."""
        frame = Frame.of(prompt, fingerprint.shape)
        for one in siblings:
            if one.frame.first is not None:
                frame.join(one.frame.first, frame.compare(one.frame.first))
        owners = [one.owner for one in siblings if isinstance(one.owner, Cluster)]
        cluster = max(owners, key=lambda one: one.num_requests, default=None) or self._begun(
            fingerprint, frame
        )
        if cluster is None:
            return None
        cluster.frames[:] = [frame]
        for one in siblings:
            if isinstance(one.owner, _Waiting):
                self._stop_waiting(one.owner, cluster)
            elif one.owner is not cluster:
                one.owner.frames.clear()
                self._absorb(cluster, one.owner)
        cluster = self._renamed(cluster, frame, fingerprint) if cluster.is_free else cluster
        self._note_template(cluster, frame)
        return cluster

    def _refine(
        self, cluster: Cluster, frame: Frame, fit: Fit, prompt: Prompt, fingerprint: Fingerprint
    ) -> Cluster:
        """Reduce a cluster's frame to the content that one more prompt shares with it. Return the cluster."""
        before = frame.template
        frame.join(prompt, fit)
        if frame.num_prompts <= RENAMED_UNTIL and cluster.is_free:
            cluster = self._renamed(cluster, frame, fingerprint)
        if frame.template != before:
            self._note_template(cluster, frame)
        return cluster

    def _note_template(self, cluster: Cluster, frame: Frame) -> None:
        cluster.text = cluster.text if frame.template is None else frame.template.text[:MAX_TEXT_CHARS]
        self.changed.add(cluster)
        self._index_templates()

    def _renamed(self, cluster: Cluster, frame: Frame, fingerprint: Fingerprint) -> Cluster:
        """Rename a cluster after the common content of its prompts, if the name differs from that.

        Return the cluster; or another one, which has this name and was saved without text.
        """
        words, seed = self._named(frame, fingerprint)
        name = f"{words}-{seed.hex()[:4]}"
        if cluster.own_stage.path[-1].startswith(name):
            return cluster
        saved = self._saved_as(name)
        if saved is not None:
            self._absorb(saved, cluster)
            return saved
        cluster.own_stage = cluster.stage = self._free_stage(words, seed.hex())
        return cluster

    def _named(self, frame: Frame, fingerprint: Fingerprint) -> tuple[str, bytes]:
        """Return the words and the digest that name a frame, taken from its instructions.

        If another cluster's instructions give the same name, both names also use their statements.
        """
        words, seed = _named(frame, fingerprint, with_statements=False)
        name = f"{words}-{seed.hex()[:4]}"
        for other in self._clusters.values():
            is_young = bool(other.frames) and other.frames[0].num_prompts <= RENAMED_UNTIL
            if other.own_stage.path[-1] == name and is_young and other.is_free and frame not in other.frames:
                self._shared_keys.add(seed)
                again, digest = _named(other.frames[0], fingerprint, with_statements=True)
                other.own_stage = other.stage = self._free_stage(again, digest.hex())
                self.changed.add(other)
        return (
            _named(frame, fingerprint, with_statements=True) if seed in self._shared_keys else (words, seed)
        )

    def _saved_as(self, name: str) -> Cluster | None:
        """Return the cluster that has this name and was saved without text, or None."""
        return next(
            (
                one
                for one in self._clusters.values()
                if one.own_stage.path[-1] == name and not one.frames and not one.is_user_edited
            ),
            None,
        )

    def _is_refused(self, fingerprint: Fingerprint) -> bool:
        text = f" {fingerprint.text} "
        return any(
            shape == fingerprint.shape and one.mark is None and one.num_words_in(text)
            for shape, one in self.refused
        )

    def _begun(self, fingerprint: Fingerprint, frame: Frame | None = None) -> Cluster | None:
        """Return the cluster of a prompt that is the first of its kind, or create it; None without room."""
        words, seed = (
            (slug((fingerprint.words,)), fingerprint.digest)
            if frame is None
            else self._named(frame, fingerprint)
        )
        cluster = self._saved_as(f"{words}-{seed.hex()[:4]}")
        if cluster is None and seed.hex()[:12] in self._clusters:
            cluster, seed = self._clusters.get(fingerprint.digest.hex()[:12]), fingerprint.digest
        if cluster is None:
            if not self._has_room():
                return None
            cluster = self._added(seed, words, fingerprint.text)
        if frame is not None and not cluster.is_user_edited:
            cluster.frames.append(frame)
            self._index_templates()
        return cluster

    def _has_room(self) -> bool:
        """True if there is room for another cluster, if necessary after evicting a little-used one.

        Eviction takes a cluster that is not recurring, else one idle for an hour; among these the one idle
        longest. A new stage never evicts a stage in use, whose tree is worth more: two stages that evict each
        other would both lose their trees.
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
        names = (f"{words}-{digits[:size]}" for size in (4, 8, 32, *range(31, 8, -1)))
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
        target.frames.extend(cluster.frames)
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
        if seed.hex()[:12] in self._clusters:  # the split cluster got its id from this prompt
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
        frames: dict[bytes, list[tuple[Frame, Cluster]]] = {}
        for cluster in self._clusters.values():
            for frame in cluster.frames:
                frames.setdefault(frame.shape, []).append((frame, cluster))
        self._matching = {
            shape: tuple((frame.template, cluster) for frame, cluster in framed if frame.template)
            for shape, framed in frames.items()
        }
        self._frames = {
            shape: tuple(one for one in framed if not one[1].is_user_edited)
            for shape, framed in frames.items()
        }


def _named(frame: Frame, fingerprint: Fingerprint, with_statements: bool) -> tuple[str, bytes]:
    """Return the words and the digest that name a frame, from its instructions or from its statements too."""
    text = " ".join(frame.key_words(with_statements))
    words = slug((text, *fingerprint.tools, fingerprint.schema))
    return words, blake2b(text.encode("utf-8", "surrogatepass") + frame.shape, digest_size=16).digest()


def _contents(cluster: Cluster) -> tuple[frozenset[bytes], frozenset[tuple[bytes, Template]]]:
    return frozenset(cluster.members), frozenset(cluster.templates)
