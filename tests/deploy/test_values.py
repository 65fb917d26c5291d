"""The chart's values and queries, as far as no Helm is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from agentspec.gateway.settings import Settings
from tests.deploy.support.chart import CHART, VALUES_FILES
from tests.gateway.support.live import chat_body, post, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
QUERY = re.compile(r"query: >-\n((?: {10}.*\n)+)")
STARTED_HERE = {"engine"}  # a setting of the file for engines that the same process starts


def merged(values: Any, more: Any) -> Any:
    if not isinstance(values, dict) or not isinstance(more, dict):
        return more
    return values | {name: merged(values.get(name), value) for name, value in more.items()}


@pytest.mark.parametrize("values", VALUES_FILES, ids=lambda values: values.name)
def test_the_schema_takes_the_values(values: Any) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(DEFAULTS)
    jsonschema.Draft7Validator(SCHEMA).validate(merged(DEFAULTS, yaml.safe_load(values.read_text())))


def groups(schema: Any, values: Any, path: str = "") -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield each group of values with its names in the schema and in values.yaml."""
    if "properties" in schema and isinstance(values, dict) and path not in FREE:
        yield path, set(schema["properties"]), set(values)
        for name, value in values.items():
            yield from groups(schema["properties"].get(name, {}), value, f"{path}/{name}")


FREE = {"/gateway/config", "/gateway/resources", "/engine/resources"}


def test_the_values_show_every_setting_and_the_schema_refuses_others() -> None:
    for path, permitted, shown in groups(SCHEMA, DEFAULTS):
        assert permitted - {"global"} == shown, path
    closed = [part for part in parts(SCHEMA) if "properties" in part and "required" not in part]
    assert len(closed) > 10
    assert all(part["additionalProperties"] is False for part in closed)


def parts(schema: Any) -> Iterator[Any]:
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema
        for value in schema.values():
            yield from parts(value)


def test_the_configuration_permits_the_groups_of_the_gateways_file() -> None:
    permitted = set(SCHEMA["properties"]["gateway"]["properties"]["config"]["properties"])
    assert permitted == set(Settings.model_fields) - STARTED_HERE


def queries() -> list[str]:
    text = "".join(path.read_text() for path in sorted((CHART / "templates").glob("*-autoscaling.yaml")))
    return [found[1] for found in QUERY.finditer(text)]


def samples(root: str) -> dict[str, set[str]]:
    """Return the labels of each metric in a scrape."""
    text = httpx.get(f"{root}/metrics").text
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_queries_ask_for_metrics_of_a_real_gateway() -> None:
    with serving_engine(ScriptedEngine()) as engine, serving_proxy(engine) as root:
        post(root, chat_body())
        labels = samples(root)
    asked = {name for query in queries() for name in re.findall(r"agentspec_\w+(?=\{)", query)}
    assert asked == {
        "agentspec_gateway_requests_total",
        "agentspec_upstream_running",
        "agentspec_gateway_waiting",
        "agentspec_decode_steps_total",
    }
    assert asked <= labels.keys()
    assert "endpoint" in labels["agentspec_gateway_requests_total"]
    assert labels["agentspec_decode_steps_total"] == {"tenant", "stage"}  # what `max by` keeps
