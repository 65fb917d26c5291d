"""The text-to-SQL example's calls, with the answers that its model is trained on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from agentspec.errors import ConfigError
from agentspec.replay.calls import RecordedCall
from benchmarks.gpu.calls import Session

WORKFLOW = "agentic_sql"


def example(half: int) -> Iterator[Session]:
    """Yield endless sessions, each of one question; the halves have different questions.

    Raises:
        ConfigError: the example is missing: it is in the repository, not in the package.
    """
    try:
        from examples.agentic_sql.database import open_all
        from examples.agentic_sql.questions import TRAINING, draw
        from examples.agentic_sql.samples import Sample, of_question
    except ModuleNotFoundError:
        raise ConfigError("without --traces, run `python -m benchmarks` in the repository") from None

    def call(session: str, sample: Sample) -> RecordedCall:
        prompt = "".join(f"<|{one['role']}|>\n{one['content']}\n" for one in sample.messages)
        return RecordedCall(sample.stage, session, session, f"{prompt}<|assistant|>\n", sample.target)

    rng = Random(f"gpu {half}")
    with tempfile.TemporaryDirectory() as folder:
        databases = open_all(Path(folder))
        number = 0
        while True:
            session = f"{half}-{number}"
            samples = of_question(draw(TRAINING, rng), databases, rng)
            yield WORKFLOW, [call(session, sample) for sample in samples]
            number += 1
