"""A check for another distribution named ``agentspec``, a different project on the package index.

That project has a module and a command of the same names, so each installation overwrites files of the other.
This module imports nothing that needs our ``agentspec/__init__.py`` or ``cli.py``, which that project has
too.
"""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from agentspec.distribution import DISTRIBUTION
from agentspec.doctor.finding import Finding, ask_python, ok, problem

OTHER_PROJECT = "agentspec"  # also the module and the command of both distributions
FOLDER = Path(__file__).parents[1]
FIND_MODULE = f"from importlib.util import find_spec; print(find_spec({OTHER_PROJECT!r}).origin)"
USE_MODULE = f"from {OTHER_PROJECT} import Forest, StageKey"


def reinstall_command() -> str:
    """Return the command that reinstalls AgentSpec from its origin: index, file or folder."""
    options = "pip install --force-reinstall --no-deps"
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")  # PEP 610
    except metadata.PackageNotFoundError:
        text = None
    origin = json.loads(text or "{}")
    url = urlsplit(str(origin.get("url", "")))
    if url.scheme != "file":
        return f"{options} {DISTRIBUTION}"
    is_editable = origin.get("dir_info", {}).get("editable", False)
    return f"{options} {'--editable ' if is_editable else ''}{shlex.quote(unquote(url.path))}"


def check_installation() -> Finding:
    """Check that module and command belong to AgentSpec only, and that Python finds them."""
    for distribution in metadata.distributions(name=OTHER_PROJECT):
        if _has_our_names(distribution):
            about = f"{distribution.version}, {distribution.metadata['Summary'] or 'without a summary'!r}"
            return problem(
                "package",
                f"the distribution {OTHER_PROJECT} ({about}) is installed too, with files of the same names: "
                f"pip uninstall -y {OTHER_PROJECT} && {reinstall_command()}",
            )
    _, found = ask_python(FIND_MODULE)
    if Path(found).parent.resolve() != FOLDER.resolve():
        is_well, said = ask_python(USE_MODULE)
        if not is_well:
            return problem(
                "package",
                f"here Python imports {OTHER_PROJECT} from {found}, not from {FOLDER} ({said}): start it in "
                "another folder, or take that one off PYTHONPATH",
            )
    try:
        return ok("package", f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}")
    except metadata.PackageNotFoundError:
        return ok("package", f"not installed by pip, used from {FOLDER}")


def _has_our_names(distribution: metadata.Distribution) -> bool:
    scripts = distribution.entry_points.select(group="console_scripts", name=OTHER_PROJECT)
    return bool(scripts) or any(file.parts[0] == OTHER_PROJECT for file in distribution.files or ())
