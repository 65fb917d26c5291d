"""Busy and free times of a day, in minutes since midnight."""

Interval = tuple[int, int]


def merge(intervals: list[Interval]) -> list[Interval]:
    """Merge overlapping and touching intervals; return them in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def free(intervals: list[Interval], day: Interval = (540, 1020)) -> list[Interval]:
    """Return the parts of the day outside all intervals."""
    gaps: list[Interval] = []
    begin = day[0]
    for start, end in merge(intervals):
        if start > begin:
            gaps.append((begin, min(start, day[1])))
        begin = max(begin, end)
    if begin < day[1]:
        gaps.append((begin, day[1]))
    return gaps
