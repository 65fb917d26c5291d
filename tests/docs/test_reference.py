"""The generated pages of the documentation site show what the code has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agentspec.gateway.settings import FleetSettings, GatewaySettings, Settings
from docs.site.reference import ENDPOINTS, OPENAPI, command_line, endpoints, settings, with_fields

ROOT = Path(__file__).parents[2]


def test_every_command_is_shown_with_its_own_options() -> None:
    page = command_line()
    for command in "serve init run key doctor forest stages top replay".split():
        assert f"## `agentspec {command}`" in page
    assert "--engine-url URL" in page
    assert "## `agentspec forest save`" in page


def test_every_setting_is_shown_with_its_default_and_meaning() -> None:
    page = settings()
    for name in Settings.model_fields:
        assert f"| `{name}` |" in page
    for name, field in GatewaySettings.model_fields.items():
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert f"| `{field.default}` |" in row
        assert not row.endswith("|  |"), f"{name} has no description"
    for group in ("server", "keys[]", "upstreams[]", "routing", "discovery"):
        assert f"## `{group}`" in page
    assert set(FleetSettings.model_fields) - set(Settings.model_fields) == {"forwards_authorization"}


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
