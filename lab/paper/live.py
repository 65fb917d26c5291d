"""The methods live, in the embedded engine: the results of ``python -m lab methods``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from lab.methods.report import PHASES
from lab.paper.document import table
from lab.paper.section import Figures, Section

_RESULTS = Path(__file__).parents[1] / "results" / "methods.json"
_WORKLOADS = {
    "sql": "All calls of the questions, greedy",
    "sampling": "Sixteen samples of each call of three stages, for an eighth of the questions",
    "open": "Open-ended answers, greedy, four at a time. Another small model writes them, trained on "
    "half of the recorded ones (`python -m lab open-text`)",
    "open_sampled": "The same answers, sampled at temperature 1",
}
_COLUMNS = (
    "method",
    "tokens/step, cold",
    "tokens/step",
    "drafted/step",
    "accepted",
    "step, ms",
    "speed, this CPU",
    "GPU, 1 client",
    "GPU, 64 clients",
)


def _figures(*_: object) -> Figures:
    parts = json.loads(_RESULTS.read_text(encoding="utf-8"))["parts"]
    for workload, phase in product(_WORKLOADS, PHASES):
        for method, one in parts[workload][phase].items():
            if not one["outputs_identical"]:
                raise ConfigError(f"{_RESULTS}: {method} gave other outputs than no speculation ({phase})")
    return {
        **{name: {phase: parts[name][phase] for phase in PHASES} for name in _WORKLOADS},
        "origins": {name: _origin(parts[name]["provenance"]) for name in _WORKLOADS},
        "num_questions": parts["sql"]["provenance"]["sizes"]["num_questions"],
    }


def _origin(provenance: Mapping[str, Any]) -> str:
    return f"commit {provenance['commit'][:8]}, {provenance['date'][:10]}"


def _text(measured: Figures) -> Iterator[str]:
    yield (
        "**The paper.** With Llama-3.1-8B on an H100, AgenticSQL is 5.3 times as fast with SuffixDecoding as "
        "without speculation, 4.1 times with the hybrid, 1.9 times with EAGLE-2/3 and 2.7 times with Token "
        "Recycling. Accepted tokens per step: 6.3, 7.5, 3.6 (EAGLE-3) and 3.2. On Spec-Bench the hybrid is "
        "best: 2.5 times, EAGLE-3 2.4, Token Recycling 2.2."
    )
    yield (
        "**Here.** The text-to-SQL example in the embedded engine: the bundled model writes all text itself, "
        f"four questions at a time. {measured['num_questions']} questions from nothing (cold), then as many "
        "others (all columns but the first). The outputs of all methods are those without speculation. The "
        "GPUs are a model: a verified token costs 0.005 plain steps with one client and 0.05 with 64, and "
        "drafting costs nothing. [Drafters](drafters/README.md) describes the methods. "
        f"`python -m lab methods --heads out/heads --questions {measured['num_questions']}` measured "
        "them."
    )
    for name, title in _WORKLOADS.items():
        yield f"{title}, {measured['origins'][name]}:"
        cold, warm = (measured[name][phase] for phase in PHASES)
        yield table(_COLUMNS, [_row(method, cold[method], one) for method, one in warm.items()])
    yield _difference(measured["sql"]["warm"])


def _row(method: str, cold: Mapping[str, Any], warm: Mapping[str, Any]) -> list[str]:
    gpu = warm["speedup_gpu"]
    return [
        method,
        f"{cold['tokens_per_step']:.2f}",
        f"{warm['tokens_per_step']:.2f}",
        f"{warm['drafted_per_step']:.1f}",
        f"{warm['acceptance_rate']:.0%}",
        f"{warm['step_ms']:.1f}",
        f"{warm['speedup_cpu']:.2f}",
        *(f"{speed:.2f}" for speed in gpu.values()),
    ]


def _difference(warm: Mapping[str, Any]) -> str:
    tokens = {method: one["tokens_per_step"] for method, one in warm.items()}
    heads = [f"EAGLE-3 {tokens['eagle-3']:.1f}"] if "eagle-3" in tokens else []
    hybrid = [f"the hybrid {tokens['hybrid']:.1f}"] if "hybrid" in tokens else []
    return (
        "**The difference.** Tokens per step here, in the paper's order: "
        + ", ".join(
            [
                *hybrid,
                f"the learned rule {tokens['learned']:.1f}",
                f"the paper's rule {tokens['paper-stage']:.1f}",
                *heads,
                f"Token Recycling {tokens['recycling']:.1f}",
            ]
        )
        + ". The bundled model is small, so on this CPU a head's passes cost much of what they save. The "
        "heads had minutes of training. Small models repeat themselves in greedy answers, and copies win."
    )


SECTION = Section("live", "The methods live", lambda _: (), _figures, lambda _: {}, _text)
