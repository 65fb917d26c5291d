"""The generated pages of the documentation site show what the code has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from docs.site.reference import (
    ENDPOINTS,
    OPENAPI,
    WRITTEN,
    command_line,
    endpoints,
    settings,
    with_fields,
)

ROOT = Path(__file__).parents[2]


def test_every_command_is_shown_with_its_own_options() -> None:
    page = command_line()
    for command in "serve init run key doctor forest stages top replay".split():
        assert f"## `agentspec {command}`" in page
    assert "--engine-url URL" in page
    assert "## `agentspec forest save`" in page


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_what_is_made_from_the_settings_is_current(path: Path) -> None:
    """If not: ``python -m docs.site.reference``."""
    assert path.read_text(encoding="utf-8") == WRITTEN[path]()


def test_every_setting_is_described() -> None:
    rows = [line for line in settings().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert not [row for row in rows if row.endswith("|  |")]


def test_every_endpoint_is_shown() -> None:
    page = endpoints()
    for path in yaml.safe_load(OPENAPI.read_text(encoding="utf-8"))["paths"]:
        assert f"| `{path}` |" in page


def test_the_tables_of_fields_are_those_of_the_code() -> None:
    """If not: ``python -m docs.site.reference``."""
    page = ENDPOINTS.read_text(encoding="utf-8")
    assert with_fields(page) == page


@pytest.mark.skipif(not (ROOT / "mkdocs.yml").exists(), reason="the source distribution has no site")
def test_the_navigation_names_every_page(tmp_path: Path) -> None:
    """MkDocs is strict: a broken link, a missing anchor or an unlisted page is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    reference = (tmp_path / "site" / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    assert "Take each request's newly accepted tokens" in reference
