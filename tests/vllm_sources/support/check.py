"""All checks of one version of vLLM."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.vllm_sources.support import server, types


def check(version: str, sources: Path, root: Path, cache: Path) -> list[str]:
    """Return what is missing or different in a version of vLLM for the plug-in in ``root``.

    Args:
        sources: has the package's folder ``vllm``.
        cache: mypy's.
    """
    with tempfile.TemporaryDirectory() as folder:
        lines = list(server.command_lines(version, Path(folder)))
    found = [
        *types.wrong_uses(sources, root, cache),
        *types.unused_names(sources),
        *types.other_orders(sources),
        *types.unknown_reads(sources),
        *server.missing_names(sources, root),
        *(text for line in lines for text in server.wrong_command(sources, line)),
        *server.unknown_settings(sources),
        *server.other_numbers(sources),
        *server.other_limits(sources),
        *server.untagged_paths(sources),
        *server.missing_state(sources),
        *server.wrong_kernel(sources, root),
    ]
    return list(dict.fromkeys(found))
