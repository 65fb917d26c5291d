"""``python -m agentspec``."""

from __future__ import annotations

from agentspec.cli import main

raise SystemExit(main())
