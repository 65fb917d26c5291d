"""vLLM's engine core in this process, with the plugin."""

from __future__ import annotations

import os
from typing import Any

from vllm import LLM

from agentspec.models import bundled_model_dir
from agentspec.vllm_plugin.launch import SCHEDULER, WORKER, ModelRunner, asks_for_v2


def bundled(**options: Any) -> LLM:
    """Return an engine of the bundled model with vLLM's options, and the environment's model runner."""
    return LLM(
        model=str(bundled_model_dir()),
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        worker_cls=WORKER,
        scheduler_cls=SCHEDULER,
        speculative_config=ModelRunner(is_v2=bool(asks_for_v2(os.environ))).speculative_config(15),
        **options,
    )
