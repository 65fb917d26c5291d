"""Checks of installed packages: Python, the native core, vLLM, and the packages that vLLM must match."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata

from agentspec._native import CPU_FEATURES
from agentspec.doctor.finding import Finding, ask_python, ok, problem, warning
from agentspec.doctor.installation import reinstall_command
from agentspec.errors import ConfigError
from agentspec.extras import install_command
from agentspec.vllm_plugin.checks import DISTRIBUTIONS, INSTALL, check_version, installed_version

OLDEST_PYTHON = (3, 11)
NEWEST_TRIED_PYTHON = (3, 13)
# text models need none of them; built for another torch, they break `import transformers`
COMPANIONS = ("torchvision", "torchaudio", "torchcodec", "triton")

# what every processor of an architecture has, by system where systems differ
BASELINES = {
    ("x86_64", ""): {"sse2"},
    ("aarch64", ""): {"neon"},
    ("arm64", "Darwin"): {"neon", "lse", "dotprod"},  # an M1
}
DRAFT_SOMETHING = """
import numpy
from agentspec import Forest, StageKey
forest, stage = Forest(), StageKey.parse("doctor")
forest.learn(stage, numpy.arange(1, 9, dtype=numpy.int32))
forest.start("call", stage, numpy.array([1, 2, 3], dtype=numpy.int32))
draft = forest.draft("call")
assert list(draft.token_ids[:2]) == [4, 5], draft
print(len(draft.token_ids))
"""
IMPORT_ENGINE = """
from agentspec.engine import TorchEngine
import torch
print(f"{torch.__version__}, CPU kernels for {torch.backends.cpu.get_cpu_capability()}")
"""
IMPORT_PLUGIN = "import agentspec.vllm_plugin.worker, agentspec.vllm_plugin.v1.proposer"


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check that this Python is new enough, and was tested."""
    shown = _dotted(version)
    if version[:2] < OLDEST_PYTHON:
        return problem("Python", f"{shown} is too old: AgentSpec needs {_dotted(OLDEST_PYTHON)} or newer")
    if version[:2] > NEWEST_TRIED_PYTHON:
        tried = f"{_dotted(OLDEST_PYTHON)} to {_dotted(NEWEST_TRIED_PYTHON)}"
        return warning("Python", f"{shown}; AgentSpec was tried on {tried}")
    return ok("Python", shown)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def check_core() -> Finding:
    """Check that the native core learns and drafts."""
    is_well, said = ask_python(DRAFT_SOMETHING)
    if is_well:
        return ok("native core", "learns and drafts")
    return problem("native core", f"{said}; install again: {reinstall_command()}")


def check_cpu_features(features: Sequence[str] = CPU_FEATURES) -> Finding:
    """Report the extensions; warn if this build needs more than every processor of its architecture has."""
    shown = f"{', '.join(features) or 'none'}, compiled in and used; the core selects none at run time"
    machine = platform.machine()
    if surplus := beyond_baseline(features, machine, platform.system()):
        return warning(
            "CPU features",
            f"{shown}. Not every {machine} processor has {', '.join(surplus)}: don't copy this build to "
            "another machine, or build it without -march",
        )
    return ok("CPU features", shown)


def beyond_baseline(features: Sequence[str], machine: str, system: str) -> list[str]:
    """Return the ``features`` that not every processor of ``machine`` has; none if the machine is unknown."""
    baseline = BASELINES.get((machine, system), BASELINES.get((machine, ""), set(features)))
    return [name for name in features if name not in baseline]


def check_vllm(version: str | None) -> Finding:
    """Check that a vLLM is installed that supports the plugin."""
    if version is None:
        return warning("vLLM", f"not installed, so the embedded engine serves: {INSTALL}")
    try:
        check_version(version)
    except ConfigError as error:
        return problem("vLLM", str(error))
    return ok("vLLM", f"{version} ({distribution()})")


def check_embedded_engine() -> Finding:
    """Check that the embedded engine can be started here. Without torch this is a gateway only."""
    if not _is_installed("torch"):
        return warning(
            "engine",
            "none is installed: this installation is a gateway, agentspec serve --engine-url URL. For an"
            f" engine here: {install_command('engine')}",
        )
    is_well, said = ask_python(IMPORT_ENGINE)
    if is_well:
        return ok("embedded engine", f"torch {said}")
    return problem("embedded engine", f"agentspec serve can't start it: {said}; {install_command('engine')}")


def distribution() -> str | None:
    """Return the name of the installed vLLM distribution."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.distribution(name).metadata["Name"]
        except metadata.PackageNotFoundError:
            continue
    return None


def check_torch() -> Finding:
    """Check that torch is the version that vLLM was built for. Another one crashes or gives wrong results."""
    name = distribution() or ""
    wanted = _wanted_torch(metadata.requires(name) or [])
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return problem("torch", f"not installed: pip install torch=={wanted}")
    if wanted is not None and found.partition("+")[0] != wanted.partition("+")[0]:
        return problem(
            "torch",
            f"{found}, but {name} {installed_version()} was built for {wanted}: pip install torch=={wanted}",
        )
    return ok("torch", found)


def _wanted_torch(requirements: list[str]) -> str | None:
    from packaging.requirements import Requirement  # installed with torch and with vLLM

    for one in map(Requirement, requirements):
        if one.name == "torch" and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found = re.search(r"==([^,;]+)", str(one.specifier))
            return found[1] if found else None
    return None


def check_companions() -> Finding:
    """Check that transformers can be imported. Packages built for another torch prevent it."""
    is_well, said = ask_python("from transformers import LlamaConfig")
    if is_well:
        return ok("transformers", metadata.version("transformers"))
    there = [name for name in COMPANIONS if _is_installed(name)]
    if not there:
        return problem("transformers", f"can't be imported: {said}")
    return problem(
        "transformers",
        f"can't be imported ({said}): {', '.join(there)} may be built for another torch and text models need "
        f"none of them: pip uninstall -y {' '.join(there)}",
    )


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def check_plugin() -> Finding:
    """Check that vLLM can load our worker and our proposer."""
    is_well, said = ask_python(IMPORT_PLUGIN)
    if is_well:
        return ok("plugin", "worker and proposer can be imported")
    return problem("plugin", f"vLLM could not load it: {said}")
