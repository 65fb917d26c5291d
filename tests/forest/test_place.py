"""The location of a forest's file at server start: it is writable, and an unusable file is moved aside."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from agentspec import Forest, StageKey
from agentspec.errors import ForestFileError, UnusableForestError
from agentspec.forest.file import SavedForest, check_place, restored, writing

STAGE = StageKey.parse("flow/sql")
NAME_MAX = 255


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "forest"


@pytest.fixture
def saved(path: Path) -> bytes:
    forest = Forest()
    forest.learn(STAGE, np.arange(1, 9, dtype=np.int32))
    forest.save(path, vocabulary="v")
    return path.read_bytes()


def load(path: Path, vocabulary: str = "v", *, is_strict: bool = False) -> SavedForest | None:
    forest = Forest()
    return restored(path, lambda: forest.load(path, vocabulary=vocabulary), is_strict=is_strict)


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_place_that_can_be_written_is_as_it_was(path: Path, saved: bytes) -> None:
    check_place(path)
    assert files(path.parent) == {"forest": saved}
    path.unlink()
    check_place(path)
    assert files(path.parent) == {}


def test_a_place_in_which_another_process_is_saving_can_be_written(path: Path) -> None:
    with writing(path, "v") as writer:
        check_place(path)
        writer.finish()
    assert list(files(path.parent)) == ["forest"]


def test_a_place_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(ForestFileError, match="there is no such folder"):
        check_place(tmp_path / "gone" / "forest")
    with pytest.raises(ForestFileError, match="File name too long"):  # of the temporary file, not the file
        check_place(tmp_path / ("f" * (NAME_MAX - 3)))
    (tmp_path / "forest.saving").mkdir()
    with pytest.raises(ForestFileError, match="Is a directory"):
        check_place(tmp_path / "forest")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ForestFileError, match="Permission denied"):
        check_place(tmp_path / "forest")


def test_what_is_no_forest_is_refused_and_stays(path: Path) -> None:
    for content in (b"server: {}", b"AgentSpec tree"):
        path.write_bytes(content)
        for use in (check_place, load):
            with pytest.raises(ForestFileError, match="is no forest file and stays"):
                use(path)
        assert files(path.parent) == {"forest": content}


def damaged(saved: bytes, how: str) -> bytes:
    changes = {
        "changed": saved[:-9] + bytes([saved[-9] ^ 1]) + saved[-8:],
        "cut off": saved[:-1],
        "cut at its beginning": saved[:7],
        "empty": b"",
        "too new": saved[:16] + b"\x63" + saved[17:],
        "of another vocabulary": saved,
    }
    return changes[how]


@pytest.mark.parametrize(
    "how", ["changed", "cut off", "cut at its beginning", "empty", "too new", "of another vocabulary"]
)
def test_an_unusable_file_is_moved_aside(
    how: str, path: Path, saved: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    content = damaged(saved, how)
    path.write_bytes(content)
    vocabulary = "w" if how == "of another vocabulary" else "v"
    check_place(path)
    with pytest.raises(UnusableForestError):
        load(path, vocabulary, is_strict=True)
    assert files(path.parent) == {"forest": content}
    assert load(path, vocabulary) is None
    [(name, kept)] = files(path.parent).items()
    assert name.startswith("forest.damaged-20")
    assert kept == content
    [record] = caplog.records
    assert (record.levelname, str(path) in record.message, name in record.message) == ("WARNING", True, True)
    check_place(path)


def test_files_moved_aside_in_one_second_are_all_kept(
    path: Path, saved: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = time.gmtime(0)
    monkeypatch.setattr(time, "gmtime", lambda: epoch)
    for number in range(3):
        path.write_bytes(saved[: -1 - number])
        assert load(path) is None
    assert files(path.parent) == {
        "forest.damaged-19700101T000000Z": saved[:-1],
        "forest.damaged-19700101T000000Z-1": saved[:-2],
        "forest.damaged-19700101T000000Z-2": saved[:-3],
    }
