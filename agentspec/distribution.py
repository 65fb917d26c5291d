"""The distribution: its name on the package index, its documents, and its folder when a checkout hides it.

In a checkout, Python finds the folder ``agentspec`` before the installed package. Only an editable install
compiles the core for it. After ``pip install .`` all modules are those of the installed package.
Imports nothing of ``agentspec``, which would then be the checkout's.
"""

from __future__ import annotations

import shlex
import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

DISTRIBUTION = "agentspec-serving"  # `agentspec` is another project's
CORE = "agentspec._native"
DOCUMENTS = "https://github.com/agentspec/agentspec/blob/main/docs"  # they are not part of the package


def installed_folder(version: str) -> str:
    """The folder of the installed package, for a package of this ``version`` that has no compiled core.

    Raises:
        ImportError: none is installed for this Python, or only one of another version.
    """
    root = Path(__file__).resolve().parents[1]
    problem = (
        f"AgentSpec in {root} has no compiled core for Python {sys.version_info[0]}.{sys.version_info[1]}"
    )
    if not (root / "pyproject.toml").is_file():
        raise ImportError(f"{problem}: run `pip install --force-reinstall --no-deps {DISTRIBUTION}`")
    advice = f"run `pip install -e {shlex.quote(str(root))}`"
    for entry in sys.path:
        folder = str(Path(entry, "agentspec"))
        if PathFinder.find_spec(CORE, [folder]) is None:
            continue
        found = {one.version for one in metadata.distributions(name=DISTRIBUTION, path=[entry])}
        if found == {version}:
            return folder
        shown = ", ".join(found) or "of unknown version"
        raise ImportError(f"{problem}, and the installed package is {shown}, not {version}: {advice}")
    raise ImportError(f"{problem}: {advice}")
