from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "gateway"))  # a running gateway is what its own tests have
