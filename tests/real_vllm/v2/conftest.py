"""vLLM's model runner V2 on the CPU, in an environment of its own (``make test-vllm-v2``)."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("vllm_v2_on_cpu") is None:
    collect_ignore_glob = ["test_*.py"]
