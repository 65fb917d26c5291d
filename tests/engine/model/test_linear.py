"""Each form of the matrix product compared with the plain one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from agentspec.engine import machine_memory
from agentspec.engine.model import linear
from agentspec.engine.model.linear import Linear


@pytest.mark.parametrize("has_packing", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 17, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_product_and_residual(has_packing: bool, has_bias: bool, rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias, residual = (
        torch.randn(*shape, generator=generator).to(dtype)
        for shape in [(rows, 24), (40, 24), (40,), (rows, 40)]
    )
    product = Linear(weight, bias if has_bias else None, has_packing=has_packing)
    expected = x.double() @ weight.double().t() + (bias.double() if has_bias else 0)
    untouched = residual.clone()
    tolerance = 0.2 if dtype == torch.bfloat16 else 1e-4
    with torch.inference_mode():
        assert (product(x) - expected).abs().max() < tolerance
        assert (product.add_to(residual, x) - expected - residual).abs().max() < tolerance
    assert torch.equal(residual, untouched)


def test_packing_is_for_float32_only() -> None:
    assert Linear(torch.ones(4, 4, dtype=torch.bfloat16), has_packing=True).packed is None
    assert Linear(torch.ones(4, 4)).packed is None


@pytest.mark.parametrize(
    ("limit", "num_parameters", "has_room"),
    [
        ("max", 10**15, False),  # more than any machine's memory
        ("max", 1000, True),
        (str(16 << 30), (2 << 30) // 4, True),
        (str(16 << 30), (2 << 30) // 4 + 1, False),
        (str(1 << 30), (512 << 20) // 4, True),
        (str(1 << 30), (512 << 20) // 4 + 1, False),
    ],
)
def test_packed_copies_fit_into_the_memory_of_machine_and_container(
    limit: str, num_parameters: int, has_room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(limit + "\n")
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 24, "SC_PAGE_SIZE": 1 << 12}.__getitem__)
    monkeypatch.setattr(machine_memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine_memory, "OWN_CGROUP", tmp_path / "absent")
    assert linear.has_room_to_pack(num_parameters) == has_room


def test_a_limit_of_the_process_s_own_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text("1:name=systemd:/x\n0::/user.slice/job\n")
    (tmp_path / "user.slice" / "job").mkdir(parents=True)
    (tmp_path / "user.slice" / "job" / "memory.max").write_text(str(8 << 30))
    (tmp_path / "memory.max").mkdir()  # it can't be read
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 24, "SC_PAGE_SIZE": 1 << 12}.__getitem__)
    monkeypatch.setattr(machine_memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine_memory, "OWN_CGROUP", tmp_path / "own")
    assert linear.has_room_to_pack((1 << 30) // 4)
    assert not linear.has_room_to_pack((1 << 30) // 4 + 1)
