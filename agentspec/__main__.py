"""Entry point of ``python -m agentspec``."""

from __future__ import annotations

try:
    from agentspec.cli import main
except ImportError:  # the other project named agentspec may have overwritten both files
    from agentspec.doctor.finding import Level
    from agentspec.doctor.installation import check_installation

    if (found := check_installation()).level is not Level.PROBLEM:
        raise
    raise SystemExit(f"agentspec: error: {found.text}") from None

raise SystemExit(main())
