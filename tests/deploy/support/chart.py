"""The chart in ``deploy/helm`` as the real Helm renders it, and checks of rendered objects."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from referencing import Registry
from referencing.jsonschema import DRAFT7

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
CHART = DEPLOY / "helm" / "agentspec"
VALUES_FILES = sorted((CHART / "ci").glob("*-values.yaml"))
OWN_SCHEMAS = Path(__file__).resolve().parents[1] / "schemas"
OWN_KINDS = {"ScaledObject": "scaledobject", "PodMonitor": "podmonitor"}
NO_TOOLS = Path("/nowhere")
TOOLS = Path(os.environ.get("AGENTSPEC_TEST_TOOLS", NO_TOOLS))
HELMS = ("helm-4", "helm-3")
KUBERNETES = ("1.27.0", "1.37.0")
REASON = "needs Helm: make test-deploy"
RELEASE, NAMESPACE = "demo", "serving"


def has_tools() -> bool:
    """Return True if ``make test-deploy`` unpacked the programs.

    Raises:
        RuntimeError: its folder lacks one. Tests must not be skipped then.
    """
    if TOOLS == NO_TOOLS:
        return False
    missing = [name for name in (*HELMS, "kubectl", "schemas") if not (TOOLS / name).exists()]
    if missing:
        raise RuntimeError(f"{str(TOOLS)!r} lacks {missing}: remove the folder, and run make test-deploy")
    return True


def helm(*arguments: str, program: str = HELMS[0]) -> subprocess.CompletedProcess[str]:
    """Run Helm in the folder of the chart."""
    return subprocess.run([str(TOOLS / program), *arguments], cwd=CHART, capture_output=True, text=True)


@cache
def rendered(values: Path | None = None, *settings: str, program: str = HELMS[0]) -> tuple[Any, ...]:
    """Return the objects of the chart with a file of values and ``--set`` options."""
    run = helm("template", RELEASE, ".", "--namespace", NAMESPACE, *given(values, *settings), program=program)
    assert run.returncode == 0, run.stderr
    return tuple(one for one in yaml.safe_load_all(run.stdout) if one is not None)


def given(values: Path | None = None, *settings: str) -> list[str]:
    """Return Helm's options for these values."""
    files = [] if values is None else ["--values", str(values)]
    return files + [part for setting in settings for part in ("--set-json", setting)]


def one_of(objects: Iterable[Any], kind: str, component: str) -> Any:
    """Return the only object of this kind and component."""
    [found] = [
        one
        for one in objects
        if one["kind"] == kind and one["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    return found


def check(thing: Mapping[str, Any], version: str) -> None:
    """Check an object against the schema of its kind, which permits no unknown field.

    Raises:
        ValidationError: it is wrong.
    """
    if thing["kind"] in OWN_KINDS:
        schema = json.loads((OWN_SCHEMAS / f"{OWN_KINDS[thing['kind']]}.json").read_text())
        jsonschema.Draft202012Validator(schema).validate(thing)
        return
    group = thing["apiVersion"].replace(".k8s.io", "").replace("/", "-")
    folder = TOOLS / "schemas" / version
    schema = json.loads((folder / f"{thing['kind'].lower()}-{group}.json").read_text())
    jsonschema.Draft7Validator(schema, registry=_definitions(folder)).validate(thing)


@cache
def _definitions(folder: Path) -> Any:
    definitions = json.loads((folder / "_definitions.json").read_text())
    return Registry().with_resource("_definitions.json", DRAFT7.create_resource(definitions))
