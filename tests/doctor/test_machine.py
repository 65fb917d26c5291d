from __future__ import annotations

import platform
import resource
import socket
from pathlib import Path

import pytest

from agentspec.config import ForestConfig
from agentspec.doctor import machine
from agentspec.doctor.finding import Level

GIB = 1 << 30


@pytest.mark.parametrize(
    ("flags", "level"),
    [("sse4_2 avx2 avx512f", Level.OK), ("sse4_2 avx2", Level.WARNING), ("sse4_2 avx", Level.PROBLEM)],
)
def test_vector_instructions(flags: str, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert machine.check_cpu(f"processor : 0\nflags : {flags}\n").level is level


@pytest.mark.parametrize(
    ("value", "level", "said"),
    [
        (None, Level.WARNING, "set VLLM_CPU_KVCACHE_SPACE"),
        ("much", Level.PROBLEM, "'much'"),
        ("1.5", Level.PROBLEM, "'1.5'"),
        ("9", Level.PROBLEM, "8.0 GiB of memory are free"),
        ("4", Level.OK, "4 GiB"),
    ],
)
def test_kv_cache(value: str | None, level: Level, said: str) -> None:
    environment = {} if value is None else {"VLLM_CPU_KVCACHE_SPACE": value}
    found = machine.check_kv_cache(environment, 8 * GIB)
    assert found.level is level
    assert said in found.text


@pytest.mark.parametrize(
    ("wish", "is_for_cpus", "said"),
    [
        (None, False, "V2, which schedules steps ahead"),
        ("1", True, "V2"),
        ("0", False, "V1, which schedules step by step: VLLM_USE_V2_MODEL_RUNNER=0"),
        (None, True, "V1, which schedules step by step: vLLM's build for CPUs"),
    ],
)
def test_the_model_runner(wish: str | None, is_for_cpus: bool, said: str) -> None:
    environment = {} if wish is None else {"VLLM_USE_V2_MODEL_RUNNER": wish}
    found = machine.check_model_runner(environment, is_for_cpus=is_for_cpus)
    assert found.level is Level.OK
    assert said in found.text


def test_a_variable_that_switches_the_plugin_off() -> None:
    assert list(machine.check_environment({})) == []
    (found,) = machine.check_environment({"VLLM_PLUGINS": "lora"})
    assert found.level is Level.WARNING


def test_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert machine.check_openmp({}).level is Level.WARNING
    assert machine.check_openmp({"LD_PRELOAD": "/opt/libiomp5.so"}).level is Level.OK


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = machine.check_port("127.0.0.1", port)
    assert found.level is Level.PROBLEM
    assert f"{port}: Address already in use" in found.text
    assert machine.check_port("127.0.0.1", 0).level is Level.OK


@pytest.mark.parametrize(
    ("limit", "level"),
    [(256, Level.WARNING), (1 << 16, Level.OK), (resource.RLIM_INFINITY, Level.OK)],
)
def test_open_files(limit: int, level: Level) -> None:
    assert machine.check_files(limit).level is level


def test_memory() -> None:
    assert machine.check_memory(2 * GIB).level is Level.OK
    assert machine.check_memory(GIB // 2).level is Level.WARNING
    assert machine.check_memory(GIB // 2, ForestConfig(total_limit_bytes=GIB // 4)).level is Level.OK


def test_models(tmp_path: Path, llama_checkpoint: Path) -> None:
    for model, level in (
        (str(llama_checkpoint), Level.OK),
        ("Qwen/Qwen3-8B", Level.OK),
        (str(tmp_path), Level.PROBLEM),
        (str(tmp_path / "gone"), Level.PROBLEM),
    ):
        assert machine.check_model(model).level is level
