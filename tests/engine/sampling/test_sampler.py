from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from agentspec.draft import Draft
from agentspec.engine.sampling import sampler
from agentspec.engine.sampling.sampler import (
    Filters,
    choose,
    exponentials,
    logprobs,
    num_clocks,
    race,
    race_head,
    rank,
    sample,
    weights,
)
from agentspec.engine.sampling.state import SamplerState, check_sampling
from agentspec.errors import RequestError
from agentspec.generation import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def filters_of(**params: float | list[float]) -> Filters:
    settings = {"temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0} | params
    columns = {name: torch.tensor(value, dtype=torch.float64).view(-1, 1) for name, value in settings.items()}
    num_rows = max(map(len, columns.values()))
    return Filters(**{name: column.expand(num_rows, 1) for name, column in columns.items()})


def spread(logits: torch.Tensor, filters: Filters, width: int) -> torch.Tensor:
    """Return the weights after the filters, within the first ``width`` tokens of each row: ``[m, vocab]``."""
    head = rank(logits, filters, width)
    return torch.zeros_like(logits).scatter_(1, head.token_ids, head.weights)


def probs_of(probs: list[float], **params: float) -> list[float]:
    logits = torch.tensor([probs], dtype=torch.float64).log()
    left = spread(logits, filters_of(**params), len(probs))
    if not {"top_k", "top_p"} & set(params):  # both methods must agree
        torch.testing.assert_close(left, weights(logits, filters_of(**params)))
    return [round(p, 9) for p in (left / left.sum())[0].tolist()]


def test_temperature_sharpens_and_flattens() -> None:
    assert probs_of([0.8, 0.2]) == [0.8, 0.2]
    assert probs_of([0.8, 0.2], temperature=0.5) == pytest.approx([16 / 17, 1 / 17])
    assert probs_of([0.8, 0.2], temperature=2.0) == pytest.approx([2 / 3, 1 / 3])


def test_top_k_keeps_the_most_likely() -> None:
    assert probs_of([0.2, 0.5, 0.3], top_k=2) == [0, 0.625, 0.375]
    assert probs_of([0.25, 0.25, 0.25, 0.25], top_k=1) == [1, 0, 0, 0]  # the lower id wins a tie
    assert probs_of([0.5, 0.5], top_k=5) == [0.5, 0.5]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert probs_of([0.1, 0.5, 0.4], top_p=0.5) == [0, 1, 0]
    assert probs_of([0.1, 0.5, 0.4], top_p=0.6) == pytest.approx([0, 5 / 9, 4 / 9])
    assert probs_of([0.1, 0.5, 0.4], top_p=0.95) == [0.1, 0.5, 0.4]
    assert probs_of([0.1, 0.5, 0.4], top_p=1e-9) == [0, 1, 0]


def test_min_p_is_relative_to_the_most_likely() -> None:
    assert probs_of([0.1, 0.5, 0.4], min_p=0.5) == pytest.approx([0, 5 / 9, 4 / 9])
    assert probs_of([0.1, 0.5, 0.4], min_p=1.0) == [0, 1, 0]


def test_filters_are_applied_in_order() -> None:
    # top_k leaves 5/9 and 4/9; top_p applies to these
    assert probs_of([0.1, 0.5, 0.4], top_k=2, top_p=0.55) == [0, 1, 0]


def test_rows_with_different_parameters_share_a_batch() -> None:
    logits = torch.tensor([[0.1, 0.5, 0.4]] * 3, dtype=torch.float64).log()
    filters = filters_of(temperature=[1.0, 1.0, 0.5], min_p=[0.0, 0.9, 0.0], top_k=[2, 0, 0])
    probs = spread(logits, filters, 3)
    probs /= probs.sum(-1, keepdim=True)
    expected = [[0, 5 / 9, 4 / 9], [0, 1, 0], [1 / 42, 25 / 42, 16 / 42]]
    torch.testing.assert_close(probs, torch.tensor(expected, dtype=torch.float64))


def random_filters(rng: np.random.Generator, num_rows: int) -> Filters:
    return filters_of(
        temperature=rng.choice([0.3, 1.0, 1.7], num_rows).tolist(),
        min_p=rng.choice([0.0, 0.01, 0.3], num_rows).tolist(),
        top_k=rng.choice([0, 1, 3, 8, 30], num_rows).tolist(),
        top_p=rng.choice([1e-9, 0.5, 0.9, 1.0], num_rows).tolist(),
    )


@pytest.mark.parametrize("is_coarse", [False, True], ids=["distinct", "with equals"])
@pytest.mark.parametrize("width", [1, 2, 8, 20])
def test_a_settled_head_says_what_sorting_everything_says(width: int, is_coarse: bool) -> None:
    rng = np.random.default_rng(width)
    logits = torch.from_numpy(rng.normal(scale=3, size=(3000, 40)))
    logits[rng.random(logits.shape) < 0.2] = -torch.inf  # like those that a grammar masked
    if is_coarse:
        logits = logits.round()
    filters = random_filters(rng, len(logits))
    is_settled = rank(logits, filters, width).is_settled
    assert bool(is_settled.any()) == (width > 1)
    assert not is_settled.all()
    everything = spread(logits, filters, 40)
    assert torch.equal(spread(logits, filters, width)[is_settled], everything[is_settled])
    assert bool(rank(logits, filters, 40).is_settled.all())


def test_samples_do_not_depend_on_how_far_was_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(scale=2, size=(2000, 600))).round()
    filters, clocks = random_filters(rng, 2000), clocks_of(range(2000), [0] * 2000, 600)
    outputs = []
    for widths in ((), (2, 5, 120), (7,)):
        monkeypatch.setattr(sampler, "HEAD_WIDTHS", widths)
        outputs.append(sample(logits, filters, clocks).tolist())
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_head_races_as_the_whole_row_does() -> None:
    rng = np.random.default_rng(6)
    logits = torch.from_numpy(rng.normal(scale=2, size=(2000, 600)))
    filters, clocks = random_filters(rng, 2000), clocks_of(range(2000), [0] * 2000, 600)
    winners = race(spread(logits, filters, 600), clocks)
    assert race_head(rank(logits, filters, 600), clocks).tolist() == winners.tolist()


def clocks_of(seeds: Sequence[int], positions: Sequence[int], vocab_size: int) -> torch.Tensor:
    return torch.from_numpy(numbers_of(seeds, positions, num_clocks(vocab_size)))


def numbers_of(seeds: Sequence[int], positions: Sequence[int], num_columns: int = 1) -> np.ndarray:
    return exponentials(np.array(seeds, np.uint64), np.array(positions, np.int64), num_columns)


@pytest.mark.parametrize("vocab_size", [3, 255, 256, 257, 1000])
def test_a_race_has_the_distribution(vocab_size: int) -> None:
    size = 100_000
    probs = np.random.default_rng(vocab_size).dirichlet(np.full(vocab_size, 0.5))
    relative = torch.from_numpy(probs * 7).expand(2000, vocab_size)
    counts = np.zeros(vocab_size)
    for start in range(0, size, 2000):
        clocks = clocks_of([11] * 2000, range(start, start + 2000), vocab_size)
        counts += np.bincount(race(relative, clocks), minlength=vocab_size)
    rare = probs * size < 10
    expected = np.append(probs[~rare], probs[rare].sum()) * size
    seen = np.append(counts[~rare], counts[rare].sum())
    assert stats.chisquare(seen[expected > 0], expected[expected > 0]).pvalue > 1e-4


def test_an_impossible_token_never_wins() -> None:
    rng = torch.Generator().manual_seed(1)
    probs = torch.rand(2000, 600, generator=rng, dtype=torch.float64)
    probs *= torch.rand(2000, 600, generator=rng) < 0.003
    probs[:, 7] += 1e-300
    tokens = race(probs, clocks_of(range(2000), [0] * 2000, 600))
    assert bool((probs.gather(1, tokens[:, None]) > 0).all())


def test_rounding_changes_a_winner_only_at_a_near_tie() -> None:
    """Logits that are off by up to 2e-5 hardly change a winner; by inversion 11 of these 20,000 change."""
    rng = torch.Generator().manual_seed(3)
    size, vocab_size = 20_000, 1000
    num_changed = 0
    for start in range(0, size, 2000):
        logits = torch.randn(2000, vocab_size, generator=rng, dtype=torch.float64) * 2
        noise = (torch.rand(2000, vocab_size, generator=rng, dtype=torch.float64) - 0.5) * 4e-5
        clocks = clocks_of([5] * 2000, range(start, start + 2000), vocab_size)
        winners = race(logits.exp(), clocks)
        num_changed += int((winners != race((logits + noise).exp(), clocks)).sum())
    assert num_changed <= 4


def test_exponential_numbers_are_exponential_and_independent() -> None:
    size = 200_000
    by_position = numbers_of([42] * size, range(size))[:, 0]
    by_seed = numbers_of(range(size), [3] * size)[:, 0]
    by_column = numbers_of([42], [3], size)[0]
    for numbers in (by_position, by_seed, by_column):
        assert numbers.min() > 0
        uniforms = np.exp(-numbers)
        assert stats.chisquare(np.histogram(uniforms, 100, (0, 1))[0]).pvalue > 1e-4
        pairs = np.histogram2d(uniforms[:-1], uniforms[1:], 20, ((0, 1), (0, 1)))[0]
        assert stats.chisquare(pairs.ravel()).pvalue > 1e-4
    assert np.abs(np.corrcoef([by_position, by_seed, by_column]) - np.eye(3)).max() < 0.01


def test_exponential_numbers_depend_on_seed_position_and_column_alone() -> None:
    assert numbers_of([5, 6], [7, 8], 3)[0].tolist() == numbers_of([5], [7], 9)[0, :3].tolist()
    numbers = numbers_of([5, 5, 6, (1 << 64) - 1], [7, 8, 7, 7], 300)
    assert len({*numbers.ravel().tolist()}) == numbers.size


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(top_k=3)])
@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_logits_that_allow_nothing_break_nothing(params: SamplingParams, value: float) -> None:
    logits = torch.full((2, 300), value)
    logits[1] = torch.zeros(300).index_fill_(0, torch.tensor([7]), 99.0)
    broken, good = choose(logits, [SamplerState(params), SamplerState(params)], [Draft()] * 2).tolist()
    assert 0 <= broken < 300
    assert good == 7


def test_any_integer_is_a_seed() -> None:
    logits = torch.zeros(3, 1000)
    states = [SamplerState(SamplingParams(), seed) for seed in (-1, (1 << 64) - 1, 1 << 80)]
    tokens = choose(logits, states, [Draft()] * 3).tolist()
    assert tokens[0] == tokens[1]
    assert tokens[2] != tokens[1]


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 2.0]])
    states = [SamplerState(GREEDY), SamplerState(GREEDY)]
    assert choose(logits, states, [Draft(), Draft()]).tolist() == [1, 0]


def test_penalties_count_the_output_tokens() -> None:
    logits = torch.tensor([[5.0, 4.4, 0.0]] * 4)
    params = [
        replace(GREEDY, presence_penalty=0.5),
        replace(GREEDY, presence_penalty=1.0),
        replace(GREEDY, frequency_penalty=0.25),
        replace(GREEDY, frequency_penalty=0.25),
    ]
    outputs = [[0, 0, 0], [0], [0, 0], [0, 0, 0]]
    states = [SamplerState(p, output_ids=ids) for p, ids in zip(params, outputs, strict=True)]
    assert choose(logits, states, [Draft() for _ in states]).tolist() == [0, 1, 0, 1]
    assert logits[0].tolist() == pytest.approx([5.0, 4.4, 0.0])


def test_penalties_at_a_draft_node_count_the_path_to_it() -> None:
    #   root ── 0 ── 0       the second branch has put out no 0
    #      └─── 1
    draft = Draft(np.array([0, 1, 0], np.int32), np.array([-1, -1, 0], np.int32), np.ones(3, np.float32))
    logits = torch.tensor([[5.0, 4.4, 0.0]] * 4)
    state = SamplerState(replace(GREEDY, frequency_penalty=0.5))
    # root: no output yet; after 0: 4.5 > 4.4; after 1: 5; after 0 0: 4.0 < 4.4
    assert choose(logits, [state], [draft]).tolist() == [0, 0, 0, 1]


def test_a_batch_of_mixed_requests_equals_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(size=(40, 17))).float()
    states = [
        SamplerState(
            SamplingParams(
                temperature=float(rng.choice([0.0, 0.7, 1.0])),
                top_p=float(rng.choice([1.0, 0.8])),
                top_k=int(rng.choice([0, 4])),
                min_p=float(rng.choice([0.0, 0.1])),
                presence_penalty=float(rng.choice([0.0, 1.0])),
            ),
            seed=int(rng.integers(1 << 40)),
            output_ids=rng.integers(17, size=rng.integers(5)).tolist(),
        )
        for _ in range(40)
    ]
    together = choose(logits, states, [Draft()] * 40).tolist()
    monkeypatch.setattr(sampler, "BLOCK_SIZE_CPU", 17 * 3)
    assert choose(logits, states, [Draft()] * 40).tolist() == together
    alone = [choose(logits[i : i + 1], [state], [Draft()]).item() for i, state in enumerate(states)]
    assert together == alone


def test_logprobs_are_the_raw_models() -> None:
    weights = [0.5, 0.3, 0.2]
    logits = torch.tensor([weights, weights]).log() + 3
    first, second = logprobs(logits, [2, 0], 2)
    assert first.token_id == 2
    assert first.logprob == pytest.approx(math.log(0.2))
    assert [token for token, _ in first.top] == [0, 1]
    assert [value for _, value in second.top] == pytest.approx([math.log(0.5), math.log(0.3)])
    assert logprobs(logits[:1], [1], 0)[0].top == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("n", 0),
        ("n", 129),
        ("max_tokens", 0),
        ("logprobs", 21),
        ("stop", ("",)),
        ("stop", ("x",) * 17),
        ("max_tokens", 2.5),
        ("seed", "x"),
        ("top_p", math.nan),
        ("temperature", "hot"),
    ],
)
def test_a_parameter_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        check_sampling(replace(SamplingParams(), **{name: value}))
    assert caught.value.param == name


def test_the_defaults_are_in_range() -> None:
    check_sampling(SamplingParams())
