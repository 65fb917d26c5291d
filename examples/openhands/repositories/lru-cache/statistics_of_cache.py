"""Statistics of a cache."""


class Counts:
    """Number of hits and misses."""

    def __init__(self):
        """Start at zero."""
        self.hits = 0
        self.misses = 0

    def hit_rate(self) -> float:
        """Return the share of hits; 0 without lookups."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0
