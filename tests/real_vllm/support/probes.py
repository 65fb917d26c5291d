"""Requests of many kinds whose outputs must not depend on drafts.

A probe sends its requests to a server and returns the outputs. Each uses chats of its own: what one probe
learns must not draft for another.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import httpx
import torch
from safetensors import safe_open

from agentspec.models import bundled_model_dir
from agentspec.wire import XARGS_FIELD
from benchmarks.vllm.chats import MODEL_NAME, Chat, load
from benchmarks.vllm.client import Answer, ask_all
from benchmarks.vllm.scenarios import structured
from benchmarks.vllm.server import Server
from tests.real_vllm.support.servers import BLOCK

NUM_CLIENTS = 8
NUM_CHATS = 14
NUM_SAMPLES = 2_000
SAMPLES_AT_ONCE = 100
TIMEOUT_S = 300.0
SENTENCE = {"regex": r"(SELECT|The) [a-z]{3,12}( [a-z]{2,9}){20,24}\."}

Probe = Callable[[Server], list[Any]]


def ask(change: Callable[[int, Chat], Chat], seed: int, server: Server) -> list[Any]:
    """Return the outputs of changed chats, eight at a time; ``change`` gets the number of the chat."""
    chats = [change(number, chat) for number, chat in enumerate(load(NUM_CHATS, seed)[:NUM_CHATS])]
    return plain(ask_all(server.url, chats, NUM_CLIENTS))


def plain(answers: list[Answer]) -> list[Any]:
    """Return the tokens, texts and finish reasons."""
    return [
        (choice.token_ids, choice.text, choice.finish)
        for answer in answers
        for _, choice in sorted(answer.choices.items())
    ]


def repeating_less(_: int, chat: Chat) -> Chat:
    """Request the penalty that many models ship in ``generation_config.json``."""
    return chat.asking(repetition_penalty=1.05)


def penalized(number: int, chat: Chat) -> Chat:
    """Request OpenAI's penalties in two of three chats."""
    return chat if number % 3 == 0 else chat.asking(frequency_penalty=0.2, presence_penalty=0.3)


def with_least_chance(_: int, chat: Chat) -> Chat:
    """Request ``min_p``, which means nothing at temperature 0."""
    return chat.asking(min_p=0.1)


def in_grammars(number: int, chat: Chat) -> Chat:
    """Constrain two of three outputs: to a schema, or to words that no output of the model has."""
    match number % 3:
        case 0:
            return chat
        case 1:
            return structured(chat)
        case _:
            return chat.asking(structured_outputs=SENTENCE, max_tokens=96)


def until_full(number: int, chat: Chat) -> Chat:
    """Let one output in seven run until the context is full, beside others that end."""
    return chat if number % 7 else chat.asking(max_tokens=None, ignore_eos=True)


def complete(server: Server, **fields: Any) -> tuple[list[int], str, str]:
    """Return the tokens, the text and the finish reason of a greedy completion."""
    body = {"model": MODEL_NAME, "temperature": 0, "max_tokens": 48, "return_token_ids": True, **fields}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return choice["token_ids"], choice["text"], choice["finish_reason"]


def complete_all(server: Server, bodies: list[dict[str, Any]]) -> list[Any]:
    """Return the completions, eight at a time."""
    with ThreadPoolExecutor(NUM_CLIENTS) as threads:
        return list(threads.map(lambda body: complete(server, **body), bodies))


def repeated(server: Server) -> list[Any]:
    """Return four rounds of prompts that end one token behind a block: the rest of each is cached.

    vLLM then computes a single token of the prompt, in a step like those of decoding. In the last round
    half of the requests ask for no drafts.
    """
    prompts = [ids[: BLOCK * (len(ids) // BLOCK) + 1 - BLOCK] for ids in prompt_ids(41)]
    tags: list[dict[str, Any]] = [{"agentspec_stage": "repeated/some"}] * len(prompts)
    never = {"agentspec_stage": "repeated/none", "agentspec_max_draft": 0}
    bodies = [{"prompt": ids, XARGS_FIELD: tag} for ids, tag in zip(prompts, tags, strict=True)]
    rounds = [complete_all(server, bodies) for _ in range(3)]
    last = [body | {XARGS_FIELD: never} if number % 2 else body for number, body in enumerate(bodies)]
    return [*rounds, complete_all(server, last)]


def embedded(server: Server) -> list[Any]:
    """Return outputs of prompts given as embeddings, two rounds, beside prompts given as tokens."""
    bodies: list[dict[str, Any]] = []
    for number, ids in enumerate(prompt_ids(43)):
        given: dict[str, Any] = {"prompt": ids}
        if number % 2:
            given = {"prompt": None, "prompt_embeds": embeddings(tuple(ids))}
        bodies.append(given | {XARGS_FIELD: {"agentspec_stage": f"embedded/{number % 2}"}})
    return [complete_all(server, bodies) for _ in range(2)]


def asleep(server: Server) -> list[Any]:
    """Return the answers to sleep and wake, and an output after each."""
    found: list[Any] = []
    chats = load(7, 47)
    for level in (1, 2):
        for method, path in (
            ("POST", f"/sleep?level={level}"),
            ("GET", "/is_sleeping"),
            ("POST", "/wake_up"),
            ("GET", "/is_sleeping"),
        ):
            answer = httpx.request(method, f"{server.url}{path}", timeout=TIMEOUT_S)
            found.append((path, answer.status_code, answer.text))
        found += plain(ask_all(server.url, chats, NUM_CLIENTS))
    return found


def samples(server: Server, first_seed: int, number: int, learn: int = 0) -> list[tuple[int, ...]]:
    """Return ``number`` outputs of four tokens of one prompt, of distinct seeds, at temperature 1."""
    found: list[tuple[int, ...]] = []
    for seed in range(first_seed, first_seed + number, SAMPLES_AT_ONCE):
        body = {
            "model": MODEL_NAME,
            "prompt": "How many orders",
            "temperature": 1,
            "max_tokens": 4,
            "ignore_eos": True,
            "return_token_ids": True,
            "n": SAMPLES_AT_ONCE,
            "seed": seed,  # vLLM adds each choice's index to it
            XARGS_FIELD: {"agentspec_stage": "samples", "agentspec_learn": learn},
        }
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=TIMEOUT_S)
        assert answer.status_code == 200, answer.text
        found += [tuple(choice["token_ids"]) for choice in answer.json()["choices"]]
    return found


CHATS = load(28, 61)


def unchanged(server: Server) -> list[Any]:
    """Return the outputs of the example's own requests, which also go to servers of other kinds."""
    return plain(ask_all(server.url, CHATS, NUM_CLIENTS))


PROBES: dict[str, Probe] = {
    "plain": unchanged,
    "repetition penalty": partial(ask, repeating_less, 31),
    "frequency and presence penalties": partial(ask, penalized, 32),
    "min_p at temperature 0": partial(ask, with_least_chance, 33),
    "grammars beside free outputs": partial(ask, in_grammars, 34),
    "a full context beside others": partial(ask, until_full, 35),
    "cached prompts": repeated,
    "prompt embeddings": embedded,
    "sleep and wake": asleep,
}


@cache
def prompt_ids(seed: int) -> tuple[list[int], ...]:
    """Return the prompts of some chats as tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(bundled_model_dir()))
    messages = [json.loads(json.dumps(chat.body["messages"])) for chat in load(7, seed)]
    return tuple(
        tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False) for one in messages
    )


@cache
def embeddings(token_ids: tuple[int, ...]) -> str:
    """Return the model's own embeddings of these tokens, float32 ``[n, hidden]``, as vLLM reads them."""
    (path,) = bundled_model_dir().glob("*.safetensors")
    with safe_open(path, framework="pt") as weights:
        table = weights.get_tensor("model.embed_tokens.weight")
    file = io.BytesIO()
    torch.save(table[list(token_ids)].to(torch.float32).clone(), file)
    return base64.b64encode(file.getvalue()).decode()
