from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from agentspec.errors import ConfigError, ForestFileError, UnusableForestError
from agentspec.forest.autosave import ForestAutosave, seconds_between
from agentspec.generation import PastOutput
from agentspec.stages import StageKey

TIMEOUT_S = 60.0


class WrittenTrees:
    """Trees represented by a number, and files that contain it."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.saved = threading.Semaphore(0)

    def learn(self, outputs: Sequence[PastOutput]) -> int:
        self.number += len(outputs)
        return len(outputs)

    def evict(self, stage: StageKey) -> int:
        return 0

    def save(self, path: Path) -> Mapping[str, int]:
        path.write_text(str(self.number))
        self.saved.release()
        return {"num_outputs": self.number}

    def load(self, path: Path) -> Mapping[str, int]:
        text = path.read_text()
        if text == "damaged":
            raise UnusableForestError(f"{text!r} is a damaged forest")
        if not text.isdigit():
            raise ForestFileError(f"{text!r} is no forest")
        self.number += int(text)
        return {"num_outputs": self.number}


def test_what_was_learned_outlives_its_engine(tmp_path: Path) -> None:
    path = tmp_path / "forest"
    with ForestAutosave(WrittenTrees(3), path):
        assert not path.exists()
    later = WrittenTrees()
    with ForestAutosave(later, path):
        assert later.number == 3
        later.number = 5
    assert path.read_text() == "5"


def test_it_is_saved_at_times(tmp_path: Path) -> None:
    trees = WrittenTrees(3)
    with ForestAutosave(trees, tmp_path / "forest", save_every_s=0.01):
        assert trees.saved.acquire(timeout=TIMEOUT_S)
        assert trees.saved.acquire(timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("save_s", "wait_s"),
    [(0.0, 10.0), (0.001, 10.0), (0.02, 10.0), (0.1, 50.0), (0.5, 250.0), (0.6, 300.0), (60.0, 300.0)],
)
def test_a_save_takes_a_small_share_of_the_time(save_s: float, wait_s: float) -> None:
    assert seconds_between(save_s) == pytest.approx(wait_s)


def test_unchanged_trees_are_not_saved_again(tmp_path: Path) -> None:
    path = tmp_path / "forest"
    trees = WrittenTrees(3)
    with ForestAutosave(trees, path, version=lambda: trees.number):
        pass
    assert not path.exists()
    with ForestAutosave(trees, path, save_every_s=0.01, version=lambda: trees.number):
        trees.number = 4
        assert trees.saved.acquire(timeout=TIMEOUT_S)
        assert not trees.saved.acquire(timeout=0.1)
    assert not trees.saved.acquire(blocking=False)
    assert path.read_text() == "4"


def test_a_saved_file_that_is_gone_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "forest"
    trees = WrittenTrees(3)
    with ForestAutosave(trees, path, save_every_s=0.01, version=lambda: trees.number):
        trees.number = 4
        assert trees.saved.acquire(timeout=TIMEOUT_S)
        path.unlink()
    assert path.read_text() == "4"


def test_a_save_that_fails_unexpectedly_is_logged_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(WrittenTrees):
        failures = iter([ValueError("a bug")])

        def save(self, path: Path) -> Mapping[str, int]:
            for failure in self.failures:
                raise failure
            return super().save(path)

    trees = Failing(3)
    with ForestAutosave(trees, tmp_path / "forest", save_every_s=0.01):
        assert trees.saved.acquire(timeout=TIMEOUT_S)
    assert "a bug" in caplog.text


def test_a_file_that_is_none_stops_the_start_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "forest"
    path.write_text("my only copy of something else")
    with pytest.raises(ConfigError, match="is no forest; move it away"), ForestAutosave(WrittenTrees(), path):
        pass
    assert path.read_text() == "my only copy of something else"


def test_an_unusable_file_is_moved_aside_and_all_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "forest"
    path.write_text("damaged")
    with ForestAutosave(WrittenTrees(3), path):
        [aside] = tmp_path.iterdir()
        assert aside.name.startswith("forest.damaged-2")
        assert aside.read_text() == "damaged"
        assert str(path) in caplog.text
        assert str(aside) in caplog.text
    assert path.read_text() == "3"


def test_an_unusable_file_stops_a_strict_start_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "forest"
    path.write_text("damaged")
    with (
        pytest.raises(ConfigError, match="'damaged' is a damaged forest; move it away"),
        ForestAutosave(WrittenTrees(), path, is_strict=True),
    ):
        pass
    assert [file.read_text() for file in tmp_path.iterdir()] == ["damaged"]


def test_what_can_not_be_saved_is_said_and_does_not_stop_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with ForestAutosave(WrittenTrees(3), folder / "forest"):
        folder.rmdir()
    assert "could not be saved" in caplog.text
