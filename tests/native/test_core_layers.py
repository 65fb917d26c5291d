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
    "steps": {BASE},
    "drafting": {BASE, "index"},
    "forest": {BASE, "index", "threads", "drafting", "steps"},
}
# The parts of the forest, from the bottom up: a part may include its own headers and those of these.
FOREST = {
    "largest_first": set(),
    "request": set(),
    "budget": {"largest_first", "request"},
    "memory_budget": {"budget", "request"},
    "batch": {"request"},
    "request_drafts": {"batch", "request"},
    "own_index_builder": {"memory_budget", "request"},
    "tree_registry": {"batch", "memory_budget", "request"},
    "shared_updates": {"batch", "memory_budget"},
    "batch_step": {"batch", "memory_budget", "request_drafts", "shared_updates"},
    "forest_core": {"batch", "batch_step", "memory_budget", "own_index_builder", "tree_registry"},
    "live_row": {"request"},
    "live_rows": {"forest_core", "live_row"},
    "row_step": {"live_rows"},
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


def test_the_parts_of_the_forest_do_not_know_their_users() -> None:
    sources = [path for path in SOURCES if path.parent.name == "forest"]
    assert {path.stem for path in sources} == FOREST.keys()
    for path in sources:
        included = set(re.findall(r'^#include "core/forest/(.+)\.hpp"', path.read_text(), re.MULTILINE))
        assert included <= FOREST[path.stem] | {path.stem}, path.name


def test_the_core_does_not_include_python() -> None:
    assert not [path.name for path in SOURCES if re.search(r"Python\.h|pybind11", path.read_text())]
