"""Report of the rounds: time per output token by method and stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from lab.engine.calls import Work
from lab.engine.lane import Decoded
from lab.engine.measure import Round
from lab.engine.methods import METHODS, NGRAM, OFF, OURS

ALL = "all"


def stages(rounds: Sequence[Round]) -> list[str]:
    """Return the stages in the order of their first calls."""
    return list(dict.fromkeys(stage for one in rounds for stage in one[OFF]))


def total(rounds: Sequence[Round], method: str, stage: str = ALL) -> Decoded:
    """Return the sum over all rounds, for one stage or for all."""
    result = Decoded()
    for one in rounds:
        for name, decoded in one[method].items():
            if stage in (ALL, name):
                result.add(decoded)
    return result


def tpot_s(decoded: Decoded) -> float:
    """Return the seconds per output token."""
    return decoded.seconds / max(1, decoded.num_tokens)


def figures(rounds: Sequence[Round]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the figures by stage, "all" last, and method."""
    return {
        stage: {method: _figures(rounds, method, stage) for method in METHODS}
        for stage in (*stages(rounds), ALL)
    }


def _figures(rounds: Sequence[Round], method: str, stage: str) -> dict[str, float]:
    decoded = total(rounds, method, stage)
    return {
        "tpot_ms": 1e3 * tpot_s(decoded),
        "speedup": tpot_s(total(rounds, OFF, stage)) / tpot_s(decoded),
        "tokens_per_step": decoded.num_tokens / max(1, decoded.num_steps),
        "step_ms": 1e3 * decoded.seconds / max(1, decoded.num_steps),
        "acceptance_rate": decoded.num_accepted / max(1, decoded.num_drafted),
        "num_calls": decoded.num_calls,
        "num_tokens": decoded.num_tokens,
    }


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the figures of all stages together, and each round's speed-up."""
    by_round = [figures([one])[ALL] for one in rounds]
    return {
        method: {**one, "speedup_by_round": [each[method]["speedup"] for each in by_round]}
        for method, one in figures(rounds)[ALL].items()
    }


def table(name: str, rounds: Sequence[Round]) -> Table:
    """Return a table with a row per stage. Calls and tokens are those of all rounds."""
    result = Table(title=f"ms per output token, {name}, one call at a time", title_justify="left")
    result.add_column("stage", overflow="ellipsis", no_wrap=True)
    times = ("calls", "tokens", *METHODS)
    gains = (f"{NGRAM} x", f"{OURS} x", "tokens/step", "accepted")
    for heading in (*times, *gains):
        result.add_column(heading, justify="right", no_wrap=True)
    for stage, by_method in figures(rounds).items():
        ours = by_method[OURS]
        result.add_row(
            stage,
            f"{by_method[OFF]['num_calls']}",
            f"{by_method[OFF]['num_tokens']}",
            *(f"{by_method[method]['tpot_ms']:.2f}" for method in METHODS),
            *(f"{by_method[method]['speedup']:.2f}" for method in (NGRAM, OURS)),
            f"{ours['tokens_per_step']:.2f}",
            f"{ours['acceptance_rate']:.0%}",
        )
    return result


def notes(work: Work) -> list[str]:
    """Return notes on the conditions of the measurement."""
    return [
        f"the forest had learned {len(work.history)} earlier answers of the file; every output was the"
        " recorded one; reading prompts is not in the times; tokens/step and accepted are ours"
    ]


def shape(config: Any) -> Mapping[str, int]:
    """Return the dimensions that determine the duration of a step."""
    names = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "vocab_size")
    return {name: getattr(config, name) for name in names}
