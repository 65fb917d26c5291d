"""The order of work on a device, with streams that only note what they are asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentspec.forest import RUN_ROW_STEP, RowStep
from agentspec.vllm_plugin.v2 import streams
from agentspec.vllm_plugin.v2.streams import CudaStream, ImmediateStream
from tests.native.support.row_engine import TEXT, Engine

K = 6
Notes = list[tuple[Any, ...]]


class FakeStream:
    """A stream of a device that runs nothing."""

    def __init__(self, name: str, notes: Notes) -> None:
        self.cuda_stream = self.name = name
        self._notes = notes

    def wait_event(self, event: str) -> None:
        self._notes.append((self.name, "waits for", event))

    def wait_stream(self, other: FakeStream) -> None:
        self._notes.append((self.name, "waits for", other.name))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """Return what the driver and the streams are asked for. Steps run at once, by their C function."""
    made: Notes = []
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(RUN_ROW_STEP)

    def launch(stream: str, function: int, argument: int) -> int:
        made.append((stream, "runs a step"))
        assert function == RUN_ROW_STEP
        run(argument)
        return 0

    @contextmanager
    def current(stream: FakeStream) -> Iterator[None]:
        made.append((stream.name, "copies"))
        yield

    monkeypatch.setattr(streams, "_driver", lambda: SimpleNamespace(cuLaunchHostFunc=launch))
    monkeypatch.setattr(streams, "_current", current)
    return made


def planned(drafts: np.ndarray[Any, Any]) -> RowStep:
    sampled = np.full((1, 1 + K), -1, np.int64)
    sampled[0, 0] = TEXT[0]
    chances = np.zeros((1, K), np.float32)
    return RowStep(Engine().rows, ["r"], {}, np.ones(1, np.int32), sampled, drafts, chances, 0.0)


@pytest.fixture
def drafts() -> np.ndarray[Any, Any]:
    return np.zeros((1, K), np.int64)


def test_a_step_runs_between_the_samples_and_what_the_model_does_next(
    notes: Notes, drafts: np.ndarray[Any, Any]
) -> None:
    stream = CudaStream(FakeStream("model's", notes))
    step = planned(drafts)
    stream.run(step, "samples")
    with stream.copying():
        pass
    stream.join()
    assert notes == [("model's", "waits for", "samples"), ("model's", "runs a step")]
    assert step.is_done
    assert drafts[0, :4].tolist() == TEXT[1:5]


def test_beside_a_draft_model_a_step_has_a_stream_of_its_own(
    notes: Notes, drafts: np.ndarray[Any, Any]
) -> None:
    stream = CudaStream(FakeStream("model's", notes), FakeStream("side", notes))
    stream.run(planned(drafts), "samples")
    with stream.copying():
        notes.append(("the drafts",))
    notes.append(("the draft model",))
    stream.join()
    assert notes == [
        ("side", "waits for", "samples"),
        ("side", "runs a step"),
        ("side", "copies"),
        ("the drafts",),
        ("the draft model",),  # the model's stream waits only now
        ("model's", "waits for", "side"),
    ]


def test_a_driver_that_refuses_a_step_is_an_error(
    monkeypatch: pytest.MonkeyPatch, drafts: np.ndarray[Any, Any]
) -> None:
    monkeypatch.setattr(streams, "_driver", lambda: SimpleNamespace(cuLaunchHostFunc=lambda *_: 709))
    step = planned(drafts)
    with pytest.raises(OSError, match="cuLaunchHostFunc failed with the CUDA error 709"):
        CudaStream(FakeStream("model's", [])).run(step, "samples")
    assert not step.is_done


def test_without_a_device_a_step_runs_at_once(drafts: np.ndarray[Any, Any]) -> None:
    stream, step = ImmediateStream(), planned(drafts)
    stream.run(step, None)
    with stream.copying():
        stream.join()
    assert step.is_done
    assert drafts[0, :4].tolist() == TEXT[1:5]
