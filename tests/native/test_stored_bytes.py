"""Models as they are stored: every field at its place, little-endian, and read back on any machine.

The layout is written down here a second time, independent of the core's own encoding: a file that one
machine saves must mean the same on another.
"""

from __future__ import annotations

import numpy as np
import pytest

from agentspec import DraftConfig, Forest, StageKey
from agentspec._native import ForestCore
from agentspec.errors import ConfigError

NUM_CONTEXTS = 10 * 7 * 7 * 8 + 6 * 5 * 7  # contexts, lengths, totals, shares; the request's own text
NUM_HASHED = 12_288
NUM_SETS = 64 + 32  # of weights: of each set of trees, of each kind of evidence
STATE = np.dtype(
    [
        ("contexts", "<u2", NUM_CONTEXTS),  # 10 bits log-odds in 1/55, two's complement; 6 bits count
        ("hashed", "<u2", NUM_HASHED),  # 7 bits log-odds in 1/16, two's complement; 4 bits count; 5 bits tag
        ("weights", [("inputs", "<f4", 17), ("bias", "<f4"), ("num_outcomes", "<f4")], NUM_SETS),
        ("calibration", "<f4", (8, 33)),  # depths, steps
    ]
)
EXTREMES = (0x0000, 0x01FF, 0x0200, 0x03FF, 0x0400, 0xFC00, 0xFFFF, 0x0040, 0x003F, 0x0780, 0xF800)


def core() -> tuple[ForestCore, int]:
    made = ForestCore(5, 1 << 30)
    return made, made.create_group(1 << 30)


def stored(state: bytes) -> np.void:
    return np.frombuffer(state, STATE)[0]


def test_the_state_of_an_untrained_model_is_these_bytes():
    state = ForestCore.untrained_model_state()
    assert len(state) == STATE.itemsize == 41_188
    # a context of one token that was continued once, never by this token: p = 0.3 / 3, 6 outcomes
    assert round(np.log(0.1 / 0.9) * 55) == -121
    assert state[:2] == ((-121 & 0x3FF) | 6 << 10).to_bytes(2, "little") == b"\x87\x1b"
    fields = stored(state)
    assert (fields["hashed"] == 1 << 7).all()  # one half, of one outcome, without an owner
    first = fields["weights"][0]
    assert (
        first["inputs"].tolist() == [np.float32(0.35)] * 6 + [np.float32(0.15)] * 4 + [np.float32(0.35)] * 7
    )
    assert (first["bias"], first["num_outcomes"]) == (0, 0)
    assert not fields["weights"][64:]["inputs"].any()  # those of kinds
    steps = 1 / (1 + np.exp(-(np.arange(33) - 16) / 2))
    assert np.abs(fields["calibration"] - steps).max() < 1e-6


def test_a_state_that_another_machine_wrote_is_read_field_by_field():
    random = np.random.default_rng(0)
    written = np.zeros((), STATE)
    written["contexts"] = random.integers(0, 1 << 16, NUM_CONTEXTS)
    written["hashed"] = random.integers(0, 1 << 16, NUM_HASHED)
    for name in ("contexts", "hashed"):
        written[name][: len(EXTREMES)] = EXTREMES
    written["weights"]["inputs"] = random.normal(size=(NUM_SETS, 17))
    written["weights"]["bias"] = random.normal(size=NUM_SETS)
    written["weights"]["num_outcomes"] = random.integers(0, 1_000_000, NUM_SETS)
    written["calibration"] = random.random((8, 33))
    made, group = core()
    assert made.model_state(made.restore_model(group, written.tobytes())) == written.tobytes()


def test_what_a_model_learns_is_in_its_state_and_drafts_alike_when_read_back():
    stage, text = StageKey("t", ("a",)), np.arange(40, dtype=np.int32)
    draft = DraftConfig(rule="learned", min_prob=0.0)
    forest = Forest()
    forest.learn(stage, text)
    for number in range(20):
        forest.start(str(number), stage, text[:2], draft=draft)
        for token in text[2:]:
            forest.step([(str(number), np.array([token], np.int32))])
        forest.finish(str(number))
    (state,) = forest.model_states()
    fields, before = stored(state), stored(prior_state())
    assert fields["weights"]["num_outcomes"].sum() > before["weights"]["num_outcomes"].sum() + 500
    assert (fields["hashed"] != before["hashed"]).sum() > 10
    assert (fields["contexts"] != before["contexts"]).any()
    chances = []
    for prior in (state, state, None):
        other = Forest(prior=prior)
        other.learn(stage, text)
        other.start("r", stage, text[:2], draft=draft)
        (made,) = other.step([("r", text[2:5])])
        chances.append(made.probs.tolist())
    assert chances[0] == chances[1] != chances[2]
    assert chances[0][0] > chances[2][0]  # it has seen that the text is continued


def prior_state() -> bytes:
    made, group = core()
    return made.model_state(made.create_model(group))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inputs", np.nan),
        ("inputs", np.inf),
        ("bias", 2e6),
        ("num_outcomes", -1.0),
        ("num_outcomes", 2e6),
        ("calibration", 1.5),
        ("calibration", -0.1),
        ("calibration", np.nan),
    ],
)
def test_a_number_that_no_model_learns_is_refused(field, value):
    state = np.frombuffer(ForestCore.untrained_model_state(), STATE).copy()
    (state["weights"][field] if field != "calibration" else state[field])[...] = value
    made, group = core()
    before = made.memory_bytes()
    for read in (ForestCore.check_model_state, lambda bad: made.restore_model(group, bad)):
        with pytest.raises(ConfigError, match="a number that no model learns"):
            read(state.tobytes())
    assert made.memory_bytes() == before


@pytest.mark.parametrize("change", [lambda s: b"", lambda s: s[:-1], lambda s: s + b"\0"])
def test_a_state_of_another_length_is_refused(change):
    for read in (ForestCore.check_model_state, lambda state: Forest(prior=state)):
        with pytest.raises(ConfigError, match="41188 bytes, not"):
            read(change(ForestCore.untrained_model_state()))
