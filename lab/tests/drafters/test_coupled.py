"""Guesses of samples by the sampler's own random numbers."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
import torch

from agentspec.draft import Draft
from agentspec.engine.sampling.sampler import choose
from agentspec.engine.sampling.state import SamplerState
from agentspec.generation import SamplingParams
from lab.drafters.coupled import HEAD, Sharpness, likely_winners

NUM_ROWS = 1500
PARAMS = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.6),
    "hot": SamplingParams(temperature=1.4),
    "min_p": SamplingParams(min_p=0.1),
    "top_k": SamplingParams(top_k=5),
    "top_p": SamplingParams(top_p=0.7, temperature=0.9),
}


def estimates(vocab_size: int, noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log chances of a model ``[rows, vocab]``, and estimates of them."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(NUM_ROWS, vocab_size, generator=generator)
    off = noise * torch.randn(NUM_ROWS, vocab_size, generator=generator)
    return torch.log_softmax(logits, 1), torch.log_softmax(logits + off, 1)


def states(params: SamplingParams) -> list[SamplerState]:
    """Return states of outputs of one to seven tokens."""
    return [SamplerState(params, 10**12 + row // 3, [5] * (1 + row % 7)) for row in range(NUM_ROWS)]


def sampled(logits: torch.Tensor, owners: list[SamplerState]) -> torch.Tensor:
    return choose(logits, owners, [Draft()] * len(owners))


def guessed(
    log_probs: torch.Tensor, owners: list[SamplerState], most: int, sharpness: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log chances and tokens of the ``most`` best guesses of each row."""
    positions = np.array([len(state.output_ids) for state in owners], np.int64)
    best, token_ids = log_probs.topk(min(HEAD, log_probs.shape[1]))
    logs, tokens = likely_winners(
        best.numpy(), token_ids.int().numpy(), log_probs.shape[1], owners, positions, sharpness
    )
    return torch.from_numpy(logs[:, :most]), torch.from_numpy(tokens[:, :most])


@pytest.mark.parametrize("vocab_size", [20, 256])
@pytest.mark.parametrize("name", PARAMS)
def test_with_the_true_chances_nearly_all_samples_are_guessed(name: str, vocab_size: int) -> None:
    model, _ = estimates(vocab_size, 0.0)
    owners = states(PARAMS[name])
    tokens = sampled(model, owners)
    _, guesses = guessed(model, owners, 4)
    assert (guesses[:, 0] == tokens).double().mean() > 0.8
    assert (guesses == tokens[:, None]).any(1).double().mean() > 0.95
    assert (guessed(model, owners, 1, sharpness=16.0)[1][:, 0] == tokens).double().mean() > 0.99


@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
def test_samples_are_guessed_as_often_as_the_theory_says(noise: float) -> None:
    """At least ``(1 - d) / (1 + d)`` on the mean, and more often than by the likeliest token."""
    model, other = estimates(384, noise)
    owners = states(SamplingParams())
    tokens = sampled(model, owners)
    _, guesses = guessed(other, owners, 1)
    accepted = (guesses[:, 0] == tokens).double().mean()
    distance = 0.5 * (model.exp() - other.exp()).abs().sum(1)
    assert accepted > 0.97 * ((1 - distance) / (1 + distance)).mean()
    assert accepted > 1.1 * (other.argmax(1) == tokens).double().mean()


@pytest.mark.parametrize("noise", [0.3, 0.7])
@pytest.mark.parametrize("name", PARAMS)
def test_the_sharpness_is_learned_until_chances_come_true(name: str, noise: float) -> None:
    model, other = estimates(1000, noise)
    owners = states(PARAMS[name])
    tokens, sharpness = sampled(model, owners), Sharpness()
    chances, hits = [], []
    for row, token in enumerate(tokens.tolist()):
        one = slice(row, row + 1)
        logs, guesses = guessed(other[one], owners[one], 6, sharpness.value)
        assert logs[0].exp().sum() <= 1 + 1e-5
        assert logs[0].tolist() == sorted(logs[0].tolist(), reverse=True)
        sharpness.learn(float(logs[0, 0].exp()), is_true=int(guesses[0, 0]) == token)
        chances.append(float(logs[0, 0].exp()))
        hits.append(int(guesses[0, 0]) == token)
    assert fmean(hits[500:]) == pytest.approx(fmean(chances[500:]), abs=0.05)


def test_the_sharpness_has_limits() -> None:
    sharpness = Sharpness()
    for is_true, limit in ((True, 16.0), (False, 0.25)):
        for _ in range(2000):
            sharpness.learn(0.5, is_true=is_true)
        assert sharpness.value == limit


def test_what_a_filter_excludes_has_no_chance() -> None:
    model, _ = estimates(384, 0.0)
    owners = states(SamplingParams(top_k=2))
    logs, guesses = guessed(model, owners, 4)
    kept = model.topk(2, 1).indices
    is_kept = (guesses[:, :, None] == kept[:, None, :]).any(2)
    assert torch.equal(is_kept, logs > -torch.inf)
    assert bool((is_kept.sum(1) <= 2).all())


def test_tokens_without_a_chance_are_no_guesses() -> None:
    model, _ = estimates(1000, 0.0)
    model[:, 200:] = -torch.inf
    logs, guesses = guessed(torch.log_softmax(model, 1), states(SamplingParams()), 256)
    assert not bool(logs.isnan().any())
    assert bool((guesses[logs > -torch.inf] < 200).all())


def test_guesses_depend_on_seed_and_position_only() -> None:
    model, _ = estimates(384, 0.0)
    owners = states(SamplingParams())
    logs, guesses = guessed(model, owners, 3)
    alone, same = guessed(model[7:8], [replace(owners[7])], 3)
    assert torch.equal(guesses[7:8], same)
    assert torch.allclose(logs[7:8], alone)
    elsewhere = [replace(state, output_ids=[5] * 9) for state in owners]
    assert (guessed(model, elsewhere, 1)[1][:, 0] == guesses[:, 0]).double().mean() < 0.6
