"""Full CUDA graphs for decode steps whose requests have drafts of different lengths. Model runner V2.

vLLM captures such graphs for adaptive verification only. Otherwise its full graphs are for steps in which
every request has the most draft tokens. In all other steps each layer's attention is a launch of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.attn_utils import get_varlen_cudagraph_unsupported_backend

Groups = Callable[[], Any]


class RaggedGraphs(model_runner.ModelCudaGraphManager):  # type: ignore[misc]
    """vLLM's graphs, of ragged decode steps where the attention can replay them.

    Attributes:
        groups: returns the model's attention groups, as the runner has them when it makes its graphs.
    """

    groups: Groups

    def __init__(
        self,
        vllm_config: Any,
        device: Any,
        cudagraph_mode: Any,
        decode_query_len: int,
        *args: Any,
        varlen_decode: bool = False,
        **options: Any,
    ) -> None:
        if not varlen_decode:
            refusal = get_varlen_cudagraph_unsupported_backend(self.groups(), vllm_config, decode_query_len)
            varlen_decode = refusal is None
        super().__init__(
            vllm_config,
            device,
            cudagraph_mode,
            decode_query_len,
            *args,
            varlen_decode=varlen_decode,
            **options,
        )


def install(groups: Groups) -> None:
    """Have vLLM's model runner V2 of this process make :class:`RaggedGraphs`."""
    model_runner.ModelCudaGraphManager = type(
        "RaggedGraphs", (RaggedGraphs,), {"groups": staticmethod(groups)}
    )
