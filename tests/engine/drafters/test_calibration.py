from __future__ import annotations

import numpy as np
import pytest

from agentspec.engine.drafters.calibration import Calibration


def test_at_first_estimates_stay() -> None:
    probs = np.array([0.001, 0.2, 0.5, 0.93, 0.999], np.float32)
    assert Calibration()(probs).tolist() == pytest.approx(probs.tolist(), rel=0.05)


@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_certainty_is_a_probability(prob: float) -> None:
    found = Calibration()(np.array([prob], np.float32))
    assert 0 < found[0] < 1
    assert found[0] == pytest.approx(prob, abs=0.01)


def test_it_learns_what_estimates_are_worth() -> None:
    rng, calibration = np.random.default_rng(1), Calibration()
    for _ in range(200):
        probs = rng.uniform(0.05, 0.95, 16).astype(np.float32)
        calibration.learn(probs, rng.random(16) < probs**2)  # all too sure of themselves
    probs = np.array([0.2, 0.5, 0.8], np.float32)
    assert calibration(probs).tolist() == pytest.approx((probs**2).tolist(), abs=0.08)


def test_nothing_is_learned_of_nothing() -> None:
    calibration, none = Calibration(), np.empty(0, np.float32)
    calibration.learn(none, np.empty(0, np.bool_))
    assert len(calibration(none)) == 0
