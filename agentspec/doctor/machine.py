"""Checks of the machine and of the environment for vLLM."""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentspec.config import MIB, ForestConfig
from agentspec.distribution import DOCUMENTS
from agentspec.doctor.finding import Finding, ask_python, ok, problem, warning
from agentspec.engine.model import checkpoint_config
from agentspec.errors import CheckpointError
from agentspec.vllm_plugin.checks import INSTALL
from agentspec.vllm_plugin.launch import ModelRunner

GIB = 1 << 30
ENOUGH_FILES = 4096
KV_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
NAME_DEVICES = """
import torch
print(*(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())), sep=", ")
"""


def check_gpu() -> Finding:
    """Check that the GPU build of vLLM finds a GPU."""
    is_well, said = ask_python(NAME_DEVICES)
    if not is_well:
        return problem("GPU", f"torch can't report it: {said}")
    if said.startswith("ended"):  # nothing was printed
        return problem(
            "GPU", "none is visible (nvidia-smi, CUDA_VISIBLE_DEVICES); without one, install vllm-cpu instead"
        )
    return ok("GPU", said)


def check_cpu(cpuinfo: str) -> Finding:
    """Check that the processor has the vector instructions for the CPU build of vLLM."""
    flags = set(re.findall(r"\w+", cpuinfo))
    if platform.machine() not in ("x86_64", "AMD64"):
        return ok("processor", platform.machine())
    if "avx512f" in flags:
        return ok("processor", "AVX-512")
    if "avx2" in flags:
        return warning("processor", "AVX2 and no AVX-512: vLLM runs, more slowly")
    return problem("processor", "no AVX2: the package vllm-cpu does not run here")


def check_openmp(environment: Mapping[str, str]) -> Finding:
    """Check that the OpenMP library is preloaded that vLLM needs for fast speculation on a CPU."""
    if "libiomp" in environment.get("LD_PRELOAD", "") or platform.machine() not in ("x86_64", "AMD64"):
        return ok("OpenMP", "as vLLM wants it")
    return warning(
        "OpenMP",
        "vLLM says that speculation on a CPU is slow without Intel's: pip install intel-openmp, then start "
        "with LD_PRELOAD=.../libiomp5.so",
    )


def check_kv_cache(environment: Mapping[str, str], available_bytes: int) -> Finding:
    """Check that the KV cache on a CPU has a size, and one that fits."""
    text = environment.get(KV_CACHE_VARIABLE, "")
    if not text:
        return warning("KV cache", f"vLLM chooses its share of the memory: set {KV_CACHE_VARIABLE}, in GiB")
    if not (text.isascii() and text.isdigit()):
        return problem("KV cache", f"{KV_CACHE_VARIABLE} must be a whole number of GiB, not {text!r}")
    if int(text) * GIB > available_bytes:
        return problem(
            "KV cache", f"{KV_CACHE_VARIABLE}={text}, but {available_bytes / GIB:.1f} GiB of memory are free"
        )
    return ok("KV cache", f"{text} GiB")


def check_model_runner(environment: Mapping[str, str], *, is_for_cpus: bool) -> Finding:
    """Check which model runner vLLM gets from ``agentspec serve``."""
    runner = ModelRunner.choose(environment, (), is_for_cpus=is_for_cpus)
    if runner.is_v2:
        return ok("model runner", "V2, which schedules steps ahead of their drafts")
    reason = f": {runner.reason}" if runner.reason else ""
    return ok("model runner", f"V1, which schedules step by step{reason}")


def check_environment(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check for variables that disable the plugin."""
    if environment.get("VLLM_PLUGINS"):
        yield warning(
            "environment", f"VLLM_PLUGINS={environment['VLLM_PLUGINS']} stops all of vLLM's plugins but these"
        )


def check_port(host: str, port: int) -> Finding:
    """Check that ``agentspec serve`` can listen there."""
    try:
        with socket.create_server((host, port)):
            return ok("port", f"{port} is free")
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        return problem("port", f"{port}: {reason}; choose another: agentspec serve --port N")


def check_files(limit: int | None = None) -> Finding:
    """Check the limit of open connections: each takes two descriptors."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if limit == resource.RLIM_INFINITY or limit >= ENOUGH_FILES:
        return ok("open files", "unlimited" if limit == resource.RLIM_INFINITY else str(limit))
    return warning(
        "open files",
        f"{limit}, so some {limit // 3} requests at a time: raise it with ulimit -n {ENOUGH_FILES}",
    )


def check_memory(available_bytes: int, config: ForestConfig | None = None) -> Finding:
    """Check that the forest's budgets fit into memory."""
    budget = (config or ForestConfig()).total_limit_bytes
    free = f"{available_bytes / GIB:.1f} GiB free"
    if available_bytes < budget:
        return warning(
            "memory",
            f"{free}, less than the {budget // MIB} MiB that all trees together may take: set "
            f"total_budget_mb ({DOCUMENTS}/vllm.md)",
        )
    return ok("memory", f"{free}, trees take up to {budget // MIB} MiB of it")


def check_checkpoint(model: str) -> Finding:
    """Check that ``--model`` is a checkpoint for the embedded engine, which serves without vLLM."""
    if not Path(model).is_dir():
        return problem("model", f"{model!r} is no folder here, and a model hub's names need vLLM: {INSTALL}")
    try:
        checkpoint_config.check_files(model)
    except CheckpointError as error:
        return problem("model", str(error))
    return ok("model", model)


def check_model(model: str) -> Finding:
    """Check that ``--model`` names a checkpoint for vLLM, without a download."""
    path = Path(model)
    if not path.exists():
        if model.startswith((".", "/", "~")):
            return problem("model", f"there is no folder {model!r}")
        return ok("model", f"{model} is no folder here: vLLM takes it from its cache or downloads it")
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (path / name).is_file()]
    if missing:
        return problem("model", f"{model!r} is no Hugging Face checkpoint: no {' and no '.join(missing)}")
    return ok("model", model)
