"""``agentspec bench engine``: measure, then the report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from agentspec.replay.engine import calls, plot, report, shapes
from agentspec.replay.engine.measure import measure
from agentspec.replay.engine.sizes import Sizes
from agentspec.reporting import plots
from agentspec.reporting.provenance import provenance
from agentspec.reporting.report import announcer, json_line, make_room_for, publish


def run(
    trace: Path, chosen: shapes.Chosen, sizes: Sizes, json_path: Path | None, plot_path: Path | None
) -> int:
    """Measure, print progress on stderr, the table and a last line of JSON, and return the exit status.

    Raises:
        ConfigError: the trace has no calls, or the shape or device does not exist.
        CheckpointError: the model can't be loaded.
    """
    plots.check(plot_path)
    announce = announcer()
    announce(f"making the model {chosen.name}")
    measured = shapes.load(chosen)
    announce(f"reading {trace.name}")
    work = calls.load(trace, sizes, measured.encode)
    rounds = measure(measured, work, sizes, announce)
    announce("done")
    figures = report.figures(rounds)
    model = {
        "name": measured.name,
        "dtype": str(measured.model.dtype).removeprefix("torch."),
        "device": chosen.device,
        "tokens": Path(measured.vocabulary).name,
        **report.shape(measured.model.config),
    }
    origin = {
        **provenance(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "arguments": {"trace": trace.name, **asdict(sizes)},
    }
    line = json_line({"summary": report.summary(rounds), "figures": figures, "model": model}, origin)
    make_room_for(json_path, plot_path)
    if plot_path:
        plot.draw(figures, measured.name, plot_path)
    publish(report.table(measured.name, rounds), line, json_path, report.notes(work))
    return 0
