from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentspec.errors import ConfigError
from agentspec.vllm_plugin.launch import WORKER
from benchmarks.vllm.chats import MODEL_NAME, load
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.speculators import NONE, Speculator, bundled_on_cpu
from tests.real_vllm.support.adapters import make_adapter

PRICE = 0.02  # close to 0: drafts must not depend on the machine's load


def ours(**settings: Any) -> Speculator:
    return Speculator("agentspec", settings={"price": PRICE, **settings})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield one server for all tests that use their own tenants."""
    folder = tmp_path_factory.mktemp("server")
    with bundled_on_cpu().serving(ours(forest_file=str(folder / "forest")), folder) as server:
        yield server


def figures(server: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["tenant"], one["stage"]): one for one in server.control("stages")["stages"]}


def accepted(server: Any) -> int:
    return sum(one["num_accepted_tokens"] for one in figures(server).values())


@pytest.mark.slow  # two servers; tests/vllm_plugin/test_lora.py has the trees of all adapters
def test_adapters_and_tenants_have_trees_of_their_own(serving: Any, tmp_path: Path) -> None:
    modules = [f"{name}={make_adapter(tmp_path / name, seed)}" for seed, name in enumerate(("red", "blue"))]
    few = ("--max-num-seqs", "16")  # with adapters vLLM needs room for the drafts of all these requests
    flags = ("--enable-lora", "--max-lora-rank", "8", *few, "--lora-modules", *modules)
    chats = [one.asking(model=model) for one in load(7, 5)[:3] for model in (MODEL_NAME, "red", "blue")]
    tagged = [one.tagged(tenant=tenant) for one in chats for tenant in ("acme", "other")]
    # one at a time: on CPUs vLLM 0.32 confuses the model itself with adapters of the same batch
    with serving(NONE, *flags) as server:
        expected = ask_all(server.url, tagged, 1)
    with serving(ours(), *flags) as server:
        assert answers(ask_all(server.url, tagged, 1)) == answers(expected)
        counted = figures(server)
    assert {tenant for tenant, _ in counted} == {"acme", "other"}
    assert {stage for _, stage in counted} == {one.stage for one in chats}
    assert answers(expected[::6]) != answers(expected[2::6])  # the adapters do change the outputs


def answers(given: list[Any]) -> list[list[int]]:
    return [answer.choices[0].token_ids for answer in given]


@pytest.mark.slow  # two servers; test_serve has one that dies and remembers
def test_what_was_learned_outlives_the_server(serving: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "forest")
    chats = load(14, 6)
    with serving(ours(forest_file=path)) as server:
        first = ask_all(server.url, chats, 1)
        cold = accepted(server)
    assert Path(path).exists()  # saved at shutdown
    with serving(ours(forest_file=path)) as server:
        assert answers(ask_all(server.url, chats, 1)) == answers(first)
        assert accepted(server) > 1.2 * cold


def test_the_control_channel_reaches_the_worker(server: Any) -> None:
    chat = load(7, 7)[-1].tagged(tenant="control")
    (answer,) = ask_all(server.url, [chat], 1)
    status = server.control("status")
    assert status["num_requests"] == 0
    assert status["tree_bytes"] > 0
    assert status["propose_us"]["steps"] > 0
    saved = server.control("save")
    assert saved["num_outputs"] > 0
    assert server.control("evict", tenant="control", stage=chat.stage)["freed_bytes"] > 0
    assert figures(server)["control", chat.stage]["tree_bytes"] == 0
    assert server.control("load")["num_outputs"] == saved["num_outputs"]
    assert figures(server)["control", chat.stage]["tree_bytes"] > 0
    outputs = [{"stage": "new/stage", "response": answer.choices[0].text}]
    warmed = server.control("warm", tenant="control", outputs=outputs)
    assert warmed["num_tokens"] == answer.num_tokens - 1  # without the end token
    ask_all(server.url, [chat.tagged(stage="new/stage", session="new")], 1)
    assert figures(server)["control", "new/stage"]["num_accepted_tokens"] > answer.num_tokens // 2


def test_requests_have_their_say(server: Any) -> None:
    chat = load(7, 8)[0]
    found: dict[str, Any] = {}
    for name, tags in (("off", {"max_draft": 0}), ("short", {"max_draft": 2}), ("unlearned", {"learn": 0})):
        ask_all(server.url, [chat.tagged(tenant=name, **tags)] * 2, 1)
        found |= {tenant: one for (tenant, _), one in figures(server).items()}
    assert found["off"]["num_draft_tokens"] == 0
    assert 0 < found["short"]["num_draft_tokens"] <= 2 * found["short"]["num_drafts"]
    assert found["unlearned"]["tree_bytes"] <= found["short"]["tree_bytes"] / 2


def test_a_prediction_becomes_drafts(server: Any) -> None:
    chat = load(7, 9)[2].tagged(learn=0)
    text = ask_all(server.url, [chat.tagged(tenant="first")], 1)[0].choices[0].text
    ask_all(server.url, [chat.tagged(tenant="alone")], 1)
    ask_all(server.url, [chat.tagged(tenant="told", prediction=text)], 1)
    found = {tenant: one["num_accepted_tokens"] for (tenant, _), one in figures(server).items()}
    assert found["told"] > found["alone"]


def test_malformed_tags_of_a_client_without_a_gateway_do_no_harm(server: Any) -> None:
    chat = load(7, 10)[0]
    for bad in ({"stage": "//"}, {"max_draft": -3}, {"stage": 5, "tenant": 7}, {"min_match": "x"}):
        ask_all(server.url, [chat.tagged(**bad)], 1)
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert ("default", "default") in figures(server)


@pytest.mark.slow
def test_a_worker_without_its_proposer_stops_the_start_with_a_clear_reason(
    serving: Any, tmp_path: Path
) -> None:
    ngram = Speculator("ngram", method="ngram")
    with pytest.raises(ConfigError), serving(ngram, "--worker-cls", WORKER):
        pass
    assert "this worker needs --speculative-config" in (tmp_path / "vllm-ngram.log").read_text()
