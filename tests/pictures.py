"""``python -m tests.pictures``: the pictures of docs/ui.md, from the bundled model and its example."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from examples.agentic_sql import prompts
from tests.support.browser import browser, page
from tests.support.serving import serving

IMAGES = Path(__file__).parents[1] / "docs" / "images"
QUESTION = "Which three airlines have the most flights?"
WIDTH, HEIGHT = 1360, 900


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the example, drive it and save the pictures."""
    parser = argparse.ArgumentParser(prog="python -m tests.pictures", description=__doc__)
    parser.add_argument("--to", type=Path, default=IMAGES, metavar="DIR", help="(default: docs/images)")
    parser.add_argument("--questions", type=int, default=12, metavar="N", help="(%(default)s)")
    options = parser.parse_args(arguments)
    options.to.mkdir(parents=True, exist_ok=True)
    with serving() as (_, base_url), browser() as chromium:
        size = {"width": WIDTH, "height": HEIGHT}
        with page(chromium, viewport=size) as tab, page(chromium, viewport=size, color_scheme="dark") as dark:
            for one in (tab, dark):
                one.goto(base_url.replace("/v1", "/ui"))
                one.wait_for_selector("#state.live")
            drive(base_url, options.questions)
            trace(dark)
            keep(tab.screenshot(), options.to / "ui-stages.png")
            keep(dark.locator("section:has(#trace-form)").screenshot(), options.to / "ui-request.png")
    return 0


def drive(base_url: str, num_questions: int) -> None:
    """Send some questions through the workflow."""
    command = [sys.executable, "-m", "examples.agentic_sql", "--no-compare", "--base-url", base_url]
    subprocess.run([*command, "--questions", str(num_questions)], check=True, stdout=subprocess.DEVNULL)


def trace(tab: Any) -> None:
    """Run one request on the page."""
    system, user = (message["content"] for message in prompts.classify(QUESTION))
    tab.fill("#trace-stage", "agentic_sql/classify")
    tab.fill("#trace-system", system)
    tab.fill("#trace-prompt", user)
    tab.click("#trace-run")
    tab.wait_for_selector("#trace:not([hidden])")


def keep(picture: bytes, file: Path) -> None:
    """Save the picture with a palette that keeps rare colours, at a third of the size."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE).save(file)


if __name__ == "__main__":
    sys.exit(main())
