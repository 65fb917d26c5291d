"""The instruction sets of this build, against those of this machine and of every machine."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from agentspec._native import CPU_FEATURES
from agentspec.doctor.finding import Level
from agentspec.doctor.packages import beyond_baseline, check_cpu_features

CPUINFO = Path("/proc/cpuinfo")
NAMES_IN_CPUINFO = {"sse3": "pni", "neon": "asimd", "lse": "atomics", "dotprod": "asimddp"}


def test_this_build_names_its_features() -> None:
    assert {"x86_64": "sse2", "aarch64": "neon", "arm64": "neon"}[platform.machine()] in CPU_FEATURES


@pytest.mark.skipif(not CPUINFO.exists(), reason="this system does not list the processor's features")
def test_this_processor_has_them() -> None:
    present = set(re.findall(r"\w+", CPUINFO.read_text()))
    assert {NAMES_IN_CPUINFO.get(name, name) for name in CPU_FEATURES} <= present


@pytest.mark.parametrize(
    ("machine", "system", "surplus"),
    [
        ("x86_64", "Linux", ["neon", "lse"]),
        ("aarch64", "Linux", ["sse2", "lse"]),
        ("arm64", "Darwin", ["sse2"]),
        ("riscv64", "Linux", []),  # of an unknown machine nothing is said
    ],
)
def test_what_not_every_processor_has(machine: str, system: str, surplus: list[str]) -> None:
    assert beyond_baseline(("sse2", "neon", "lse"), machine, system) == surplus


@pytest.mark.parametrize(
    ("features", "level", "said"),
    [
        (("sse2",), Level.OK, "sse2, compiled in and used"),
        (("sse2", "avx2"), Level.WARNING, "Not every x86_64 processor has avx2"),
    ],
)
def test_a_build_for_one_machine_is_a_warning(
    features: tuple[str, ...], level: Level, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    found = check_cpu_features(features)
    assert found.level is level
    assert said in found.text
