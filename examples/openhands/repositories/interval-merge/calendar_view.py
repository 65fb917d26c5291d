"""Intervals as readable text."""

from intervals import Interval


def clock(minutes: int) -> str:
    """Format minutes: 615 is 10:15."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def line(interval: Interval) -> str:
    """Format an interval: (540, 615) is 09:00-10:15."""
    return f"{clock(interval[0])}-{clock(interval[1])}"
