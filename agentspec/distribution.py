"""The distribution: its name on the package index, its documents, and its installed folder.

In a checkout, Python finds the folder ``agentspec`` before the installed package. Only an editable install
compiles the core for the checkout. After ``pip install .``, Python loads all modules from the installed
package. This module imports nothing of ``agentspec``: Python would import it from the checkout.
"""

from __future__ import annotations

import shlex
import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

DISTRIBUTION = "agentspec-serving"  # `agentspec` is another project's
CORE = "agentspec._native"
DOCUMENTS = "https://github.com/agentspec/agentspec/blob/main/docs"  # the package does not contain them


def installed_folder(version: str) -> str:
    """Return the folder of the installed package, for a package of this ``version`` without a compiled core.

    Raises:
        ImportError: no package is installed for this Python, or only one of another version.
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
