"""Requests of many kinds: their outputs with drafts are those without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
import torch

from agentspec.wire import XARGS_FIELD
from benchmarks.vllm.chats import MODEL_NAME, load
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.server import Server
from tests.real_vllm.support.probes import (
    BLOCK,
    NUM_CLIENTS,
    NUM_SAMPLES,
    PROBES,
    SAMPLES_AT_ONCE,
    complete,
    in_grammars,
    prompt_ids,
    repeated,
    samples,
)
from tests.real_vllm.support.servers import ours, serving

IDS = list(range(1280))  # its vocabulary
END = "<|end|>"  # end token of the bundled model


@pytest.fixture(scope="module")
def server(references: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield one server for all tests. ``references``: so that the one without speculation has ended."""
    with serving(ours(), tmp_path_factory.mktemp("ours")) as server:
        yield server


@pytest.mark.parametrize("name", PROBES)
def test_no_token_is_changed(server: Server, references: dict[str, list[Any]], name: str) -> None:
    before = server.counters()
    assert PROBES[name](server) == references[name]
    assert (server.counters() - before).num_accepted_tokens > 0  # otherwise nothing was tested


@pytest.mark.parametrize("fields", [{"logit_bias": {"7": 1.0}}, {"min_p": 0.1, "temperature": 0.7}])
def test_what_vllm_does_not_verify_is_refused_in_its_words(server: Server, fields: dict[str, Any]) -> None:
    chat = load(7, 51)[0]
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=chat.asking(**fields).body, timeout=60)
    assert answer.status_code == 400
    assert "min_p and logit_bias" in answer.json()["error"]["message"]
    assert "not yet supported with speculative decoding" in answer.json()["error"]["message"]
    assert ask_all(server.url, [chat], 1)[0].num_tokens > 10


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_token_ids": IDS[:200], "min_tokens": 2}, "stop_token_ids"),
        ({"stop_token_ids": IDS[9:137], "min_tokens": 2}, "stop_token_ids"),  # one more with the end token
        ({"stop_token_ids": IDS[:200], "min_tokens": 2, "n": 2, "temperature": 1}, "stop_token_ids"),
        ({"allowed_token_ids": IDS[:1025]}, "allowed_token_ids"),
        ({"bad_words": ["x" * 1025]}, "bad_words"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_request_without_room_in_the_sampler_ends_no_engine(
    server: Server, fields: dict[str, Any], param: str, path: str
) -> None:
    """Model runner V1 has no such limits."""
    prompt = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    body = {"model": MODEL_NAME, "max_tokens": 3, "temperature": 0, **prompt, **fields}
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=60)
    if server.control("status")["model_runner"] == "V1":
        assert answer.status_code == 200
    else:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert "vLLM has room for" in answer.json()["error"]["message"]
    assert ask_all(server.url, load(7, 57)[:1], 1)[0].num_tokens > 10


def test_what_just_fits_into_the_sampler_is_answered(server: Server) -> None:
    ends = {"stop_token_ids": IDS[9:136], "min_tokens": 2}
    for fields in (ends, {"allowed_token_ids": IDS[:1024]}, {"bad_words": ["x" * 500]}):
        body = {"model": MODEL_NAME, "prompt": "hi", "max_tokens": 3, **fields}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200


def test_places_that_hold_no_draft_are_not_counted(server: Server) -> None:
    """vLLM fills the step of a prompt's last token up with as many places as a draft has."""
    before = figures(server, "repeated/none")
    repeated(server)
    after = figures(server, "repeated/none")
    assert after["num_output_tokens"] > before.get("num_output_tokens", 0)
    assert after["num_draft_tokens"] == after["num_drafts"] == 0


def test_samples_are_distributed_as_without_drafts(server: Server, references: dict[str, list[Any]]) -> None:
    """A chi-square test of homogeneity. The seeds are fixed, but not the drafts: they depend on the load."""
    samples(server, -SAMPLES_AT_ONCE, SAMPLES_AT_ONCE, learn=1)  # so that there is something to draft
    before = figures(server, "samples")
    drafted = samples(server, 0, NUM_SAMPLES)
    assert homogeneity(drafted, references["samples"]) > 0.001
    accepted = figures(server, "samples")["num_accepted_tokens"] - before["num_accepted_tokens"]
    assert accepted > NUM_SAMPLES // 2


def homogeneity(some: Sequence[tuple[int, ...]], others: Sequence[tuple[int, ...]]) -> float:
    """Return the chance of samples as different as these if both have the same distribution."""
    counts = [Counter(some), Counter(others)]
    total = counts[0] + counts[1]
    kept = [one for one, number in total.items() if number >= 10]
    table = torch.tensor([[*(count[one] for one in kept), 0] for count in counts], dtype=torch.float64)
    table[:, -1] = torch.tensor([len(some), len(others)]) - table.sum(1)  # all rare ones together
    expected = table.sum(1, keepdim=True) * table.sum(0) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor(len(kept) / 2, dtype=torch.float64), statistic / 2))


def test_the_steps_of_a_trace_add_up_to_the_output(server: Server) -> None:
    chats = [in_grammars(*chat).tagged(trace=chat[1].name) for chat in enumerate(load(14, 53))]
    ask_all(server.url, [chat.tagged(trace="other") for chat in chats], NUM_CLIENTS)
    num_accepted = 0
    for chat, answer in zip(chats, ask_all(server.url, chats, NUM_CLIENTS), strict=True):
        steps = steps_of(server, chat.name)
        (choice,) = answer.choices.values()
        assert [len(choice.token_ids), choice.text] == [num_tokens(steps), text(steps).removesuffix(END)]
        num_accepted += sum(len(step["accepted"]) for step in steps)
    assert num_accepted > 200


def test_a_trace_of_a_cached_prompt_has_no_places_without_a_draft(server: Server) -> None:
    ids = prompt_ids(55)[0]
    body: dict[str, Any] = {"prompt": ids[: len(ids) // BLOCK * BLOCK - BLOCK + 1], "ignore_eos": True}
    body["skip_special_tokens"] = False
    for name in ("first", "second", "third"):
        tags = {"agentspec_stage": "traced/cached", "agentspec_trace": name}
        token_ids, output, _ = complete(server, **body, **{XARGS_FIELD: tags})
        steps = steps_of(server, name)
        assert [len(token_ids), output] == [num_tokens(steps), text(steps)]
        assert len(steps[0]["tokens"]) == 0


def steps_of(server: Server, name: str) -> list[dict[str, Any]]:
    return list(server.control("trace", id=name)["steps"])


def num_tokens(steps: Sequence[dict[str, Any]]) -> int:
    return sum(len(step["accepted"]) + (step["own"] is not None) for step in steps)


def text(steps: Sequence[dict[str, Any]]) -> str:
    return "".join(
        "".join(step["tokens"][index] for index in step["accepted"]) + (step["own"] or "") for step in steps
    )


def figures(server: Server, stage: str) -> dict[str, Any]:
    found = server.control("stages")["stages"]
    return next((one for one in found if one["stage"] == stage), {})
