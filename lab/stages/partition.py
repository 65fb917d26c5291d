"""The similarity of two partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence


def adjusted_rand_index(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """Compare two labelings of the same items: 1 if equal, about 0 by chance (Hubert and Arabie 1985)."""
    together = _num_pairs(Counter(zip(one, other, strict=True)).values())
    in_one, in_other = _num_pairs(Counter(one).values()), _num_pairs(Counter(other).values())
    expected = in_one * in_other / max(_num_pairs([len(one)]), 1)
    most = (in_one + in_other) / 2
    return 1.0 if most == expected else (together - expected) / (most - expected)


def _num_pairs(sizes: Iterable[int]) -> int:
    return sum(size * (size - 1) // 2 for size in sizes)
