"""The page at /ui and its live figures."""
