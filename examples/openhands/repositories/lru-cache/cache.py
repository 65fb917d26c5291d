"""A cache that forgets what was not used for the longest time."""

from statistics_of_cache import Counts


class Cache:
    """At most ``size`` entries."""

    def __init__(self, size: int):
        """An empty one."""
        if size < 1:
            raise ValueError(f"a cache has room for at least one entry, not {size!r}")
        self.size = size
        self.counts = Counts()
        self.entries: dict[str, object] = {}

    def get(self, key: str, default: object = None) -> object:
        """The entry, which counts as used now; ``default`` if there is none."""
        if key not in self.entries:
            self.counts.misses += 1
            return default
        self.counts.hits += 1
        return self.entries[key]

    def put(self, key: str, value: object) -> None:
        """Keep an entry, which counts as used now."""
        self.entries[key] = value
        if len(self.entries) > self.size:
            self.entries.pop(next(iter(self.entries)))

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self.entries)
