"""``python -m lab prior``: means of models, the C++ source, and the figures of a set left out."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from agentspec import DraftConfig, Forest, StageKey
from agentspec._native import ForestCore
from agentspec.errors import ConfigError
from agentspec.replay.tally import Tally
from lab.command import main
from lab.prior import state
from lab.prior.measure import calibration_noise, strangers
from lab.prior.source import source_of

STAGE = StageKey("t", ("s",))
SHIPPED = Path(__file__).parents[2] / "agentspec/native/core/drafting/acceptance_prior.cpp"


def taught(num_steps: int, *, is_right: bool) -> bytes:
    """Return the state of a model whose drafts were right, or wrong."""
    forest = Forest(prior=ForestCore.untrained_model_state())
    draft = DraftConfig(rule="learned", min_prob=0.0)
    forest.start("a", STAGE, np.array([1, 2, 3], np.int32), draft=draft)
    for i in range(num_steps):
        forest.step([("a", np.array([1, 2], np.int32))])
        forest.observe("a", np.array([3 if is_right else 50 + i], np.int32))
    (found,) = forest.model_states()
    return found


def numbers(source: str, name: str) -> np.ndarray:
    text = re.search(rf"\.{name} = {{(.*?)}}", source, re.DOTALL)
    assert text
    return np.array(text[1].split(","), int)


def test_a_prior_is_a_state_that_a_forest_takes():
    learned = [state.read(taught(100, is_right=right)) for right in (True, False)]
    assert learned[0].num_weights.sum() > 0
    prior = state.state_of(state.pooled(learned))
    ForestCore.check_model_state(prior)
    again = state.read(prior)
    assert np.allclose(again.contexts, state.pooled(learned).contexts, atol=1 / state.CONTEXT_UNITS)
    assert (again.num_weights == state.PRIOR_LEARNED).all()


def test_a_mean_lies_between_what_was_learned_and_counts_outcomes():
    right, wrong = (state.read(taught(100, is_right=right)) for right in (True, False))
    blank = state.read(ForestCore.untrained_model_state())
    cell = int(np.argmax(right.num_contexts * wrong.num_contexts))
    both = state.together([right, wrong])
    assert wrong.contexts[cell] < both.contexts[cell] < right.contexts[cell]
    only = state.together([right, blank])
    assert only.contexts[cell] == pytest.approx(right.contexts[cell])
    pooled = state.pooled([right])
    assert blank.contexts[cell] < pooled.contexts[cell] < right.contexts[cell]
    unseen = int(np.argmin(right.num_contexts))
    assert pooled.contexts[unseen] == pytest.approx(blank.contexts[unseen])


def test_the_shipped_source_has_the_numbers_that_a_forest_starts_from():
    source = SHIPPED.read_text()
    forest = Forest()
    forest.start("a", STAGE, np.array([1], np.int32), draft=DraftConfig(rule="learned"))
    (found,) = forest.model_states()
    shipped = state.read(found)
    for name in ("contexts", "weights", "calibration"):
        assert np.array_equal(numbers(source_of(shipped), name), numbers(source, name))
    assert source == source_of(shipped)
    assert state.state_of(shipped) == found


def test_another_state_is_refused():
    with pytest.raises(ConfigError, match="the state of a model has 41188 bytes, not 3"):
        state.read(b"abc")


@pytest.mark.slow
def test_each_set_is_measured_with_the_prior_of_the_others(tmp_path, capsys):
    traces = tmp_path / "traces"
    traces.mkdir()
    for name in ("one", "two"):
        with gzip.open(traces / f"{name}.jsonl.gz", "wt") as file:
            for i in range(24):
                call = {
                    "session": f"{name}-{i}",
                    "task": f"{name}-{i}",
                    "stage": "answer",
                    "prompt": f"Which {name} tables are needed for question {i}?",
                    "response": f"The {name} tables orders and customers are needed for question {i}.",
                }
                file.write(json.dumps(call) + "\n")
    source, found = tmp_path / "prior.cpp", tmp_path / "prior.json"
    arguments = ["--traces", str(traces), "--quick", "--json", str(found), "--source", str(source)]
    assert main(["prior", *arguments]) == 0
    assert "kAcceptancePrior" in source.read_text()
    assert "the learned rule" in capsys.readouterr().out
    parts = json.loads(found.read_text())["parts"]
    assert set(parts) == {"first", "second", "cold"}
    assert set(parts["cold"]["by_set"]) == {"one, first", "one, second", "two, first", "two, second"}
    assert parts["first"]["by_set"]["one, first"]["num_tokens"] > 0


def test_sets_of_one_workflow_have_no_prior_of_each_other(tmp_path):
    names = ("rsl_sql_a.jsonl.gz", "rsl_sql_b.jsonl.gz", "tau2_c.jsonl.gz", "tau_bench.jsonl.gz")
    paths = [tmp_path / name for name in names]
    assert strangers(paths[0], paths) == paths[2:]
    assert strangers(paths[3], paths) == paths[:2]
    with pytest.raises(ConfigError, match="needs a set of another workflow"):
        strangers(paths[0], paths[:2])


def test_exact_estimates_have_the_error_of_chance():
    tally, rng, errors = Tally(), np.random.default_rng(1), []
    for _ in range(40):
        tally.add_estimate(0.31, False)
        tally.add_estimate(0.97, False)
    for _ in range(10_000):
        for one in tally.bins:
            one.hits = int(rng.binomial(one.num, one.expected / one.num)) if one.num else 0
        errors.append(tally.calibration_error)
    assert calibration_noise(tally) == pytest.approx(sum(errors) / len(errors), rel=0.03)
    assert calibration_noise(Tally()) is None


def test_certain_estimates_have_no_error_of_chance():
    tally = Tally()
    tally.add_estimate(1.0, True)
    tally.add_estimate(0.0, False)
    assert calibration_noise(tally) == 0.0
