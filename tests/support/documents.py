"""Examples in documents and help texts, run unchanged except for the server's address."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
URL = "http://127.0.0.1:8000"
TIMEOUT_S = 120.0


def python_blocks(document: str) -> list[str]:
    """Return the Python blocks of a document, given by its path from the repository's root."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def run_python(block: str, url: str, folder: Path) -> str:
    """Run the block as a script in ``folder`` and return its output."""
    return _output([sys.executable, "-c", block.replace(URL, url)], folder)


def promised_output(block: str) -> str:
    """Return the block's documented output: comments on a line with ``print(`` or directly below it."""
    promised, is_printed = [], False
    for line in block.splitlines():
        code, _, comment = line.partition("# ")
        is_printed = code.startswith("print(") or (is_printed and not code)
        if is_printed and comment:
            promised.append(comment)
    return "".join(f"{line}\n" for line in promised)


def curl_commands(text: str) -> list[str]:
    """Return the curl commands in a text, including continuation lines."""
    return [command.strip() for command in re.findall(r"^ *curl (?:.*\\\n)*.*$", text, flags=re.MULTILINE)]


def run_curl(command: str, url: str, folder: Path) -> str:
    """Run a curl command and return its output. Without curl, send the same request with httpx."""
    command = command.replace(URL, url)
    if shutil.which("curl"):
        return _output(["sh", "-c", command], folder)
    _, address, *options = shlex.split(command.replace("\\\n", " "))
    given = list(zip(options[::2], options[1::2], strict=True))
    headers = dict(value.split(": ", 1) for option, value in given if option == "-H")
    [body] = [value for option, value in given if option == "-d"]
    return httpx.post(address, headers=headers, content=body, timeout=TIMEOUT_S, trust_env=False).text


def _output(command: list[str], folder: Path) -> str:
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout
