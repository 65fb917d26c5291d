"""Measure, then the report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from agentspec.reporting.report import Announce, Report
from lab.engine import calls, plot, report, shapes
from lab.engine.measure import measure
from lab.engine.sizes import Sizes


def make_report(trace: Path, chosen: shapes.Chosen, sizes: Sizes, announce: Announce) -> Report:
    """Measure, and return the report.

    Raises:
        ConfigError: the trace has no calls, or the shape or device does not exist.
        CheckpointError: the model can't be loaded.
    """
    announce(f"making the model {chosen.name}")
    model = shapes.load(chosen)
    announce(f"reading {trace.name}")
    work = calls.load(trace, sizes, model.encode)
    rounds = measure(model, work, sizes, announce)
    figures = report.figures(rounds)
    described = {
        "name": model.name,
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "device": chosen.device,
        "tokens": Path(model.vocabulary).name,
        **report.shape(model.model.config),
    }
    return Report(
        figures={"summary": report.summary(rounds), "figures": figures, "model": described},
        table=report.table(model.name, rounds),
        origin={
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "arguments": {"trace": trace.name, **asdict(sizes)},
        },
        notes=report.notes(work),
        plot=lambda path: plot.draw(figures, model.name, path),
    )
