"""The gateway agrees with docs/openapi.yaml, and requests generated from that file cause no server error.

``$AGENTSPEC_FUZZ_CASES`` is the number of generated requests (``make fuzz-gateway``).
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate
from schemathesis import GenerationMode

import agentspec
from agentspec.gateway import ApiKeys
from agentspec.gateway.call import Endpoint
from agentspec.gateway.telemetry.middleware import ENDPOINTS
from tests.gateway.support.live import serving_engine
from tests.gateway.support.scripted import ScriptedEngine

FILE = Path(agentspec.__file__).resolve().parents[1] / "docs" / "openapi.yaml"
NUM_CASES = int(os.environ.get("AGENTSPEC_FUZZ_CASES", "300"))
TIMEOUT_S = 60.0
KEY = "fuzz"
DOCUMENT: dict[str, Any] = yaml.safe_load(FILE.read_text())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {one.label: one for one in (found.ok() for found in SCHEMA.get_all_operations())}
ENDLESS = {"/agentspec/events"}  # a stream that ends with the server; see test_events


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        serving_engine(ScriptedEngine(), keys=ApiKeys.parse([KEY])) as root,
        httpx.Client(base_url=root, timeout=TIMEOUT_S) as client,
    ):
        yield client


def test_the_document_is_valid() -> None:
    validate(DOCUMENT)


def test_it_names_all_that_generates_and_all_that_is_counted() -> None:
    paths = set(DOCUMENT["paths"])
    assert {str(endpoint) for endpoint in Endpoint} <= paths
    assert paths >= ENDPOINTS - ENDLESS


def check(answer: httpx.Response) -> None:
    """Check that a generated request causes no server error and that a refusal has OpenAI's form."""
    assert answer.status_code < 500, answer.text
    assert answer.headers["x-request-id"]
    if answer.status_code < 400 or answer.request.method == "HEAD":
        return
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()
    assert list(error) == ["error"]
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert isinstance(error["error"]["message"], str)


def sent(client: httpx.Client, case: schemathesis.Case) -> httpx.Response:
    """Send a generated request, as far as HTTP can represent it."""
    made = case.as_transport_kwargs(base_url=str(client.base_url))
    body = {"json": made["json"]} if "json" in made else {"content": made.get("data")}
    if "json" in body:
        body = {"content": json.dumps(body["json"], allow_nan=True).encode()}
    headers = {name.encode(): value.encode("utf-8") for name, value in (made.get("headers") or {}).items()}
    headers[b"authorization"] = f"Bearer {KEY}".encode()
    return client.request(made["method"], made["url"], headers=headers, params=made.get("params"), **body)


@pytest.fixture(scope="module")
def statuses() -> Iterator[Counter[int]]:
    statuses: Counter[int] = Counter()
    yield statuses
    print("\nrequests by status:", dict(sorted(statuses.items())))


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_what_is_made_up_from_it(client: httpx.Client, label: str, statuses: Counter[int]) -> None:
    operation = OPERATIONS[label]
    num_left = len(OPERATIONS) - sorted(OPERATIONS).index(label)  # some allow few generated requests
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    @settings(
        max_examples=max(1, math.ceil((NUM_CASES - statuses.total()) / num_left)),
        database=None,
        derandomize=NUM_CASES <= 300,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def run(case: schemathesis.Case) -> None:
        answer = sent(client, case)
        statuses[answer.status_code] += 1
        check(answer)

    run()
