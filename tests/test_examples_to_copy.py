"""Examples in README and help texts work as documented, in front of the bundled model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentspec.cli import main
from tests.support.documents import curl_commands, promised_output, python_blocks, run_curl, run_python
from tests.support.serving import serving

# their Python blocks run independently, at most with a server at the default address
DOCUMENTS = ("README.md", "docs/index.md", "docs/tutorial/first-run.md")
BLOCKS = [(document, number) for document in DOCUMENTS for number in range(len(python_blocks(document)))]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--log-level", "warning") as (_, base_url):
        yield base_url.removesuffix("/v1")


@pytest.mark.parametrize(("document", "number"), BLOCKS)
def test_a_python_block_prints_what_it_promises(document: str, number: int, url: str, tmp_path: Path) -> None:
    block = python_blocks(document)[number]
    assert promised_output(block)
    assert run_python(block, url, tmp_path) == promised_output(block)


def test_every_document_has_a_block() -> None:
    assert {document for document, _ in BLOCKS} == set(DOCUMENTS)


def test_the_curl_in_the_help_of_serve(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    [command] = curl_commands(text)
    answer = json.loads(run_curl(command, url, tmp_path))
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop"
    said = json.loads(choice["message"]["content"])
    promised = text.partition("the bundled model answers ")[2].partition(", ...}")[0]
    assert said.items() >= json.loads(promised + "}").items()
