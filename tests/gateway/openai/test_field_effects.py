"""What is honoured has an effect on the bundled model's outputs, the same with and without drafts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from agentspec.engine import EngineConfig, TorchEngine
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.forest import Forest
from agentspec.models import bundled_model_dir
from tests.gateway.support.live import serving_engine
from tests.support.checkpoints import make_tool_checkpoint

ASK = "How many users are there? users(id, name)"
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": ASK}], "max_tokens": 120},
    "/v1/completions": {"prompt": ASK, "max_tokens": 120},
    "/v1/responses": {"input": ASK, "max_output_tokens": 120},
}
CONTEXT = 2048
ENUM = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"]}
CLOSED = {**ENUM, "additionalProperties": False}
LISTS = {
    **CLOSED,
    "properties": {"a": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 3, "maxItems": 3}},
}
ANSWER = r'\{\s*"a"\s*:\s*"(x|yy)"\s*\}'
Say = Callable[..., str]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    config = EngineConfig(
        bundled_model_dir(), "tiny", dtype="float64", max_model_len=CONTEXT, threads=1, price=0.1
    )
    with (
        serving_engine(TorchEngine(config, Forest())) as root,
        httpx.Client(base_url=root, trust_env=False, timeout=120) as client,
    ):
        yield client


def answer_of(client: httpx.Client, path: str, fields: dict[str, Any], max_draft: int = 16) -> dict[str, Any]:
    body = {"model": "tiny", "temperature": 0, **BASES[path], **fields}
    answer = client.post(path, json=body, headers={"x-agentspec-max-draft": str(max_draft)})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def text_of(told: dict[str, Any]) -> str:
    if "output" in told:
        return "".join(part["text"] for item in told["output"] for part in item.get("content", ()))
    choice = told["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"] or "")


@pytest.fixture(scope="module")
def say(client: httpx.Client) -> Say:
    """Return a function that returns the text of an answer, which is the same with and without drafts."""

    def say(path: str, **fields: Any) -> str:
        texts = {text_of(answer_of(client, path, fields, max_draft)) for max_draft in (0, 16, 16)}
        assert len(texts) == 1
        return texts.pop()

    return say


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"choice": ["maybe so", "perhaps"]}}, "maybe so|perhaps"),
        ({"structured_outputs": {"regex": "[a-c]{3}-[0-9]{2}"}}, "[a-c]{3}-[0-9]{2}"),
        ({"structured_outputs": {"grammar": 'root ::= "yes, " ("a" | "b")'}}, "yes, [ab]"),
        ({"structured_outputs": {"json": CLOSED}}, ANSWER),
        ({"structured_outputs": {"json_object": True}, "logit_bias": {}}, r"\{.*"),
        ({"guided_choice": ["maybe so", "perhaps"]}, "maybe so|perhaps"),
        ({"guided_regex": "[a-c]{3}"}, "[a-c]{3}"),
        ({"guided_grammar": 'start: "yes, " ("a" | "b")'}, "yes, [ab]"),
        ({"guided_json": json.dumps(CLOSED)}, ANSWER),
        ({"grammar": 'root ::= "x"+ "."', "logit_bias": {}}, r"x+\.?"),
        ({"json_schema": CLOSED}, ANSWER),
    ],
)
def test_forms_of_the_output(say: Say, path: str, fields: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, say(path, **fields), re.DOTALL)


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "json_object", "schema": CLOSED},
        {"type": "json_schema", "schema": CLOSED},
        {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": CLOSED}},
    ],
)
def test_forms_of_a_response_format(say: Say, wanted: dict[str, Any]) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert re.fullmatch(ANSWER, say(path, response_format=wanted))


def token_ids(client: httpx.Client, text: str) -> list[int]:
    asked = {"prompt": text, "add_special_tokens": False}
    ids: list[int] = client.post("/tokenize", json=asked).json()["tokens"]
    return ids


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("schema", [CLOSED, LISTS])
def test_a_model_that_loves_white_space_comes_to_an_end(
    client: httpx.Client, path: str, schema: dict[str, Any]
) -> None:
    spaces = {token for text in (" ", "\n", "\t", "\r\n", "  ", "    ") for token in token_ids(client, text)}
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    fields = {
        "json_schema": schema,
        "logit_bias": {**{str(token): 100 for token in spaces}, str(token_ids(client, "}")[0]): 50},
        limit: CONTEXT - 100,
    }
    told = answer_of(client, path, fields)
    json.loads(text_of(told))
    used = told["usage"]
    assert (used.get("completion_tokens") or used["output_tokens"]) < 400


@pytest.mark.parametrize("path", BASES)
def test_edits_of_the_logits(client: httpx.Client, say: Say, path: str) -> None:
    free = say(path)
    digits = [token for digit in "0123456789" for token in token_ids(client, digit)]
    assert set(say(path, logit_bias={str(digits[7]): 100})) == {"7"}
    assert say(path, logit_bias={str(digits[7]): -100}) == free
    assert set(say(path, allowed_token_ids=digits[:2])) <= set("01")
    assert say(path, repetition_penalty=1.9) != free
    word = client.post("/detokenize", json={"tokens": token_ids(client, free)[:1]}).json()["prompt"]
    assert not say(path, bad_words=[word]).startswith(word)
    last = token_ids(client, free)[3]
    stopped = say(path, stop_token_ids=[last])
    assert free.startswith(stopped)
    assert len(stopped) < len(free)
    assert say(path, stop_token_ids=[last], min_tokens=20) != stopped


def test_min_tokens(client: httpx.Client) -> None:
    ends = {str(token): 100 for token in Tokenizer.load(bundled_model_dir()).eos_ids}
    for fields, num_tokens in (
        ({}, 1),
        ({"min_tokens": 9}, 10),
        ({"min_tokens": 9, "ignore_eos": True}, 120),
    ):
        told = answer_of(client, "/v1/chat/completions", {"logit_bias": ends, **fields})
        assert told["usage"]["completion_tokens"] == num_tokens


def test_the_last_message_is_continued(client: httpx.Client, say: Say) -> None:
    path = "/v1/chat/completions"
    whole = say(path)
    begun = whole[:8]
    messages = [*BASES[path]["messages"], {"role": "assistant", "content": begun}]
    more = say(path, messages=messages, continue_final_message=True)
    assert (begun + more)[:60] == whole[:60]
    assert say(path, messages=messages)[:60] != more[:60]
    counted = client.post("/tokenize", json={"messages": messages, "continue_final_message": True}).json()
    told = answer_of(client, path, {"messages": messages, "continue_final_message": True})
    assert told["usage"]["prompt_tokens"] == counted["count"]


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Yield a client of a model whose chat template shows tools."""
    path = make_tool_checkpoint(tmp_path_factory.mktemp("model"))
    config = EngineConfig(path, "tiny", dtype="float64", max_model_len=1024, threads=1, price=0.1)
    with (
        serving_engine(TorchEngine(config, Forest())) as root,
        httpx.Client(base_url=root, trust_env=False, timeout=120) as client,
    ):
        yield client


CALLS = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TWO_CALLS = f"start: {json.dumps(CALLS)} {json.dumps(chr(10) + 'and' + chr(10))} {json.dumps(CALLS)}"
FUNCTION = {"name": "f", "parameters": {"type": "object"}}


@pytest.mark.parametrize(("parallel", "num_calls"), [(None, 2), (True, 2), (False, 1)])
@pytest.mark.parametrize("stream", [False, True])
def test_parallel_tool_calls(
    caller: httpx.Client, parallel: bool | None, num_calls: int, stream: bool
) -> None:
    fields: dict[str, Any] = {"parallel_tool_calls": parallel, "guided_grammar": TWO_CALLS}
    chat = {"tools": [{"type": "function", "function": FUNCTION}], "max_tokens": 200}
    responses = {"tools": [{"type": "function", **FUNCTION}], "max_output_tokens": 200}
    if stream:
        body = {"model": "tiny", **BASES["/v1/chat/completions"], **chat, **fields, "stream": True}
        text = caller.post("/v1/chat/completions", json=body).text
        assert text.count('"name":"f"') == num_calls
        assert '"finish_reason":"tool_calls"' in text
        return
    choice = answer_of(caller, "/v1/chat/completions", {**chat, **fields})["choices"][0]
    assert (len(choice["message"]["tool_calls"]), choice["finish_reason"]) == (num_calls, "tool_calls")
    told = answer_of(caller, "/v1/responses", {**responses, **fields})
    calls = [item for item in told["output"] if item["type"] == "function_call"]
    assert len(calls) == num_calls
    assert told["status"] == "completed"
    assert told["parallel_tool_calls"] == (parallel is not False)
    if num_calls == 1:
        both = answer_of(caller, "/v1/responses", {**responses, **fields, "parallel_tool_calls": True})
        assert told["usage"]["output_tokens"] < 0.7 * both["usage"]["output_tokens"]
