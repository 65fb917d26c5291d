"""What a machine, or a container on it, has in memory and free."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentspec.engine import machine_memory

MIB = 1 << 20
FREE = "MemTotal: 9 kB\nMemAvailable: 4194304 kB\n"  # 4096 MiB

V1 = "memory/memory"


@pytest.mark.parametrize(
    ("files", "total_mb", "available_mb"),
    [
        ({}, 8192, 8192),
        ({"meminfo": FREE}, 8192, 4096),
        ({"meminfo": FREE, "memory.max": "max", "memory.current": "77"}, 8192, 4096),
        ({"meminfo": FREE, "memory.max": 2048, "memory.current": 500}, 2048, 1548),
        (  # files that were read can go
            {"meminfo": FREE, "memory.max": 2048, "memory.current": 500, "memory.stat": "inactive_file"},
            *(2048, 1648),
        ),
        ({"meminfo": FREE, "memory.max": 2048, "memory.current": 3000}, 2048, 0),
        ({"meminfo": FREE, "memory.max": 6144, "memory.current": 100}, 6144, 4096),
        ({"meminfo": FREE, "own": "0::/a/b\n", "a/b/memory.max": 1024, "a/b/memory.current": 24}, 1024, 1000),
        (
            {"meminfo": FREE, f"{V1}.limit_in_bytes": 2048, f"{V1}.usage_in_bytes": 48},
            *(2048, 2000),
        ),
        (
            {
                "meminfo": FREE,
                f"{V1}.limit_in_bytes": 2048,
                f"{V1}.usage_in_bytes": 500,
                f"{V1}.stat": "total_inactive_file",
            },
            *(2048, 1648),
        ),
    ],
)
def test_machine_and_container(
    files: dict[str, str | int],
    total_mb: int,
    available_mb: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = f"{content} {100 * MIB}" if name.endswith("stat") else content
        (tmp_path / name).write_text(
            f"{text * MIB}\n"
            if isinstance(text, int)
            else f"other 5\n{text}\n"[8 * (not name.endswith("stat")) :]
        )
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 21, "SC_PAGE_SIZE": 1 << 12}.__getitem__)
    monkeypatch.setattr(machine_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine_memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine_memory, "OWN_CGROUP", tmp_path / "own")
    assert machine_memory.total_memory() == total_mb * MIB
    assert machine_memory.available_memory() == available_mb * MIB
