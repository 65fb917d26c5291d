"""First use of an installed AgentSpec without extras: `python tests/installed/smoke.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120.0


def main() -> None:
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() not in (ROOT, Path(__file__).parent)]
    draft()
    assert "serve" in agentspec("--help")
    said = agentspec("doctor", "--port", "0", has_to_be_well=False)  # without torch it names a problem
    assert "ok       native core: learns and drafts" in said, said
    assert "ok       CPU features: " in said, said  # runs on every processor of this architecture
    print(agentspec("--version").strip(), "works:", *said.splitlines()[:4], sep="\n  ")


def draft() -> None:
    import numpy as np

    from agentspec import Forest, StageKey, _native

    assert ROOT / "agentspec" not in Path(_native.__file__).resolve().parents, _native.__file__
    forest, stage = Forest(), StageKey.parse("smoke/test")
    forest.learn(stage, np.array([7, 8, 9, 10, 11], dtype=np.int32))
    forest.start("request", stage, np.array([7, 8], dtype=np.int32))
    drafted = list(forest.draft("request").token_ids)
    assert drafted[:2] == [9, 10], drafted


def agentspec(*arguments: str, has_to_be_well: bool = True) -> str:
    command = [str(Path(sys.executable).with_name("agentspec")), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0 or not has_to_be_well, run.stderr
    return run.stdout


if __name__ == "__main__":
    main()
