"""``python -m benchmarks core``: measures one figure after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.reporting.report import Announce, Report
from benchmarks.core import ingest, memory, report, steps, trees
from benchmarks.core.bars import Figures, summary
from benchmarks.core.corpus import Corpus, load
from benchmarks.core.ours import (
    OurDecoder,
    OurDecoderEverySource,
    OurDecoderLearned,
    OurDecoderTwoThreads,
)
from benchmarks.core.sides import Decoder, Side, our_side, peer_side
from benchmarks.core.sizes import QUICK, Sizes


def make_report(traces: Path, peer: str, sizes: Sizes, announce: Announce) -> Report:
    """Measure, and return the report.

    Without an installed peer (or with ``"none"``) its figures are omitted, and comparisons with it are null.

    Raises:
        ConfigError: the traces are missing or too small.
    """
    theirs = _find(peer, announce)
    announce("reading and tokenizing traces")
    corpus = load(traces, sizes)
    figures = measure(corpus, sizes, theirs, announce)
    name = theirs.version if theirs else None
    arguments = {"traces": traces.name, "peer": peer, "quick": sizes == QUICK}
    return Report(
        figures={"summary": summary(figures), "figures": figures},
        table=report.table(figures, name),
        origin={"peer": name, "arguments": arguments, "sizes": asdict(sizes)},
        plot=lambda path: report.plot(figures, name, path),
    )


def measure(corpus: Corpus, sizes: Sizes, peer: Side | None, announce: Announce) -> Figures:
    """Return all figures, by name and side."""
    sides = {"ours": our_side()} | ({"peer": peer} if peer else {})
    announce(f"append and removal, {sum(map(len, corpus.mixed)):,} tokens")
    figures: dict[str, Mapping[str, Any]] = {**trees.measure(sides, corpus.mixed, sizes.num_fills)}
    announce("memory of trees, each in a fresh process")
    figures |= memory.of_trees(sides, "mixed", corpus.mixed)
    figures |= memory.of_trees(sides, "repeated", corpus.repeated)
    announce(f"decode steps with {', '.join(map(str, sizes.batch_sizes))} live requests")
    figures |= steps.measure(_decoders(peer), corpus, sizes)
    announce(f"prompts of {', '.join(map(str, sizes.ingest_tokens))} tokens")
    figures |= ingest.measure(peer, corpus, sizes)
    announce(f"memory of {sizes.num_memory_requests} live requests, in a fresh process")
    prompts = corpus.prompts(sizes.num_memory_requests, sizes.prompt_tokens, seed=3)
    return figures | memory.of_requests(sides, prompts)


def _find(peer: str, announce: Announce) -> Side | None:
    if peer == "none":
        return None
    try:
        return peer_side(peer)
    except ConfigError as error:
        announce(f"measuring without a peer: {error}")
        return None


def _decoders(peer: Side | None) -> dict[str, Decoder]:
    decoders: dict[str, Decoder] = {
        "ours": OurDecoder(),
        "ours_every_source": OurDecoderEverySource(),
        "ours_learned": OurDecoderLearned(),
        "ours_1_thread": OurDecoder(),
        "ours_2_threads": OurDecoderTwoThreads(),
    }
    if peer:
        decoders["peer"] = peer.decoder()
    return decoders
