"""Full CUDA graphs of ragged decode steps: only where the attention can replay them. None is captured."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from the modules that vLLM imports
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.worker.gpu import model_runner
    from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager

    from agentspec.vllm_plugin import ragged_graphs


def group(support: AttentionCGSupport, longest: int | None = None) -> Any:
    """Return an attention group whose graphs replay so much."""
    builder = SimpleNamespace(
        get_cudagraph_support=lambda config, spec: support,
        get_varlen_cudagraph_max_query_len=lambda config, spec: longest,
    )
    backend = type("Backend", (), {})
    return SimpleNamespace(
        get_metadata_builder=lambda index: builder, kv_cache_spec=None, backend=backend, layer_names=["0"]
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what the graphs are made of."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(
        ModelCudaGraphManager,
        "__init__",
        lambda self, *args, **options: found.append({"args": args, **options}),
    )
    monkeypatch.setattr(model_runner, "ModelCudaGraphManager", ModelCudaGraphManager)
    return found


@pytest.mark.parametrize(
    ("supports", "is_ragged"),
    [
        ([(AttentionCGSupport.ALWAYS, None)], True),
        ([(AttentionCGSupport.UNIFORM_BATCH, 16)], True),
        ([(AttentionCGSupport.UNIFORM_BATCH, 15)], False),
        ([(AttentionCGSupport.ALWAYS, None), (AttentionCGSupport.NEVER, 16)], False),
    ],
)
def test_graphs_are_ragged_where_the_attention_can_replay_them(
    made: list[dict[str, Any]], supports: list[tuple[AttentionCGSupport, int | None]], is_ragged: bool
) -> None:
    ragged_graphs.install(lambda: [[group(*one)] for one in supports])
    model_runner.ModelCudaGraphManager("config", "device", "mode", decode_query_len=16, ubatch_runner=None)
    assert made == [
        {"args": ("config", "device", "mode", 16), "varlen_decode": is_ragged, "ubatch_runner": None}
    ]


def test_graphs_of_adaptive_verification_stay_ragged(made: list[dict[str, Any]]) -> None:
    ragged_graphs.install(lambda: pytest.fail("vLLM has checked the attention"))
    model_runner.ModelCudaGraphManager("config", "device", "mode", 16, varlen_decode=True)
    assert [one["varlen_decode"] for one in made] == [True]


def test_vllm_s_class_is_not_changed(made: list[dict[str, Any]]) -> None:
    ragged_graphs.install(list)
    assert model_runner.ModelCudaGraphManager is not ModelCudaGraphManager
    assert issubclass(model_runner.ModelCudaGraphManager, ModelCudaGraphManager)
