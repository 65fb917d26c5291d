"""The KV entries that each row of a forward pass attends to, computed once for all layers.

A single segment reads its slot as a view of the cache, with nothing copied. Many short segments are
padded together and read a range of slots in one call; on a CPU only those up to the width that costs least.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from agentspec.engine.batch import Segment
from agentspec.engine.model.kv_cache import KVCache

# Segments of at most this many tokens are padded together, if there are enough of them: below that,
# one call per segment costs less than padding and masks (and the CPU has no idle lanes to fill).
GROUP_MAX_TOKENS = 64
GROUP_MIN_SEGMENTS_CPU = 4
GROUP_MIN_SEGMENTS_GPU = 2
# What a call of its own costs a segment on a CPU, in pairs of a row and an entry that it could attend to.
CALL_COST = 1500
# An indexed write costs by the row, a copy by the segment: the one pays for many short segments.
INDEXED_WRITE_MIN_SEGMENTS = 5
INDEXED_WRITE_MAX_ROWS_PER_SEGMENT = 2


class _Part(Protocol):
    """Some rows of the pass that attend together."""

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Queries of the whole pass ``[1, heads, rows, head_dim]`` to ``[rows of this part, hidden]``."""

    def place(self, out: torch.Tensor, attended: torch.Tensor) -> None:
        """Write what :meth:`attend` gave to the part's rows of ``[rows, hidden]``."""


class AttentionPlan:
    """How one forward pass writes and reads the cache.

    Args:
        segments: within the cache's bounds, each in a slot of its own.
        windows: per layer, the sliding window or None.
    """

    def __init__(self, segments: Sequence[Segment], cache: KVCache, windows: Sequence[int | None]) -> None:
        self._num_rows = sum(map(len, segments))
        self._writer = _writer(segments, cache)
        self._parts = _parts(segments, cache, windows)

    def write(self, layer: int, entries: torch.Tensor) -> None:
        """Store ``[2 * kv_heads, rows, head_dim]``, the new keys and values of all segments."""
        self._writer.write(layer, entries)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Attention of ``[1, heads, rows, head_dim]`` to what each row may see: ``[rows, hidden]``."""
        if len(self._parts) == 1 and isinstance(self._parts[0], _Solo):
            return self._parts[0].attend(layer, queries)
        out = queries.new_empty(self._num_rows, queries.shape[1] * queries.shape[3])
        for part in self._parts:
            part.place(out, part.attend(layer, queries))
        return out


class _CopyWriter:
    """Copy each segment into views that were made for all layers together."""

    def __init__(self, segments: Sequence[Segment], cache: KVCache) -> None:
        self._targets = [cache.entries[:, s.slot, :, s.start : s.end].unbind(0) for s in segments]
        self._sizes = [len(segment) for segment in segments]

    def write(self, layer: int, entries: torch.Tensor) -> None:
        if len(self._targets) == 1:
            self._targets[0][layer].copy_(entries)
            return
        for target, source in zip(self._targets, entries.split_with_sizes(self._sizes, 1), strict=True):
            target[layer].copy_(source)


class _IndexWriter:
    """One indexed write for the whole pass."""

    def __init__(self, segments: Sequence[Segment], cache: KVCache) -> None:
        slots = np.concatenate([np.full(len(s), s.slot) for s in segments])
        positions = np.concatenate([np.arange(s.start, s.end) for s in segments])
        device = cache.entries.device
        self._slots = torch.from_numpy(slots).to(device)
        self._positions = torch.from_numpy(positions).to(device)
        self._layers = cache.entries.unbind(0)

    def write(self, layer: int, entries: torch.Tensor) -> None:
        self._layers[layer][self._slots, :, self._positions] = entries.transpose(0, 1)


def _writer(segments: Sequence[Segment], cache: KVCache) -> _CopyWriter | _IndexWriter:
    num_rows = sum(map(len, segments))
    is_many = len(segments) >= INDEXED_WRITE_MIN_SEGMENTS
    is_short = num_rows <= INDEXED_WRITE_MAX_ROWS_PER_SEGMENT * len(segments)
    return _IndexWriter(segments, cache) if is_many and is_short else _CopyWriter(segments, cache)


def _parts(segments: Sequence[Segment], cache: KVCache, windows: Sequence[int | None]) -> list[_Part]:
    is_cpu = cache.entries.device.type == "cpu"
    first_rows = accumulate(map(len, segments), initial=0)
    placed = list(zip(segments, first_rows, strict=False))
    short = [(segment, row) for segment, row in placed if len(segment) <= GROUP_MAX_TOKENS]
    if is_cpu and len(short) >= GROUP_MIN_SEGMENTS_CPU:
        width = _cheapest_width([segment for segment, _ in short])
        narrow = [(segment, row) for segment, row in short if len(segment) <= width]
        if len(narrow) >= GROUP_MIN_SEGMENTS_CPU and _is_dense([segment.slot for segment, _ in narrow]):
            short = narrow
    if len(short) < (GROUP_MIN_SEGMENTS_CPU if is_cpu else GROUP_MIN_SEGMENTS_GPU):
        short = []
    elif is_cpu and not _is_dense([segment.slot for segment, _ in short]):
        short = []  # gathering the slots would copy more than the calls cost
    parts: list[_Part] = [_Group(short, cache, windows)] if short else []
    grouped = {row for _, row in short}
    parts += [_Solo(segment, row, cache, windows) for segment, row in placed if row not in grouped]
    return parts


def _cheapest_width(segments: Sequence[Segment]) -> int:
    """Return the length up to which segments are padded together. The longer ones get calls of their own.

    One long draft would make all other requests as long as itself. The shorter ones' range of slots includes
    those of the longer ones. Windows are ignored.
    """

    def cost(width: int) -> int:
        end = max(segment.end for segment in segments if len(segment) <= width)
        own = [segment for segment in segments if len(segment) > width]
        return len(segments) * width * end + sum(CALL_COST + len(one) * one.end for one in own)

    return min(sorted({len(segment) for segment in segments}), key=cost)


def _is_dense(slots: Sequence[int]) -> bool:
    """True if reading the whole range of slots wastes at most a third of it."""
    return 2 * (max(slots) - min(slots) + 1) <= 3 * len(slots)


class _Solo:
    """One segment, read straight from its slot."""

    def __init__(
        self, segment: Segment, first_row: int, cache: KVCache, windows: Sequence[int | None]
    ) -> None:
        self._rows = slice(first_row, first_row + len(segment))
        by_window = {window: self._view(segment, cache, window) for window in set(windows)}
        self._layers = [
            (by_window[window][0][layer], by_window[window][1][layer], *by_window[window][2:])
            for layer, window in enumerate(windows)
        ]

    @staticmethod
    def _view(
        segment: Segment, cache: KVCache, window: int | None
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], torch.Tensor | None, bool]:
        """Keys and values of each layer, the mask, and whether the mask is just the causal one."""
        size, end = len(segment), segment.end
        first = 0 if window is None else max(0, segment.first_place - window + 1)
        slot = slice(segment.slot, segment.slot + 1)
        entries = cache.entries[:, slot, :, first:end]
        keys, values = entries.chunk(2, 2)
        if size == 1 and segment.first_place == segment.start:
            return keys.unbind(0), values.unbind(0), None, False
        if segment.start == 0 and segment.is_chain and (window is None or window >= end):
            return keys.unbind(0), values.unbind(0), None, True
        mask = _additive(visibility([segment], first, end, size, window)[0], entries)
        return keys.unbind(0), values.unbind(0), mask, False

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        keys, values, mask, is_causal = self._layers[layer]
        if queries.shape[2] != self._rows.stop - self._rows.start:
            queries = queries[:, :, self._rows]
        attended = _attention(queries, keys, values, mask, is_causal)
        return attended.transpose(1, 2).reshape(queries.shape[2], -1)

    def place(self, out: torch.Tensor, attended: torch.Tensor) -> None:
        out[self._rows] = attended


class _Group:
    """Several short segments, padded to the longest, over a range (or a gathering) of slots."""

    def __init__(
        self, placed: Sequence[tuple[Segment, int]], cache: KVCache, windows: Sequence[int | None]
    ) -> None:
        placed = sorted(placed, key=lambda pair: pair[0].slot)
        slots = [segment.slot for segment, _ in placed]
        device = cache.entries.device
        self._slots = None if _is_dense(slots) else torch.tensor(slots, device=device)
        if self._slots is None:
            placed = _fill_gaps(placed)
        self._width = max(len(segment) for segment, _ in placed)
        self._size = len(placed)
        source, target, padded = self._rows(placed)
        self._source_rows = torch.from_numpy(source).to(device)
        self._target_rows = torch.from_numpy(target).to(device)
        self._padded_rows = torch.from_numpy(padded).to(device)
        segments = [segment for segment, _ in placed]
        by_window = {window: self._view(segments, slots, cache, window) for window in set(windows)}
        self._layers = [(by_window[w][0][layer], by_window[w][1]) for layer, w in enumerate(windows)]

    def _rows(
        self, placed: Sequence[tuple[Segment, int]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Row of the pass behind each padded row; and each real row of the pass with its padded row."""
        source = np.zeros((self._size, self._width), np.int64)
        is_real = np.zeros((self._size, self._width), np.bool_)
        for i, (segment, first_row) in enumerate(placed):
            if first_row >= 0:
                source[i, : len(segment)] = np.arange(first_row, first_row + len(segment))
                is_real[i, : len(segment)] = True
        padded = np.flatnonzero(is_real)
        return source.ravel(), source.ravel()[padded], padded

    def _view(
        self, segments: Sequence[Segment], slots: Sequence[int], cache: KVCache, window: int | None
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Keys and values of each layer, and the mask ``[segments, 1, width, entries]``."""
        end = max(segment.end for segment in segments)
        first = 0 if window is None else max(0, min(s.first_place for s in segments) - window + 1)
        range_ = slice(None) if self._slots is not None else slice(min(slots), max(slots) + 1)
        entries = cache.entries[:, range_, :, first:end]
        visible = visibility(segments, first, end, self._width, window)
        return entries.unbind(0), _additive(visible, entries).unsqueeze_(1)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        entries, mask = self._layers[layer]
        if self._slots is not None:
            entries = entries.index_select(0, self._slots)
        keys, values = entries.chunk(2, 1)
        padded = queries[0].index_select(1, self._source_rows)
        padded = padded.view(padded.shape[0], self._size, self._width, -1)
        attended = _attention(padded.transpose(0, 1), keys, values, mask, False)
        return attended.transpose(1, 2).reshape(self._size * self._width, -1)

    def place(self, out: torch.Tensor, attended: torch.Tensor) -> None:
        out.index_copy_(0, self._target_rows, attended.index_select(0, self._padded_rows))


def _fill_gaps(placed: Sequence[tuple[Segment, int]]) -> list[tuple[Segment, int]]:
    """Stand-ins (row -1) for the slots within the range that no segment is in."""
    by_slot = {pair[0].slot: pair for pair in placed}
    first, last = placed[0][0].slot, placed[-1][0].slot
    stand_in = np.zeros(1, np.int32)
    return [by_slot.get(slot) or (Segment(slot, 0, stand_in), -1) for slot in range(first, last + 1)]


def _attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=is_causal,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )


def visibility(
    segments: Sequence[Segment], first: int, end: int, width: int, window: int | None
) -> NDArray[np.bool_]:
    """Which entries ``first..end`` of its slot each token of each segment may see.

    bool ``[segments, width, end - first]``. Rows beyond a segment's length are padding; entry
    ``first`` is visible to them, for a softmax over nothing is not a number.
    """
    starts = np.array([segment.start for segment in segments])
    positions = starts[:, None, None] + np.arange(width)[None, :, None]
    entries = np.arange(first, end)
    visible: NDArray[np.bool_] = entries <= positions
    if window is not None:
        visible &= entries > positions - window
    for row, segment in zip(visible, segments, strict=True):
        if segment.parents is not None and not segment.is_chain:
            row[: len(segment)] = _tree_visibility(segment, entries, window)
        row[len(segment) :, 0] = True
    return visible


def _tree_visibility(segment: Segment, entries: NDArray[np.int64], window: int | None) -> NDArray[np.bool_]:
    """bool ``[n, entries]``: the committed context, the ancestors and the token itself."""
    depths = segment.depths()
    own = depths[segment.num_earlier :]
    ancestry = segment.ancestry()
    if window is not None:
        ancestry &= own[:, None] - depths[None, :] < window
    visible = np.zeros((len(segment), len(entries)), np.bool_)
    num_context = segment.num_context - int(entries[0])
    visible[:, :num_context] = True
    if window is not None:
        oldest = segment.num_context + own[:, None] - window
        visible[:, :num_context] = entries[:num_context] > oldest
    visible[:, num_context : num_context + len(depths)] = ancestry
    return visible


def _additive(visible: NDArray[np.bool_], like: torch.Tensor) -> torch.Tensor:
    """0 where visible, minus infinity elsewhere, in the dtype and on the device of ``like``."""
    mask = torch.from_numpy(np.where(visible, np.float32(0), np.float32(-np.inf)))
    return mask.to(device=like.device, dtype=like.dtype)
