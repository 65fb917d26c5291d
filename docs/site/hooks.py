"""MkDocs hooks: add the generated pages, and point links out of ``docs/`` to the repository."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.site.reference import PAGES

OUTSIDE = re.compile(
    r"\]\((?:\.\./)+((?:agentspec|benchmarks|deploy|examples|gateway|lab|tests|[A-Z]+\.md)[^)]*)\)"
)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are made from the code."""
    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Point links to files outside of ``docs/`` to the repository."""
    return OUTSIDE.sub(rf"]({config.repo_url}/blob/main/\1)", markdown)
