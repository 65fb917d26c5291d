"""All checks of one version of vLLM."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from agentspec.vllm_plugin.versions import MOST_DRAFT_TOKENS, OLDEST, parse
from tests.vllm_sources.support import server, table
from tests.vllm_sources.support.consumers import accesses, precedes
from tests.vllm_sources.support.own_code import own_files
from tests.vllm_sources.support.package import Package
from tests.vllm_sources.support.uses import Uses

MOST_SPEC_LEN = "vllm.v1.sample.rejection_sampler.MAX_SPEC_LEN"


@dataclass(frozen=True)
class Report:
    """The result for one version.

    Attributes:
        names: names of vLLM that our code uses and that were found.
        absent: names that it lacks and that our code can do without.
        findings: what is missing or different.
    """

    version: str
    names: frozenset[str]
    absent: frozenset[str]
    findings: tuple[str, ...]


def check(version: str, sources: Path, root: Path) -> Report:
    """Check our code in ``root`` against the version of vLLM whose folder lies in ``sources``."""
    package, number = Package(sources), parse(version)
    files = [one for one in own_files(root) if number >= table.FIRST_VERSIONS.get(one.name, (0, 0))]
    uses = Uses(package, files, table.PARAMETERS, table.ATTRIBUTES, table.RESULTS)
    uses.check()
    check_consumers(uses, package)
    findings = [str(one) for one in uses.found]
    findings += [
        f"there is no {name}: our code does without, but table.py expects it here"
        for name in sorted(uses.absent)
        if number >= table.FIRST_WITH_NAME.get(name, OLDEST)
    ]
    findings += other_orders(package, {one.name for one in files})
    findings += server.missing_flags(package, files, number)
    with tempfile.TemporaryDirectory() as folder:
        lines = {tuple(line) for line in server.command_lines(version, Path(folder))}
    findings += [text for line in sorted(lines) for text in server.wrong_command(package, list(line))]
    findings += server.missing_paths(package, files)
    findings += server.wrong_kernels(package, files)
    findings += server.missing_number(package, MOST_SPEC_LEN, MOST_DRAFT_TOKENS)
    for name, most in table.LIMITS.items():
        if number >= table.FIRST_WITH_LIMIT.get(name, OLDEST):
            findings += server.missing_number(package, name, most)
    findings += server.other_limits(package)
    findings += server.unknown_settings(package)
    findings += server.untagged_paths(package, number)
    findings += server.missing_state(package, files)
    return Report(version, frozenset(uses.names), frozenset(uses.absent), tuple(dict.fromkeys(findings)))


def other_orders(package: Package, files: Collection[str]) -> Iterator[str]:
    """Yield the calls that vLLM makes in another order than a file of ours relies on."""
    for file, path, first, second in table.ORDERS:
        module = package.module(path)
        if file in files and (module is None or not precedes(module, first, second)):
            yield f"{file}: {path} does not call {first} before {second}"


def check_consumers(uses: Uses, package: Package) -> None:
    """Check what vLLM's code reads and calls of our classes."""
    for name, path, receiver, method in table.CONSUMERS:
        own, module = uses.own_class(name), package.module(path)
        if own is None:  # not loaded in this version
            continue
        if module is None:
            uses.report(own.cls.file, own.cls.node, f"there is no {path}")
            continue
        bases = (
            frozenset(one.node.name for one in own.base.ancestors) if own.base is not None else frozenset()
        )
        found = list(accesses(module, receiver, method, bases))
        if not found:
            uses.report(own.cls.file, own.cls.node, f"{path} uses no {receiver}")
        for access in found:
            if access.name not in table.NEVER_READ:
                uses.check_consumer(own, access)
