"""``GET /agentspec/events`` through a real gateway: one snapshot a second while a client reads."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentspec.corpus.corpus import open_corpus
from agentspec.forest import Forest
from agentspec.gateway import ApiKeys, EmbeddedUpstream
from agentspec.gateway.dashboard.routes import MAX_VIEWERS, LiveFeed
from agentspec.gateway.dashboard.traffic import TrafficStats
from agentspec.gateway.errors import RateLimitError
from agentspec.stages import StageKey
from agentspec.stats import StageStats
from tests.gateway.support.live import TIMEOUT_S, chat_body, post, serving, serving_engine
from tests.gateway.support.scripted import ScriptedEngine

KEYS = ApiKeys.parse(["ka=acme", "kb=bolt"])


@contextmanager
def reading(root: str, key: str = "none", query: str = "") -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the snapshots as they arrive."""
    headers = {"authorization": f"Bearer {key}"}
    with httpx.stream(
        "GET", f"{root}/agentspec/events{query}", headers=headers, timeout=TIMEOUT_S, trust_env=False
    ) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line)


class Counting(EmbeddedUpstream):
    """An upstream that counts the reads of its counters."""

    def __init__(self, engine: ScriptedEngine) -> None:
        super().__init__(engine)
        self.num_asked = 0

    async def stats(self) -> Any:
        self.num_asked += 1
        return await super().stats()


def test_a_tenant_sees_its_own_stages_and_how_they_follow() -> None:
    with serving_engine(ScriptedEngine(), keys=KEYS) as root:
        for key, stages in (("ka", "xyx"), ("kb", "b")):
            for stage in stages:
                tags = {"x_agentspec_stage": f"flow/{stage}", "x_agentspec_session": "s"}
                post(root, chat_body(), authorization=f"Bearer {key}", **tags)
        with reading(root, "ka") as snapshots:
            told = next(snapshots)
    x, y = told["stages"]
    assert (x["stage"], x["num_requests"], x["num_accepted_tokens"]) == ("flow/x", 2, 12)
    assert (x["accepted_per_step"], x["accepted_per_step_now"]) == (2.5, None)
    assert x["accepted_by_source"] == {"request": 4, "stage": 8}
    assert x["tag_sources"] == {"header": 2}
    assert (x["tree_bytes"], x["tree_limit_bytes"]) == (4096, None)
    assert (x["num_running"], x["num_failed"], x["saved_s"]) == (0, 0, None)
    assert x["mean_s"] > 0
    assert y["stage"] == "flow/y"
    assert told["total"]["num_requests"] == 3
    assert told["num_stages_left_out"] == 0
    assert {(edge["from"], edge["to"], edge["count"]) for edge in told["edges"]} == {
        ("flow/x", "flow/y", 1),
        ("flow/y", "flow/x", 1),
    }


def test_operators_alone_see_what_engines_share(tmp_path: Path) -> None:
    with closing(open_corpus(str(tmp_path), "v", 100, Forest())) as corpus:
        corpus.start()

        def sharing(**options: Any) -> Any:
            return serving(
                EmbeddedUpstream(ScriptedEngine(), corpus_figures=lambda: corpus.figures().describe()),
                **options,
            )

        with sharing(keys=KEYS, admin_key="boss") as root:
            with reading(root, "boss") as snapshots:
                [engine] = next(snapshots)["engines"]
            with reading(root, "ka") as snapshots:
                assert "engines" not in next(snapshots)
        with sharing() as root, reading(root) as snapshots:
            [same] = next(snapshots)["engines"]
        with sharing(admin_key="boss") as root, reading(root) as snapshots:
            assert "engines" not in next(snapshots)
    assert engine == same
    assert (engine["engine"], engine["num_published"], engine["lag_s"]) == ("embedded", 0, 0.0)


def test_an_operator_sees_the_stages_and_workflows_of_all_tenants() -> None:
    with serving_engine(ScriptedEngine(), keys=KEYS, admin_key="boss") as root:
        for key, stages in (("ka", "xy"), ("kb", "xyy")):  # tenants with the same stage names
            for stage in stages:
                tags = {"x_agentspec_stage": f"flow/{stage}", "x_agentspec_session": "s"}
                post(root, chat_body(), authorization=f"Bearer {key}", **tags)
        with reading(root, "boss") as snapshots, reading(root, "ka") as own:
            told, acmes = next(snapshots), next(own)
        with reading(root, "boss", "?tenant=acme") as snapshots:
            narrow = next(snapshots)
    assert [(one["tenant"], one["stage"], one["num_requests"]) for one in told["stages"]] == [
        ("acme", "flow/x", 1),
        ("acme", "flow/y", 1),
        ("bolt", "flow/x", 1),
        ("bolt", "flow/y", 2),
    ]
    assert all(one["tag_sources"]["header"] == one["num_requests"] for one in told["stages"])
    assert told["total"]["num_requests"] == 5
    assert {(edge["tenant"], edge["from"], edge["to"]) for edge in told["edges"]} == {
        ("acme", "flow/x", "flow/y"),
        ("bolt", "flow/x", "flow/y"),
        ("bolt", "flow/y", "flow/y"),
    }
    for one in (acmes, narrow):
        assert [stage["stage"] for stage in one["stages"]] == ["flow/x", "flow/y"]
        assert "tenant" not in json.dumps(one)


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("nobody", 401), ("boss", 403), ("ka", 405)])
def test_it_needs_a_tenants_key_and_a_get(key: str | None, status: int) -> None:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with serving_engine(ScriptedEngine(), keys=KEYS, admin_key="boss") as root:
        answer = httpx.post(f"{root}/agentspec/events", headers=headers, trust_env=False)
        assert answer.status_code == status


def test_nobody_is_asked_unless_somebody_looks() -> None:
    upstream = Counting(ScriptedEngine())
    with serving(upstream) as root:
        post(root, chat_body())
        assert upstream.num_asked == 0
        with reading(root) as snapshots:
            next(snapshots)
            next(snapshots)
        assert upstream.num_asked >= 2
        while 'endpoint="/agentspec/events"' not in httpx.get(f"{root}/metrics", trust_env=False).text:
            pass  # until the server has noticed the disconnect
        with reading(root) as snapshots:  # the first client's window has ended
            assert next(snapshots)["total"]["series"] == []


def test_the_end_of_the_server_ends_the_stream_at_once() -> None:
    rest: list[dict[str, Any]] = []
    with serving_engine(ScriptedEngine(), grace_s=TIMEOUT_S) as root:
        first = threading.Event()

        def read() -> None:
            with reading(root) as snapshots:
                next(snapshots)
                first.set()
                rest.extend(snapshots)  # to a clean end: httpx raises otherwise

        thread = threading.Thread(target=read)
        thread.start()
        assert first.wait(TIMEOUT_S)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert len(rest) < TIMEOUT_S / 2


async def test_one_look_serves_all_and_who_leaves_is_forgotten() -> None:
    engine = ScriptedEngine(
        counters={StageKey("acme", ("a",)): StageStats(measured_decode_s=1.0, plain_decode_s=0.5)}
    )
    upstream = Counting(engine)
    feed = LiveFeed(upstream, TrafficStats(), interval_s=0.001)
    async with aclosing(feed.events("acme")) as one:
        first = await anext(one)
        async with aclosing(feed.events("bolt")) as other:
            assert json.loads((await anext(other)).removeprefix(b"data: "))["stages"] == []
        assert json.loads((await anext(one)).removeprefix(b"data: "))["stages"][0]["saved_s"] == -0.5
        assert b'"stage":"a"' in first
    asked = upstream.num_asked
    await asyncio.sleep(0.01)
    assert upstream.num_asked == asked


async def test_too_many_of_one_tenant_are_refused() -> None:
    feed = LiveFeed(EmbeddedUpstream(ScriptedEngine()), TrafficStats(), interval_s=0.001)
    streams = [feed.events("acme") for _ in range(MAX_VIEWERS)]
    for stream in streams:
        await anext(stream)
    with pytest.raises(RateLimitError, match="close one"):
        feed.check_room("acme")
    feed.check_room("bolt")
    await streams[0].aclose()
    feed.check_room("acme")
    for stream in streams[1:]:
        await stream.aclose()
