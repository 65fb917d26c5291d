"""The notebooks run from top to bottom in a kernel of their own, and are stored without outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
CELL_LIMIT_S = 120


def parameter(path: Path) -> Any:
    """Return a notebook as a parameter. The one that runs an engine before and after is slow."""
    return pytest.param(path, marks=pytest.mark.slow if path.stem.endswith("before_after") else ())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("path", [parameter(path) for path in NOTEBOOKS], ids=lambda path: path.stem)
def test_it_runs(path: Path) -> None:
    pytest.importorskip("torch")
    notebook = nbformat.read(path, as_version=4)
    run = NotebookClient(
        notebook, timeout=CELL_LIMIT_S, resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    shown = [output for cell in run.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
