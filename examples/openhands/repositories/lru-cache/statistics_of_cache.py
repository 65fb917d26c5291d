"""How useful a cache is."""


class Counts:
    """Hits and misses."""

    def __init__(self):
        """None yet."""
        self.hits = 0
        self.misses = 0

    def hit_rate(self) -> float:
        """Hits of all; 0 if nothing was asked for."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0
