"""``agentspec compare`` as a process, with real programs and a real gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentspec.commands.compare.proxy import Call, recording
from agentspec.commands.compare.report import Outputs, compared_outputs
from tests.commands.support.running import TIMEOUT_S, environment
from tests.gateway.support.scripted import ScriptedEngine

PROGRAM = """
import json, os, urllib.request, openai
asked = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
with openai.OpenAI(max_retries=0, timeout=30) as client:
    client.chat.completions.create(**asked)
    list(client.chat.completions.create(**asked, stream=True))
    client.chat.completions.create(**{**asked, "temperature": 1})
headers = {"content-type": "application/json", "X-AgentSpec-Learn": "1"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode(), headers), timeout=30).read()
"""


def compare(url: str, *argv: object, options: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentspec", "compare", "--url", url, *(options or []), "--"]
    return subprocess.run(
        [*command, *map(str, argv)],
        env=environment(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_S,
    )


def test_runs_in_turn_without_drafts_and_with(url: str, engine: ScriptedEngine, tmp_path: Path) -> None:
    saved = tmp_path / "compared.json"
    options = ["--workflow", "flow", "--json", str(saved)]
    done = compare(url, sys.executable, "-c", PROGRAM, options=options)
    assert done.returncode == 0, done.stderr
    tags = [request.tags for request in engine.requests]
    assert [(one.max_draft, one.learn) for one in tags] == [
        *[(0, False)] * 4,
        *[(None, True)] * 4,
        *[(0, False)] * 4,
    ]
    assert {one.stage.name for one in tags} == {"flow"}
    assert len({one.session for one in tags}) == 3  # each run has a session of its own
    report = json.loads(saved.read_text())
    assert [run["has_drafts"] for run in report["runs"]] == [False, True, False]
    assert all(0 < run["request_s"] < run["wall_s"] and run["num_answered"] == 4 for run in report["runs"])
    assert report["outputs"] == {
        "num_identical": 3,
        "num_different": 0,
        "num_sampled": 1,
        "num_alone": 0,
        "num_unread": 0,
    }
    assert "3 of 3 compared outputs are identical" in done.stderr
    assert "not compared: 1 sampled calls without a seed" in done.stderr
    assert "times as fast" in done.stderr
    # the scripted engine drafts whatever it is asked, as calls past the proxy would
    assert "not a fair comparison: the runs without drafts have " in done.stderr


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (
            (sys.executable, "-c", "raise SystemExit(3)"),
            3,
            "this run ended with status 3: nothing is compared",
        ),
        (("no-such-program",), 127, "can't run 'no-such-program'"),
        (("true",), 1, "no call reached "),
        ((), 2, "there is nothing to run: agentspec compare"),
    ],
)
def test_what_can_not_be_compared(
    url: str, engine: ScriptedEngine, argv: tuple[str, ...], status: int, said: str
) -> None:
    done = compare(url, *argv)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr


def test_a_wrong_model_leads_to_doctor(url: str, engine: ScriptedEngine) -> None:
    code = PROGRAM.replace('"scripted"', '"other"') + "\n"
    done = compare(url, sys.executable, "-c", f"try:\n    exec({code!r})\nexcept Exception: pass")
    assert done.returncode == 1
    assert f"`agentspec doctor --url {url}`" in done.stderr


def test_a_gateway_that_is_not_there(unused_tcp_port: int) -> None:
    done = compare(f"http://127.0.0.1:{unused_tcp_port}", "true")
    assert (done.returncode, "Or let this command start a gateway: --serve" in done.stderr) == (1, True)


def test_the_proxy_passes_paths_and_errors_on(url: str, engine: ScriptedEngine) -> None:
    with recording(url, {"x-agentspec-max-draft": "0"}) as (root, calls):
        asked = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
        tagged = f"{root}/sessions/a%20b/stages/c%2Fd/v1/chat/completions"
        assert httpx.post(tagged, json=asked, headers={"X-AgentSpec-Max-Draft": "9"}).status_code == 200
        assert httpx.get(f"{root}/v1/models").json()["data"]
        assert httpx.post(f"{root}/v1/chat/completions?x=%20y", json={}).status_code == 400
    tags = engine.last.tags
    assert (tags.session, tags.stage.name, tags.max_draft) == ("a%20b", "c/d", 0)
    assert [(call.path, call.status) for call in calls] == [
        ("/v1/chat/completions", 200),
        ("/v1/chat/completions", 400),
    ]


def test_the_proxy_before_nothing(unused_tcp_port: int) -> None:
    with recording(f"http://127.0.0.1:{unused_tcp_port}", {}) as (root, calls):
        assert httpx.post(f"{root}/v1/completions", json={}).status_code == 502
    assert [call.status for call in calls] == [0]


# outputs of two runs

GREEDY = {"model": "m", "messages": [], "temperature": 0}


def call(text: str, status: int = 200, path: str = "/v1/chat/completions", **body: Any) -> Call:
    message = {"role": "assistant", "content": text}
    answer: Any = {"id": text, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    return Call(path, json.dumps({**GREEDY, **body}).encode(), status, json.dumps(answer).encode(), 1.0)


def streamed(*texts: str) -> Call:
    ends = [None] * (len(texts) - 1) + ["stop"]
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": end}]}
        for text, end in zip(texts, ends, strict=True)
    ]
    answer = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    body = {**GREEDY, "stream": True, "stream_options": {"include_usage": True}}
    return Call("/v1/chat/completions", json.dumps(body).encode(), 200, answer.encode(), 1.0)


def calling(identifier: str) -> Call:
    function = {"name": "f", "arguments": "{}"}
    message = {"tool_calls": [{"id": identifier, "type": "function", "function": function}]}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    return Call("/v1/chat/completions", json.dumps(GREEDY).encode(), 200, json.dumps(answer).encode(), 1.0)


@pytest.mark.parametrize(
    ("without", "with_drafts", "expected"),
    [
        ([call("a")], [call("a")], Outputs(num_identical=1)),
        ([call("a")], [call("b")], Outputs(num_different=1)),
        ([streamed("a", "b", "c")], [streamed("a", "bc")], Outputs(num_identical=1)),
        ([streamed("a", "b")], [call("ab")], Outputs(num_identical=1)),
        ([calling("x")], [calling("y")], Outputs(num_identical=1)),
        # equal requests in another order, as parallel programs make them
        ([call("a", n=1), call("b", n=2)], [call("b", n=2), call("a", n=1)], Outputs(num_identical=2)),
        ([call("a"), call("b")], [call("b"), call("a")], Outputs(num_identical=2)),
        ([call("a"), call("a")], [call("a"), call("b")], Outputs(num_identical=1, num_different=1)),
        ([call("a")], [call("a", n=2)], Outputs(num_alone=2)),
        ([call("a"), call("a")], [call("a")], Outputs(num_identical=1, num_alone=1)),
        ([call("a", temperature=1)], [call("b", temperature=1)], Outputs(num_sampled=1)),
        ([call("a", temperature=1, seed=0)], [call("b", temperature=1, seed=0)], Outputs(num_different=1)),
        ([call("a", status=500)], [call("a")], Outputs(num_unread=1)),
        ([call("a", path="/v1/embeddings")], [call("a", path="/v1/embeddings")], Outputs(num_identical=1)),
        ([], [], Outputs()),
    ],
)
def test_outputs_of_equal_requests(without: list[Call], with_drafts: list[Call], expected: Outputs) -> None:
    assert compared_outputs(without, with_drafts) == expected


def test_an_answer_that_was_not_read_to_its_end() -> None:
    cut = Call("/v1/chat/completions", streamed("a", "b").body, 200, b'data: {"choices": [', 1.0)
    assert compared_outputs([cut], [streamed("a", "b")]) == Outputs(num_unread=1)
