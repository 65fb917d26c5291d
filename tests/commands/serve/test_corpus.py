"""``agentspec serve --corpus``: real servers that share outputs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest

from agentspec.cli import main
from tests.corpus.support.redis_server import running
from tests.support.serving import TIMEOUT_S, finish, serving

BODY = {"prompt": "SELECT name", "max_tokens": 48, "temperature": 0, "ignore_eos": True}


class Server:
    """One server, and what it answers."""

    def __init__(self, base_url: str) -> None:
        self._url = base_url.removesuffix("/v1")

    def ask(self, **headers: str) -> tuple[str, int]:
        """Return the text of an answer, and how many of its tokens were drafted."""
        answer = httpx.post(f"{self._url}/v1/completions", json=BODY, headers=headers, timeout=TIMEOUT_S)
        body = answer.raise_for_status().json()
        speculation = body["metrics"]["speculative_decoding"]
        return body["choices"][0]["text"], speculation["num_accepted_draft_tokens"]

    def figure(self, name: str) -> float:
        lines = httpx.get(f"{self._url}/metrics", timeout=TIMEOUT_S).text.splitlines()
        (line,) = (line for line in lines if line.startswith(f"agentspec_corpus_{name}{{"))
        return float(line.split()[-1])

    def wait_for(self, name: str, value: float) -> None:
        end_s = time.monotonic() + TIMEOUT_S
        while (seen := self.figure(name)) < value:
            assert time.monotonic() < end_s, (name, seen)
            time.sleep(0.05)

    def post(self, command: str, **arguments: str) -> httpx.Response:
        return httpx.post(f"{self._url}/agentspec/{command}", json=arguments, timeout=TIMEOUT_S)


@pytest.fixture(params=[pytest.param("folder", marks=pytest.mark.slow), "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "corpus")
        return
    with running(tmp_path) as port:
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture
def start(llama_checkpoint: Path) -> Callable[..., AbstractContextManager[Server]]:
    @contextmanager
    def start(place: str | None) -> Iterator[Server]:
        options = ["--model", str(llama_checkpoint), "--engine", "torch", "--threads", "1", "--price", "0.2"]
        with serving(*options, *([] if place is None else ["--corpus", place])) as (process, base_url):
            yield Server(base_url)
            status, log = finish(process, signal.SIGTERM)
            assert status == 0
            assert " ERROR " not in log

    return start


def test_what_one_server_learned_the_others_know(place, start):
    with start(None) as alone:
        expected, num_drafted = alone.ask()
    with start(place) as first:
        with start(place) as second:
            assert first.ask() == (expected, num_drafted)
            second.wait_for("learned_outputs_total", 1)
            assert first.figure("learned_outputs_total") == 0  # not its own
            text, num_from_first = second.ask()
            assert text == expected
            assert num_from_first > num_drafted
            second.wait_for("published_outputs_total", 1)  # known to the others, and sent all the same
        assert first.figure("published_outputs_total") == 1
    with start(place) as later:
        later.wait_for("learned_outputs_total", 1)
        text, num_from_store = later.ask()
        assert text == expected
        assert num_from_store > num_drafted


@pytest.mark.slow
def test_an_output_that_ends_with_the_server_is_sent(tmp_path, start):
    place = str(tmp_path / "corpus")
    with start(place) as first:
        first.ask()
    with start(place) as second:
        second.wait_for("learned_outputs_total", 1)


@pytest.mark.slow
def test_an_output_that_no_tree_learns_stays_here(tmp_path, start):
    place = str(tmp_path / "corpus")
    with start(place) as server:
        server.ask(**{"X-AgentSpec-Learn": "0"})
        server.ask(**{"X-AgentSpec-Subject": "ann"})
        server.wait_for("published_outputs_total", 1)
    with start(place) as server:
        server.wait_for("learned_outputs_total", 1)
        assert server.figure("published_outputs_total") == 0


def test_a_store_that_is_away_costs_no_answer(tmp_path, start):
    with running(tmp_path) as port:
        place = f"redis://127.0.0.1:{port}/0"
        with start(None) as alone:
            expected = alone.ask()
    with start(place) as server:  # nothing listens there
        assert server.ask() == expected
        server.wait_for("store_failures_total", 1)


def test_no_file_is_saved_or_loaded(tmp_path, start):
    with start(str(tmp_path / "corpus")) as server:
        for command in ("save", "load"):
            answer = server.post(command)
            assert answer.status_code == 400
            assert "neither saved nor loaded" in answer.text
        server.post("warm", stage="flow/plan", response="SELECT name FROM items;").raise_for_status()
        server.wait_for("published_outputs_total", 1)  # what trees hold, the corpus knows


def test_a_place_that_is_no_folder_stops_the_start(
    llama_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    place = tmp_path / "corpus"
    place.write_text("a file")
    options = ["--model", str(llama_checkpoint), "--engine", "torch", "--corpus", str(place)]
    assert main(["serve", "--port", "0", *options]) == 1
    assert "a corpus can't be kept in" in capsys.readouterr().err
