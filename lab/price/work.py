"""The measured calls, and the earlier calls that the forest learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from agentspec.generation import ForcedOutput, GenerationRequest, SamplingParams
from agentspec.replay.calls import RecordedCall, read
from agentspec.stages import StageKey
from agentspec.tags import Tags

WORKFLOW = "trace"


@dataclass(frozen=True, slots=True)
class WorkSizes:
    """Number of measured calls, of earlier calls to learn, and of tokens per call at most."""

    calls: int
    history: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class EngineCall:
    """One call as int32 token ids, cut to size. ``is_cut`` is True if the answer was cut."""

    stage: str
    session: str
    prompt: Tokens
    response: Tokens
    is_cut: bool

    @property
    def key(self) -> StageKey:
        """The stage's key in the forest."""
        return stage_key(self.stage)


def stage_key(stage: str) -> StageKey:
    """Return the forest's key of a recorded stage."""
    return StageKey("default", (WORKFLOW, stage.replace("/", "_")))


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Earlier answers by stage, and the measured calls."""

    history: list[tuple[str, Tokens]]
    calls: list[EngineCall]


def load(path: Path, sizes: WorkSizes, encode: Callable[[str], Tokens]) -> Work:
    """Return the work of a file. A short file has less history.

    Raises:
        ConfigError: the file is not a record of calls, or has none.
    """
    records = list(islice(read(path), sizes.history + sizes.calls))
    num_history = max(0, len(records) - sizes.calls)
    history = [(record.stage, encode(record.response)) for record in records[:num_history]]
    calls = [_cut(record, sizes, encode) for record in records[num_history:]]
    calls = [call for call in calls if len(call.prompt) and len(call.response) > 1]  # else no step to time
    if not calls:
        raise ConfigError(f"no calls to measure in {str(path)!r}")
    return Work(history, calls)


def _cut(record: RecordedCall, sizes: WorkSizes, encode: Callable[[str], Tokens]) -> EngineCall:
    response = encode(record.response)
    return EngineCall(
        record.stage,
        record.session,
        encode(record.prompt)[-sizes.prompt_tokens :],
        response[: sizes.output_tokens],
        len(response) > sizes.output_tokens,
    )


def forced_request(request_id: str, call: EngineCall) -> GenerationRequest:
    """Return a call as a request whose output is the recorded one."""
    return GenerationRequest(
        request_id=request_id,
        prompt=call.prompt.tolist(),
        sampling=SamplingParams(temperature=0.0),
        tags=Tags(call.key, session=call.session),
        forced=[ForcedOutput(call.response.tolist(), call.is_cut)],
    )
