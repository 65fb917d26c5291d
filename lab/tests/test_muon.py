"""The optimizer of the matrices in float32, against the library's own in bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lab.sql_model.muon import Float32Muon, muon, orthogonal

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def trained(kind: type[torch.optim.Muon], rows: int, columns: int) -> Tensor:
    """Return a matrix after some steps with drawn gradients."""
    torch.manual_seed(1)
    matrix = nn.Parameter(torch.randn(rows, columns))
    optimizer = kind([matrix], lr=0.1, weight_decay=0.01, momentum=0.95)
    for _ in range(5):
        matrix.grad = torch.randn(rows, columns)
        optimizer.step()
    return matrix.detach()


@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (48, 16), (16, 48)])
def test_it_takes_the_steps_of_the_library_s_own(rows: int, columns: int) -> None:
    torch.testing.assert_close(
        trained(Float32Muon, rows, columns), trained(torch.optim.Muon, rows, columns), rtol=0.02, atol=0.02
    )


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (20, 8), (8, 20)])
def test_a_matrix_becomes_about_orthogonal(rows: int, columns: int) -> None:
    torch.manual_seed(2)
    found = orthogonal(torch.randn(rows, columns), COEFFICIENTS, 5, 1e-7)
    assert found.dtype == torch.float32
    assert found.shape == (rows, columns)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_a_matrix_of_zeros_stays_one() -> None:
    assert not orthogonal(torch.zeros(3, 4), COEFFICIENTS, 5, 1e-7).any()


def test_a_matrix_without_a_gradient_is_left_alone() -> None:
    matrix = nn.Parameter(torch.ones(2, 3))
    Float32Muon([matrix], lr=0.1).step()
    assert matrix.eq(1).all()


@pytest.mark.parametrize("has_instructions", [True, False])
def test_only_a_cpu_that_emulates_bfloat16_takes_it(
    has_instructions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    capabilities = {"avx512_bf16": has_instructions}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    matrices = [nn.Parameter(torch.ones(2, 3))]
    assert isinstance(muon(matrices, 0.1, "cpu"), Float32Muon) is not has_instructions
    assert not isinstance(muon(matrices, 0.1, "cuda"), Float32Muon)
