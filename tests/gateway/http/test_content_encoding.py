"""Compressed bodies: decoded within the limit, in front of every engine, or refused in plain words."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import zstandard

from agentspec.gateway import GatewaySettings
from tests.gateway.support.live import TIMEOUT_S, chat_body, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine

PATH = "/v1/chat/completions"
KIB = 1 << 10
LIMITS = GatewaySettings(body_limit_bytes=64 * KIB)
BODY = json.dumps(chat_body(temperature=0.5)).encode()


def deflate_raw(body: bytes) -> bytes:
    encoder = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return encoder.compress(body) + encoder.flush()


ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip in capitals": ("GZIP", gzip.compress),
    "gzip of old": ("x-gzip", gzip.compress),
    "gzip in two members": ("gzip", lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:])),
    "deflate": ("deflate", zlib.compress),
    "deflate without a header": ("deflate", deflate_raw),
    "zstd": ("zstd", zstandard.compress),
    "zstd in two frames": ("zstd", lambda body: zstandard.compress(body[:9]) + zstandard.compress(body[9:])),
    "identity": ("identity", lambda body: body),
    "nothing": ("", lambda body: body),
}


def send(root: str, body: bytes, *encodings: str, path: str = PATH) -> httpx.Response:
    headers = [("content-type", "application/json"), *(("content-encoding", one) for one in encodings)]
    return httpx.post(f"{root}{path}", content=body, headers=headers, timeout=TIMEOUT_S, trust_env=False)


def refused(answer: httpx.Response) -> tuple[int, Any]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize("name", ENCODERS)
def test_a_body_is_decoded(url: str, engine: ScriptedEngine, name: str) -> None:
    encoding, encode = ENCODERS[name]
    for path, body in ((PATH, BODY), ("/tokenize", b'{"prompt": "hi"}')):
        assert send(url, encode(body), encoding, path=path).status_code == 200
    assert engine.last.sampling.temperature == 0.5


def test_a_tag_is_not_smuggled_in_a_compressed_body(url: str) -> None:
    forged = gzip.compress(b'{"input": "x", "vllm_xargs": {"agentspec_tenant": "victim"}}')
    with serving_proxy(url) as front:
        assert refused(send(front, forged, "gzip", path="/v1/embeddings")) == (400, "forged_tag")


@pytest.mark.parametrize("name", [name for name in ENCODERS if name not in ("identity", "nothing")])
def test_a_bomb_is_decoded_up_to_the_limit(name: str) -> None:
    encoding, encode = ENCODERS[name]
    with serving_engine(ScriptedEngine(), settings=LIMITS) as root:
        bomb = encode(b" " * (1 << 26))
        assert len(bomb) <= LIMITS.body_limit_bytes + KIB
        assert refused(send(root, bomb, encoding)) == (413, "body_too_large")
        padded = BODY.ljust(LIMITS.body_limit_bytes)
        assert send(root, encode(padded), encoding).status_code == 200
        assert refused(send(root, encode(padded + b" "), encoding)) == (413, "body_too_large")


@pytest.mark.parametrize("path", [PATH, "/agentspec/warm", "/tokenize"])
def test_an_unknown_encoding(url: str, path: str) -> None:
    for encodings in (("br",), ("gzip, gzip",), ("gzip", "zstd"), ("aws-chunked",), ("x" * 999,)):
        answer = send(url, BODY, *encodings, path=path)
        assert refused(answer) == (415, "unsupported_encoding")
        assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"
        assert "send the body as it is, or one of gzip, deflate, zstd" in answer.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_damaged_body(url: str, encoding: str) -> None:
    encode = ENCODERS[encoding][1]
    for body in (
        b"{}",
        BODY,
        encode(BODY)[:-4],
        encode(BODY)[:4],
        encode(BODY) + b"garbage",
        b"\x78\x9c",
        b"",
    ):
        answer = send(url, body, encoding)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] in ("invalid_encoding", "invalid_json")
