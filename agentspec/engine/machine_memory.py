"""The memory of the machine, or of the container or control group that this process runs in. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def total_memory() -> int:
    """Return the bytes of the machine's memory, or the limit of its container or control group."""
    return min([_machine_bytes(), *(limit for limit, _ in _limits())])


def available_memory() -> int:
    """Return the bytes that this process may still take; if unknown, the machine's memory.

    Files in the system's page cache count as free if the system can drop them immediately.
    """
    return max(0, min([_free_bytes(), *(limit - used for limit, used in _limits())]))


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_bytes() -> int:
    found = None
    with suppress(OSError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text())
    return int(found[1]) * 1024 if found else _machine_bytes()


def _limits() -> Iterator[tuple[int, int]]:
    """Yield the limit of each control group that has one, and the group's usage."""
    groups = [CGROUPS]
    with suppress(OSError):
        own = re.search(r"^0::/(.*)$", OWN_CGROUP.read_text(), re.MULTILINE)
        groups += [CGROUPS / own[1]] if own else []
    for group in groups:
        yield from _limit(group / "memory.max", group / "memory.current", "inactive_file")
    first = CGROUPS / "memory"  # version 1
    yield from _limit(first / "memory.limit_in_bytes", first / "memory.usage_in_bytes", "total_inactive_file")


def _limit(limit: Path, usage: Path, cached: str) -> Iterator[tuple[int, int]]:
    most = _number(limit)
    if most is None:  # no such file, or "max": no limit
        return
    found = None
    with suppress(OSError):
        found = re.search(rf"^{cached} (\d+)$", (usage.parent / "memory.stat").read_text(), re.MULTILINE)
    yield most, (_number(usage) or 0) - (int(found[1]) if found else 0)


def _number(file: Path) -> int | None:
    with suppress(OSError):
        text = file.read_text().strip()
        return int(text) if text.isdigit() else None
    return None
