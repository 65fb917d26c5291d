"""The permitted includes between the folders of the C++ core."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "agentspec" / "native" / "core"
BASE = ""  # files directly in core/
LAYERS = {  # a folder may include its own headers and those of these
    BASE: set(),
    "index": {BASE},
    "threads": {BASE},
    "drafting": {BASE, "index"},
    "forest": {BASE, "index", "threads", "drafting"},
}
SOURCES = sorted(path for path in CORE.rglob("*") if path.suffix in (".cpp", ".hpp"))


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def test_every_folder_has_a_layer() -> None:
    assert {folder_of(str(path.relative_to(CORE))) for path in SOURCES} == LAYERS.keys()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_includes_point_downwards(path: Path) -> None:
    folder = folder_of(str(path.relative_to(CORE)))
    included = re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE)
    assert all(name.startswith("core/") for name in included)
    folders = {folder_of(name.removeprefix("core/")) for name in included}
    assert folders <= LAYERS[folder] | {folder}


def test_the_core_does_not_include_python() -> None:
    assert not [path.name for path in SOURCES if re.search(r"Python\.h|pybind11", path.read_text())]
