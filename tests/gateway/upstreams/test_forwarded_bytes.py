from __future__ import annotations

import json
from typing import Any

import pytest

from agentspec.errors import RequestError
from agentspec.gateway.stages.read_tags import with_xargs
from agentspec.gateway.upstreams.usage import BODY_LIMIT_BYTES, TAIL_LIMIT_BYTES, StageUsage, UsageTail
from agentspec.stages import StageKey

OURS = {"agentspec_stage": "a/é", "agentspec_tenant": "t"}


@pytest.mark.parametrize("raw", [b"{}", b' \n{"a": 1}', b"{ }", '{"a": "é"}'.encode()])
def test_keys_are_added_and_the_rest_stays(raw: bytes) -> None:
    body = json.loads(raw)
    made = with_xargs(raw, body, OURS)
    assert json.loads(made) == {**body, "vllm_xargs": OURS}
    assert made.endswith(raw.lstrip()[1:])
    assert with_xargs(raw, body, {}) == raw


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_a_body_in_another_encoding(encoding: str) -> None:
    raw = '{"a": "é"}'.encode(encoding)
    assert json.loads(with_xargs(raw, json.loads(raw), OURS)) == {"a": "é", "vllm_xargs": OURS}


@pytest.mark.parametrize("xargs", [OURS, {}])
def test_a_client_writes_nothing_under_our_prefix(xargs: dict[str, Any]) -> None:
    forged = {"agentspec_tenant": "victim", "agentspec_new": 1, "other": 2}
    raw = json.dumps({"vllm_xargs": forged}).replace("vllm_xargs", "vllm\\u005fxargs").encode()
    assert json.loads(with_xargs(raw, json.loads(raw), xargs)) == {"vllm_xargs": {"other": 2, **xargs}}


def test_a_second_key_of_the_same_name_does_not_win() -> None:
    raw = b'{"vllm_xargs": {}, "vllm_xargs": {"agentspec_tenant": "victim"}}'
    assert with_xargs(raw, json.loads(raw), OURS).count(b"agentspec_tenant") == 1


def test_xargs_must_be_an_object() -> None:
    with pytest.raises(RequestError, match="vllm_xargs"):
        with_xargs(b"", {"vllm_xargs": [1]}, OURS)


def test_the_last_event_of_a_stream_is_found_across_parts() -> None:
    tail = UsageTail(is_event_stream=True)
    stream = b'data: {"n": 1}\n\n' * 5000 + b'data: {"usage": {"x": 1}}\r\n\r\ndata: [DONE]\n\n'
    for start in range(0, len(stream), 1000):
        tail.add(stream[start : start + 1000])
    assert tail.payload() == {"usage": {"x": 1}}


def told(stream: bytes, step: int = 1000) -> dict[str, Any]:
    tail = UsageTail(is_event_stream=True)
    for start in range(0, len(stream), step):
        tail.add(stream[start : start + step])
    return tail.payload()


def events(*payloads: dict[str, Any]) -> bytes:
    """Return events in the format of responses and messages, each with its name."""
    return b"".join(
        f"event: {payload['type']}\ndata: {json.dumps(payload)}\n\n".encode() for payload in payloads
    )


@pytest.mark.parametrize("num_deltas", [1, 5000])
@pytest.mark.parametrize("text", ["x", "x" * 2 * TAIL_LIMIT_BYTES, 'say "usage": {"input_tokens": 1}'])
def test_the_counts_of_a_response(num_deltas: int, text: str) -> None:
    usage = {"input_tokens": 19, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 40}
    figures = {"num_draft_tokens": 36, "num_accepted_draft_tokens": 30}
    response = {
        "tools": [{"parameters": {"properties": {"usage": {"type": "string"}}}}],
        "output": [{"text": text}],
        "usage": usage,
        "metadata": {"a": "b"},
        "metrics": {"speculative_decoding": figures},
    }
    stream = events(
        *[{"type": "response.output_text.delta", "delta": "x"}] * num_deltas,
        {"type": "response.completed", "response": response, "sequence_number": 5},
    )
    payload = told(stream)
    assert payload["usage"] == usage
    ledger = StageUsage()
    ledger.count_answer(StageKey("t", ("a",)), payload)
    (stats,) = ledger.stats.values()
    assert (stats.num_prompt_tokens, stats.num_output_tokens, stats.num_accepted_tokens) == (19, 40, 30)


@pytest.mark.parametrize("num_deltas", [1, 5000])
@pytest.mark.parametrize("named", [{}, {"input_tokens": 19}, {"input_tokens": None}])
def test_the_counts_of_a_message(num_deltas: int, named: dict[str, int | None]) -> None:
    start = {"input_tokens": 19, "cache_read_input_tokens": 5, "output_tokens": 1}
    stream = events(
        {"type": "message_start", "message": {"id": "msg_1", "content": [], "usage": start}},
        *[{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "usage"}}] * num_deltas,
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 40, **named},
        },
        {"type": "message_stop"},
    )
    ledger = StageUsage()
    ledger.count_answer(StageKey("t", ("a",)), told(stream))
    (stats,) = ledger.stats.values()
    assert (stats.num_prompt_tokens, stats.num_output_tokens) == (24, 40)


@pytest.mark.parametrize("kind", ["response", "message"])
def test_the_counts_of_a_body(kind: str) -> None:
    tail = UsageTail(is_event_stream=False)
    usage = {"input_tokens": 19, "output_tokens": 40}
    for part in (b'{"object": "%s", ' % kind.encode(), b'"usage": %s}' % json.dumps(usage).encode()):
        tail.add(part)
    ledger = StageUsage()
    ledger.count_answer(StageKey("t", ("a",)), tail.payload())
    (stats,) = ledger.stats.values()
    assert (stats.num_prompt_tokens, stats.num_output_tokens) == (19, 40)


def test_an_engine_that_writes_what_is_no_number_is_counted_too() -> None:
    tail = UsageTail(is_event_stream=False)
    tail.add(b'{"logprobs": [NaN, -Infinity], "usage": {"x": 1}}')
    assert tail.payload()["usage"] == {"x": 1}


def test_a_stream_that_was_broken_off_tells_nothing() -> None:
    whole = events({"type": "response.completed", "response": {"usage": {"input_tokens": 19}}})
    for end in range(0, len(whole) - 5, 7):
        assert "input_tokens" not in str(told(whole[:end]).get("usage", ""))


@pytest.mark.parametrize("data", [b"", b"data: [DONE]\n\n", b"data: {bro", b": ping\n\n", b"data: 5\n\n"])
def test_a_stream_that_tells_nothing(data: bytes) -> None:
    tail = UsageTail(is_event_stream=True)
    tail.add(data)
    assert tail.payload() == {}


def test_what_is_too_large_is_not_kept() -> None:
    event, body = UsageTail(is_event_stream=True), UsageTail(is_event_stream=False)
    event.add(b'data: {"a": "' + b"x" * TAIL_LIMIT_BYTES + b'"}\n\n')
    body.add(b'{"a": "')
    for _ in range(3):
        body.add(b"x" * BODY_LIMIT_BYTES)
    assert event.payload() == {}
    assert body.payload() == {}


def test_the_ledger_keeps_so_many_stages_apart() -> None:
    ledger = StageUsage(max_stages=2)
    for name in ("a", "b", "c", "d", "a"):
        ledger.count_request(StageKey("t", (name,)))
    counts = {stage.name: stats.num_requests for stage, stats in ledger.stats.items()}
    assert counts == {"a": 2, "b": 1, "other": 2}


def test_a_tenant_with_many_stages_takes_none_from_another() -> None:
    ledger = StageUsage(max_stages=1)
    for key in (StageKey("t", ("a",)), StageKey("t", ("b",)), StageKey("u", ("a",))):
        ledger.count_request(key)
    assert [str(stage) for stage in ledger.stats] == ["t:a", "t:other", "u:a"]


@pytest.mark.parametrize(
    ("answer", "num_steps"),
    [
        # vLLM 0.32's record of 40 tokens: eleven steps had a draft, seven had none
        ({"num_spec_steps": 11, "num_draft_tokens": 31, "num_accepted_draft_tokens": 21}, 18),
        ({"num_spec_steps": 5, "num_draft_tokens": 36, "num_accepted_draft_tokens": 36}, 5),
        ({}, 0),
    ],
)
def test_steps_without_a_draft_are_steps_too(answer: dict[str, int], num_steps: int) -> None:
    ledger = StageUsage()
    usage = {"prompt_tokens": 19, "completion_tokens": 40}
    payload = {"usage": usage, "metrics": {"speculative_decoding": answer}}
    ledger.count_answer(StageKey("t", ("a",)), payload)
    (stats,) = ledger.stats.values()
    assert stats.num_steps == num_steps


@pytest.mark.parametrize(
    "payload",
    [
        {"usage": None},
        {"usage": {"prompt_tokens": "7", "completion_tokens": -1}},
        {"metrics": {"speculative_decoding": {"num_spec_steps": 1.5, "draft_tokens_by_source": [1]}}},
    ],
)
def test_the_ledger_takes_no_nonsense(payload: dict[str, Any]) -> None:
    ledger = StageUsage()
    ledger.count_answer(StageKey("t", ("a",)), payload)
    (stats,) = ledger.stats.values()
    assert (stats.num_prompt_tokens, stats.num_output_tokens, stats.num_steps) == (0, 0, 0)
    assert stats.drafted_by_source == {}
