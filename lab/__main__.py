"""Run ``python -m lab``."""

from __future__ import annotations

from lab.command import main

raise SystemExit(main())
