"""Calls of the text-to-SQL pipeline that a cluster and one embedded engine answer alike."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from agentspec.commands.serve.torch_engine import EmbeddedPlan, embedded
from agentspec.gateway import create_app
from agentspec.ray.options import read_arguments
from agentspec.wire import STAGE_HEADER
from examples.agentic_sql import prompts
from examples.agentic_sql.questions import HELD_OUT, stream

CHAT = "/v1/chat/completions"
NUM_STAGES = 12
EXACT = "float64"  # other batch shapes change no output: ties do not depend on the order of summation
_MAX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        is_streamed: True if the answer is read event by event.
    """

    stage: str
    body: dict[str, Any]
    is_streamed: bool


@dataclass(slots=True)
class Answers:
    """What clients received.

    Attributes:
        texts: of complete answers, by the call's number.
        num_errors: calls that failed before the client had received anything.
        num_broken: streams that broke off after they had begun.
        problems: what failed, in words.
    """

    texts: dict[int, str] = field(default_factory=dict)
    num_errors: int = 0
    num_broken: int = 0
    problems: list[str] = field(default_factory=list)


def calls(number: int, *, seed: int = 0, streams: bool = True) -> list[Call]:
    """Return calls of two stages' prompts under ``NUM_STAGES`` names; half are sampled, a third streamed."""
    questions = stream(HELD_OUT, seed)
    result = []
    for one in range(number):
        question = next(questions)
        database = question.query.database
        is_first = one % 2 == 0
        messages = prompts.classify(question.text) if is_first else prompts.extract(question.text, database)
        sampling = {"temperature": 0.8, "seed": one} if one % 4 > 1 else {"temperature": 0}
        body = {"model": "agentspec-sql", "messages": messages, "max_tokens": _MAX_TOKENS, **sampling}
        is_streamed = streams and one % 3 == 2
        stage = f"agentic_sql/{'classify' if is_first else 'extract'}_{one % NUM_STAGES}"
        result.append(Call(stage, {**body, "stream": is_streamed}, is_streamed))
    return result


def local_answers(given: Sequence[Call]) -> dict[int, str]:
    """Return the texts of one embedded engine in this process, by number."""
    _, options, settings = read_arguments({"dtype": EXACT, "threads": 1})
    engine = embedded(EmbeddedPlan.of(options, settings.engine))
    transport = httpx.ASGITransport(create_app(engine.upstream))

    async def ask() -> dict[int, str]:
        async with httpx.AsyncClient(transport=transport, base_url="http://local") as client:
            texts = {}
            for number, call in enumerate(given):
                body = {**call.body, "stream": False}
                answer = await client.post(CHAT, json=body, headers={STAGE_HEADER: call.stage})
                texts[number] = _whole(answer)
        await engine.upstream.close()
        return texts

    return asyncio.run(ask())


class Clients:
    """Clients that send calls side by side and note what they receive."""

    def __init__(self, url: str, given: Sequence[Call], timeout_s: float) -> None:
        self._url = url
        self._given = given
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._answered = threading.Semaphore(0)
        self.answers = Answers()

    @contextmanager
    def running(self, at_once: int) -> Iterator[None]:
        """Send all calls; on exit every one was answered or failed."""
        with ThreadPoolExecutor(at_once) as pool:
            sent: list[Future[None]] = [
                pool.submit(self._send, number, call) for number, call in enumerate(self._given)
            ]
            yield
        for one in sent:
            one.result()

    def wait_answered(self, number: int) -> None:
        """Wait until this many more calls are over."""
        for _ in range(number):
            self._answered.acquire()

    def _send(self, number: int, call: Call) -> None:
        received: list[str] = []
        try:
            with httpx.Client(base_url=self._url, timeout=self._timeout_s, trust_env=False) as client:
                text = _streamed(client, call, received) if call.is_streamed else _asked(client, call)
            with self._lock:
                self.answers.texts[number] = text
        except (httpx.HTTPError, ValueError) as error:
            with self._lock:
                self.answers.num_errors += not received
                self.answers.num_broken += bool(received)
                self.answers.problems.append(f"{call.stage}: {error!r}")
        finally:
            self._answered.release()


def _asked(client: httpx.Client, call: Call) -> str:
    return _whole(client.post(CHAT, json=call.body, headers={STAGE_HEADER: call.stage}))


def _whole(answer: httpx.Response) -> str:
    """Return the text of an answer. Raises ValueError if it is an error."""
    if answer.status_code != httpx.codes.OK:
        raise ValueError(f"status {answer.status_code}: {answer.text[:300]}")
    return str(answer.json()["choices"][0]["message"]["content"])


def _streamed(client: httpx.Client, call: Call, received: list[str]) -> str:
    """Return the text of a stream, and put its parts into ``received`` as they arrive."""
    with client.stream("POST", CHAT, json=call.body, headers={STAGE_HEADER: call.stage}) as answer:
        if answer.status_code != httpx.codes.OK:
            raise ValueError(f"status {answer.status_code}: {answer.read()[:300]!r}")
        for line in answer.iter_lines():
            event = line.removeprefix("data: ")
            if event == "[DONE]":
                return "".join(received)
            if event:
                part = json.loads(event)
                if "error" in part:
                    raise ValueError(f"an error in the stream: {part['error']}")
                received += [choice["delta"].get("content") or "" for choice in part["choices"]]
    raise ValueError("the stream has no end")
