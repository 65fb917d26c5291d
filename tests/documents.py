"""Examples in documents and help texts, run as they stand there: only the server's address is replaced."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
URL = "http://127.0.0.1:8000"
TIMEOUT_S = 120.0


def python_blocks(document: str) -> list[str]:
    """The Python blocks of a document, named by its path from the repository's root."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def run_python(block: str, url: str, folder: Path) -> str:
    """What the block prints, run as a script of its own in ``folder``."""
    return _output([sys.executable, "-c", block.replace(URL, url)], folder)


def promised_output(block: str) -> str:
    """What the block says that it prints: the comment on a line with ``print(``, or those right below it."""
    promised, is_printed = [], False
    for line in block.splitlines():
        code, _, comment = line.partition("# ")
        is_printed = code.startswith("print(") or (is_printed and not code)
        if is_printed and comment:
            promised.append(comment)
    return "".join(f"{line}\n" for line in promised)


def curl_commands(text: str) -> list[str]:
    """The calls of curl in a text, with the lines that each goes on in."""
    return [command.strip() for command in re.findall(r"^ *curl (?:.*\\\n)*.*$", text, flags=re.MULTILINE)]


def run_curl(command: str, url: str, folder: Path) -> str:
    """What a call of curl prints; where there is no curl, the body of the answer to the same request."""
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
