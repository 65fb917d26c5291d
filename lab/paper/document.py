"""The sections as one Markdown document."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lab.paper.samples import LABELS
from lab.paper.section import Figures, Section

COLUMNS = 110
_PLOT = re.compile(r"!\[([^]]*)\]\((\w+)\)")

INTRODUCTION = """\
SuffixDecoding (Oliaro, Jia, Campos, Qiao, arXiv 2411.04975) is the method that this project builds on. This \
page reproduces its figures from other data. Each section gives the paper's finding, our findings with its \
rule and with ours (`rule="learned"`, [drafting.md](../docs/drafting.md)), and the cause of the difference.

**Measurements.** Outputs of other models are replayed against a simulated verifier, as in the paper's \
ablations (sections 4.1 and 4.4): a draft token is accepted if the record has it. Speed-ups are simulated. \
They are tokens per step, including the model's own token, which is the speed-up where verifying a draft \
costs nothing. Only in the last section a model ran. The paper's main figures are wall-clock times on an H100.

**Method.** A response counts with a token for its end. Some hundred calls are taken of each data set. \
Sessions stay whole, in an arbitrary order (by a hash of their names), one session at a time. Trees are \
empty at first, and outputs join them while they are written. Drafts are chains of at most 32 tokens, with \
`alpha` 4 and `min_prob` 0.1. A figure with other settings states them. `paper-shared` has the paper's two \
trees, the request's own and one of all outputs. `paper-stage` has a tree per stage in place of the latter. \
`forest` and `learned` have those of request, session, stage and workflow (`forest` that of the tenant as \
well). `learned` starts without the shipped prior, which has seen these calls. `lab/replay/methods.py` \
lists the other methods.\
"""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], num_names: int = 1) -> str:
    """Return a Markdown table; columns after the first ``num_names`` are figures."""
    marks = ["---"] * num_names + ["--:"] * (len(headings) - num_names)
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, marks, *rows))


def data_table(data: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of the data sets behind the figures."""
    rows = [
        [
            LABELS[name],
            f"`{name}`",
            f"{one['num_calls']:,}",
            f"{len(one['entropy_bits'])}",
            f"{one['response_tokens']:.0f}",
        ]
        for name, one in data.items()
    ]
    return table(("data set", "file", "calls", "stages", "tokens per response"), rows, 2)


def document(
    sections: Iterable[Section], measured: Mapping[str, Figures], command: str, limit: int | None
) -> str:
    """Return the whole document, with the sections that were measured."""
    blocks = ["# The paper's figures, reproduced", INTRODUCTION, data_table(measured["data"])]
    blocks.append(_made_by(command, limit))
    for section in sections:
        if section.name in measured:
            blocks += [f"## {section.title}", *section.text(measured[section.name])]
    return "\n\n".join(_laid_out(block) for block in blocks) + "\n"


def _made_by(command: str, limit: int | None) -> str:
    fewer = (
        ""
        if limit is None
        else f" Here with at most {limit:,} calls of each data set, where more are named below."
    )
    return (
        f"**Reproduction.** `{command}` measures all but the last section. It writes the page, its plots and "
        "[figures.json](paper/figures.json), which has all figures and the machine of the measurement. Only "
        "times differ from run to run. The recorded calls are not part of this repository."
        f"{fewer}"
    )


def _laid_out(block: str) -> str:
    """Wrap paragraphs; leave tables, headings and plots unchanged."""
    block = _PLOT.sub(r"![\1](paper/\2.svg)", block)
    if block.startswith(("|", "#", "!")):
        return block
    return "\n\n".join(_wrapped(block.split("\n\n")))


def _wrapped(paragraphs: Iterable[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        yield textwrap.fill(paragraph, COLUMNS, break_long_words=False, break_on_hyphens=False)
