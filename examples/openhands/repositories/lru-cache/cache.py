"""A cache that evicts the least recently used entry."""

from statistics_of_cache import Counts


class Cache:
    """A cache of at most ``size`` entries."""

    def __init__(self, size: int):
        """Create an empty cache."""
        if size < 1:
            raise ValueError(f"a cache has room for at least one entry, not {size!r}")
        self.size = size
        self.counts = Counts()
        self.entries: dict[str, object] = {}

    def get(self, key: str, default: object = None) -> object:
        """Return the entry, which counts as used now, or ``default`` if it is missing."""
        if key not in self.entries:
            self.counts.misses += 1
            return default
        self.counts.hits += 1
        return self.entries[key]

    def put(self, key: str, value: object) -> None:
        """Store an entry, which counts as used now."""
        self.entries[key] = value
        if len(self.entries) > self.size:
            self.entries.pop(next(iter(self.entries)))

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entries)
