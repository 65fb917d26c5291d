"""Real time per output token on recorded calls, for any model shape.

The embedded engine takes every step of the recorded answers (forced outputs). Weights may be random.
"""

from __future__ import annotations

BUNDLED = "bundled"  # the shape of the bundled model
