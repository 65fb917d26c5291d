"""A real headless browser, for tests and for the pictures in the documentation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_MS = 60_000
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER_VARIABLE = "AGENTSPEC_BROWSER"


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a Playwright ``Browser``: Chromium from ``$AGENTSPEC_BROWSER``, the system or Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        own = driver.chromium.executable_path
        named = os.environ.get(BROWSER_VARIABLE) or next(filter(None, map(shutil.which, NAMES)), own)
        if not Path(named).exists():
            pytest.skip("needs a Chromium: apt-get install chromium, or playwright install chromium")
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # root can't use it
        chromium = driver.chromium.launch(executable_path=named, args=sandbox)
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def page(chromium: Any, **options: Any) -> Iterator[Any]:
    """Yield a tab with a context of its own."""
    context = chromium.new_context(**options)
    context.set_default_timeout(TIMEOUT_MS)
    try:
        yield context.new_page()
    finally:
        context.close()
