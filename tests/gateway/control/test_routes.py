from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentspec.commands.gateway_call import Gateway
from agentspec.forest_folder import ForestFolder
from agentspec.gateway import ApiKeys, EmbeddedUpstream, GatewaySettings
from agentspec.generation import PastOutput
from agentspec.stages import StageKey
from tests.gateway.support.live import TIMEOUT_S, chat_body, post, serving, serving_engine
from tests.gateway.support.scripted import ScriptedEngine, ScriptedTrees

KEYS = ApiKeys.parse(["ka=acme", "kb=bolt"])


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def root(engine: ScriptedEngine, tmp_path: Path) -> Iterator[str]:
    upstream = EmbeddedUpstream(engine, ForestFolder(folder=tmp_path))
    with serving(upstream, keys=KEYS, admin_key="boss") as root:
        yield root


def ask(
    url: str, path: str, *, method: str = "POST", key: str | None = None, body: Any = b""
) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.request(
        method,
        f"{url}/agentspec/{path}",
        headers=headers,
        content=content,
        timeout=TIMEOUT_S,
        trust_env=False,
    )


def trees_of(engine: ScriptedEngine) -> ScriptedTrees:
    assert engine.trees is not None
    return engine.trees


def test_a_tenant_sees_the_counters_of_its_own_stages(root: str) -> None:
    for key, stage in (("ka", "flow/a"), ("kb", "flow/b")):
        post(root, chat_body(), authorization=f"Bearer {key}", x_agentspec_stage=stage)
    (told,) = ask(root, "stages", method="GET", key="ka").json()["stages"]
    assert (told["tenant"], told["stage"], told["num_requests"]) == ("acme", "flow/a", 1)
    assert told["accepted_by_source"] == {"request": 2, "stage": 4}
    assert (told["acceptance_rate"], told["accepted_per_step"]) == (6 / 8, 10 / 4)
    assert told["tree_bytes"] == 4096


def test_an_operator_sees_the_counters_of_all_tenants_or_of_one(root: str) -> None:
    for key, stage in (("ka", "flow/a"), ("kb", "flow/b")):
        post(root, chat_body(), authorization=f"Bearer {key}", x_agentspec_stage=stage)

    def seen(key: str, path: str) -> list[tuple[str, str]]:
        told = ask(root, path, method="GET", key=key).json()["stages"]
        return sorted((one["tenant"], one["stage"]) for one in told)

    assert seen("boss", "stages") == [("acme", "flow/a"), ("bolt", "flow/b")]
    assert seen("boss", "stages?tenant=bolt") == [("bolt", "flow/b")]
    assert seen("boss", "stages?tenant=nobody") == []
    for path in ("stages", "stages?tenant=bolt", "stages?tenant="):
        assert seen("ka", path) == [("acme", "flow/a")]


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "stages/flow/a"), ("POST", "warm"), ("PATCH", "clusters/a")]
)
def test_an_operator_changes_no_tenants_trees(
    root: str, engine: ScriptedEngine, method: str, path: str
) -> None:
    answer = ask(root, f"{path}?tenant=acme", method=method, key="boss", body={"response": "x"})
    assert answer.status_code == 403
    assert "use a key of the tenant" in answer.json()["error"]["message"]
    assert (trees_of(engine).evicted, trees_of(engine).learned) == ([], [])


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("nobody", 401)])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "stages"), ("DELETE", "stages/a"), ("POST", "warm"), ("POST", "none")]
)
def test_what_is_a_tenants_needs_its_key(root: str, method: str, path: str, key: str, status: int) -> None:
    assert ask(root, path, method=method, key=key).status_code == status


def test_a_tenant_evicts_its_own_stage_only(root: str, engine: ScriptedEngine) -> None:
    answer = ask(root, "stages/flow/caf%C3%A9", method="DELETE", key="kb")
    assert answer.json() == {"freed_bytes": 4096}
    assert trees_of(engine).evicted == [StageKey("bolt", ("flow", "café"))]


@pytest.mark.parametrize("path", ["stages/a//b", "stages/a/b/c/d/e/f/g/h/i", "stages/%20a"])
def test_a_bad_stage_evicts_nothing(root: str, engine: ScriptedEngine, path: str) -> None:
    answer = ask(root, path, method="DELETE", key="ka")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_stage")
    assert trees_of(engine).evicted == []


def test_outputs_are_learned_for_the_tenant_of_the_key(root: str, engine: ScriptedEngine) -> None:
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "four five"},
        {"role": "assistant", "content": None, "tool_calls": [{}]},
        {"role": "assistant", "content": [{"type": "text", "text": "six"}]},
    ]
    lines = [
        {"stage": "flow/é", "response": "one two three"},
        {"stage": "flow/b", "messages": said, "tenant": "bolt"},
        {"response": "seven"},
        {"response": ""},
    ]
    body = "\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n"
    answer = ask(root, "warm", key="ka", body=body.encode())
    assert answer.json() == {"num_outputs": 4, "num_tokens": 7}
    learned = [(str(output.stage), output.text) for output in trees_of(engine).learned]
    assert learned == [
        ("acme:flow/é", "one two three"),
        ("acme:flow/b", "four five"),
        ("acme:flow/b", "six"),
        ("acme:default", "seven"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "JSON object"),
        (b"\xff", "not valid JSON"),
        (b"{}", "response must be a string, not None"),
        (b'{"response": 5}', "response must be a string, not 5"),
        (b'{"stage": 5, "response": ""}', "stage must be a string, not 5"),
        (b'{"stage": "a//b", "response": "x"}', "''"),
        (b'{"messages": 5}', "messages must be a list of objects, not 5"),
        (b'{"messages": [5]}', "messages must be a list of objects"),
        (b'{"messages": [{"role": "assistant", "content": 5}]}', "messages[0].content"),
    ],
)
def test_one_bad_line_and_nothing_is_learned(
    root: str, engine: ScriptedEngine, line: bytes, message: str
) -> None:
    answer = ask(root, "warm", key="ka", body=b'{"response": "good"}\n' + line)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "invalid_line"
    assert error["message"].startswith("line 2: ")
    assert message in error["message"]
    assert trees_of(engine).learned == []


def test_the_size_of_a_body_is_limited(engine: ScriptedEngine) -> None:
    with serving_engine(engine, settings=GatewaySettings(body_limit_bytes=1024)) as root:
        answer = ask(root, "warm", body={"response": "x" * 1024})
    assert answer.status_code == 413
    assert trees_of(engine).learned == []


def test_an_operator_saves_and_loads(root: str, engine: ScriptedEngine, tmp_path: Path) -> None:
    trees_of(engine).learn([PastOutput(StageKey.parse("a"), "x")])
    path = str(tmp_path / "forest")
    assert ask(root, "save", key="boss", body={"path": path}).json() == {
        "path": path,
        "num_outputs": 1,
        "num_bytes": 5,
    }
    assert ask(root, "load", key="boss", body={"path": path}).json()["num_bytes"] == 5


@pytest.mark.parametrize("path", ["save", "load"])
def test_a_file_is_named_by_an_operator_alone(engine: ScriptedEngine, tmp_path: Path, path: str) -> None:
    with serving(EmbeddedUpstream(engine, ForestFolder(tmp_path / "forest"))) as root:
        answer = ask(root, path, body={"path": str(tmp_path / "other")})
    assert answer.status_code == 403
    assert "--admin-key" in answer.json()["error"]["message"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no forest file is configured"),
        ({"path": None}, "no forest file is configured"),
        ({"path": 5}, "must be a non-empty string, not 5"),
        ({"path": ""}, "must be a non-empty string, not ''"),
        (b"[]", "must be a JSON object"),
        ({"path": "nowhere/forest"}, "No such file"),
        ({"path": "/etc/forest"}, "'/etc/forest' is outside of"),
        ({"path": "../forest"}, "'../forest' is outside of"),
        ({"path": "."}, "'.' is outside of"),
    ],
)
@pytest.mark.parametrize("path", ["save", "load"])
def test_a_bad_file_is_named(root: str, path: str, body: Any, message: str) -> None:
    answer = ask(root, path, key="boss", body=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["save", "load"])
def test_what_is_the_operators(engine: ScriptedEngine, tmp_path: Path, path: str) -> None:
    file = tmp_path / "forest"
    body = {"path": str(file)}
    with serving_engine(engine, keys=KEYS, admin_key="boss") as root:
        assert ask(root, path, body=body).status_code == 401
        assert [ask(root, path, key=key, body=body).status_code for key in ("ka", "bos")] == [403, 403]
    with serving_engine(engine, keys=KEYS) as root:
        assert [ask(root, path, key=key, body=body).status_code for key in (None, "ka")] == [403] * 2
    with serving_engine(engine, admin_key="boss") as root:
        assert ask(root, path, body=body).status_code == 401
    with serving_engine(engine) as root:  # a web page in a local browser connects from this machine too
        page = httpx.post(f"{root}/agentspec/{path}", json=body, headers={"origin": "http://evil.example"})
        assert page.status_code == 403
        behind = httpx.post(f"{root}/agentspec/{path}", json=body, headers={"x-forwarded-for": "10.1.2.3"})
        assert behind.status_code == 403
    assert not file.exists()


def test_an_engine_that_keeps_nothing() -> None:
    with serving_engine(ScriptedEngine(trees=None)) as root:
        for method, path in (("DELETE", "stages/a"), ("POST", "warm"), ("POST", "save")):
            answer = ask(root, path, method=method, body=b'{"response": "x"}')
            assert answer.status_code == 501
            assert answer.json()["error"]["code"] == "not_supported_by_engine"


@pytest.mark.parametrize("key", [None, "ka", "boss"])
def test_metrics_tell_of_every_tenant_and_are_the_operators_if_there_is_one(
    root: str, key: str | None
) -> None:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    status = httpx.get(f"{root}/metrics", headers=headers).status_code
    assert status == {None: 401, "ka": 403, "boss": 200}[key]


def test_the_stages_are_told_in_pages(root: str) -> None:
    """Clients choose names of stages: their number has no limit, and an answer has one."""
    names = [f"flow/s{number}" for number in range(7)]
    for name in names:
        post(root, chat_body(), authorization="Bearer ka", x_agentspec_stage=name)
    post(root, chat_body(), authorization="Bearer kb", x_agentspec_stage="other")

    def page(query: str, key: str = "ka") -> tuple[list[str], int, int | None]:
        told = ask(root, f"stages{query}", method="GET", key=key).json()
        return [one["stage"] for one in told["stages"]], told["num_stages"], told["next_offset"]

    assert page("") == (names, 7, None)
    assert page("?limit=3") == (names[:3], 7, 3)
    assert page("?limit=3&offset=3") == (names[3:6], 7, 6)
    assert page("?limit=3&offset=6") == (names[6:], 7, None)
    assert page("?offset=7") == page("?offset=99999") == ([], 7, None)
    assert page("?limit=7") == (names, 7, None)
    assert page("?limit=2", "kb") == (["other"], 1, None)
    assert page("?limit=2&tenant=acme", "boss") == (names[:2], 7, 2)
    assert page("?limit=7&offset=7", "boss") == (["other"], 8, None)
    everything = Gateway(root, "ka").stages()
    assert [one["stage"] for one in everything["stages"]] == names


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=x",
        "offset=-1",
        "offset=",
        "limit=%d9%a1",
        "offset=" + "9" * 99,
    ],
)
def test_a_page_that_is_none(root: str, query: str) -> None:
    answer = ask(root, f"stages?{query}", method="GET", key="ka")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]
