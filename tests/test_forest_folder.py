"""The files that a client of a running server may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.errors import ForestFileError
from agentspec.forest_folder import ForestFolder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "forests" / "old").mkdir(parents=True)
    (tmp_path / "forests-of-others").mkdir()
    return tmp_path / "forests"


@pytest.mark.parametrize("given", ["a", "old/a", "old/../a", "./a"])
def test_a_name_in_the_folder(folder: Path, given: str) -> None:
    for files in (ForestFolder(folder=folder), ForestFolder(folder / "forest")):
        for text in (given, str(folder / given)):
            assert files.find(text) == (folder / given).resolve()


@pytest.mark.parametrize(
    "given",
    [
        "..",
        ".",
        "",
        "../a",
        "../forests-of-others/a",
        "/etc/passwd",
        "old/../../a",
        "out/a",
        "to_file",
        "loop",
        "\0",
    ],
)
def test_all_else_is_refused(folder: Path, given: str) -> None:
    (folder / "out").symlink_to(folder.parent)
    (folder / "to_file").symlink_to(folder.parent / "file")
    (folder / "loop").symlink_to("loop")
    with pytest.raises(ForestFileError):
        ForestFolder(folder=folder).find(given)


def test_the_folder_itself_may_be_a_link(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert ForestFolder(folder=link).find(str(link / "a")) == folder.resolve() / "a"


def test_the_file_is_the_default_and_the_folder_goes_before_its_own(folder: Path) -> None:
    files = ForestFolder(Path("/var/forest"), folder)
    assert files.find(None) == Path("/var/forest")
    assert files.find("a") == folder.resolve() / "a"
    with pytest.raises(ForestFileError, match="outside"):
        files.find("/var/other")


def test_nothing_may_be_named_where_nothing_is_configured() -> None:
    with pytest.raises(ForestFileError, match="--forest-file"):
        ForestFolder().find(None)
    with pytest.raises(ForestFileError, match="--forest-folder"):
        ForestFolder().find("/tmp/a")
