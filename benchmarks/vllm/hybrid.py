"""The trees together with an EAGLE-3 head, in vLLM's model runner V2, on the text-to-SQL example.

On a CPU the kernels of V2 are interpreted, so only counts are reported: output tokens per step, and the slots
that a step verifies for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.reporting.report import Announce
from benchmarks.vllm import sql
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import OURS_FIXED, Speculator, bundled_on_runner_v2

NUM_CLIENTS = 4
HEAD_TOKENS = 4


def measure(head: Path, sizes: Sizes, log_dir: Path, announce: Announce) -> dict[str, Any]:
    """Return the figures for the JSON.

    Args:
        head: folder of a trained EAGLE-3 head.

    Raises:
        AgentSpecError: there is no head, a server did not start, or V2's environment is missing.
    """
    if not (head / "config.json").is_file():
        raise ConfigError(f"there is no EAGLE-3 head in {str(head)!r}: make heads, or give --head DIR")
    trees, both = (
        Speculator(
            name, num_tokens=OURS_FIXED.num_tokens, settings=OURS_FIXED.settings, draft_model=draft_model
        )
        for name, draft_model in (("trees", None), ("trees and EAGLE-3", str(head)))
    )
    alone = Speculator("EAGLE-3", num_tokens=HEAD_TOKENS, method="eagle3", options={"model": str(head)})
    engine = bundled_on_runner_v2()
    runs: list[sql.Run] = []
    for speculator in (trees, alone, both):
        announce(f"v2_hybrid, SQL example: {speculator.name}")
        runs.append(sql.run(engine, speculator, NUM_CLIENTS, sizes.num_questions, log_dir))
    per_step = [run.counted.accepted_per_step for run in runs]
    return {
        "v2_hybrid_identical": all(run.texts == runs[0].texts for run in runs),
        "v2_hybrid_vs_best_part": per_step[2] / max(per_step[:2]),
        "runs": {
            run.speculator: {
                "accepted_per_step": run.counted.accepted_per_step,
                "acceptance_rate": run.counted.acceptance_rate,
                "num_draft_tokens": run.counted.num_draft_tokens,
                "num_slots": run.num_slots or run.counted.num_draft_tokens,
            }
            for run in runs
        },
    }
