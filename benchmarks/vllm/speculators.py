"""The drafters that are compared: none, vLLM's own suffix decoding, and the plugin."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentspec.models import bundled_model_dir
from agentspec.vllm_plugin.command import vllm_command, vllm_environment
from benchmarks.vllm.chats import MODEL_NAME
from benchmarks.vllm.server import HOST, Server, free_port

NUM_SPECULATIVE_TOKENS = 32
MAX_MODEL_LEN = 2048


@dataclass(frozen=True, slots=True)
class Speculator:
    """One way to draft.

    Attributes:
        num_tokens: maximum length of a draft.
        method: vLLM's own method; None with the plugin or without speculation.
        settings: the plugin's settings; None without the plugin.
        flags: vLLM flags only for this one.
        environment: variables of the process only for this one.
    """

    name: str
    num_tokens: int = NUM_SPECULATIVE_TOKENS
    method: str | None = None
    settings: Mapping[str, Any] | None = None
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, model: str, flags: Sequence[str], port: int) -> list[str]:
        """Return vLLM's command line."""
        flags = [*flags, *self.flags]
        if self.settings is not None:
            return vllm_command(
                model,
                flags,
                settings=dict(self.settings),
                num_speculative_tokens=self.num_tokens,
                host=HOST,
                port=port,
            )
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
        command += ["--host", HOST, "--port", str(port), *flags]
        if self.method:
            speculation = {"method": self.method, "num_speculative_tokens": self.num_tokens}
            command += ["--speculative-config", json.dumps(speculation)]
        return command


NONE = Speculator("none")
SUFFIX = Speculator("suffix", method="suffix")
OURS = Speculator("agentspec", settings={})


@dataclass(frozen=True, slots=True)
class Engine:
    """A vLLM configuration that all drafters share.

    Attributes:
        model: a checkpoint's folder or name.
        flags: further vLLM flags.
        environment: variables of the process.
        none: vLLM without speculation, at its best.
    """

    model: str
    flags: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    none: Speculator = NONE

    @contextmanager
    def serving(self, speculator: Speculator, log_dir: Path, *flags: str) -> Iterator[Server]:
        """Run a server with this speculator and, after all others, these flags."""
        port = free_port()
        command = speculator.command(self.model, [*self.flags, *flags], port)
        log = log_dir / f"vllm-{speculator.name.replace(' ', '-')}.log"
        plugin = vllm_environment(settings=speculator.settings, command=command)
        with Server.running(
            command, port, log, {**self.environment, **plugin, **speculator.environment}
        ) as server:
            yield server


def on_gpu(model: str) -> Engine:
    """Return a checkpoint's shape with random weights on a GPU; steps take as long as with real ones.

    Without speculation vLLM uses its newer model runner and schedules ahead; with any, it does neither.
    """
    flags = ("--served-model-name", MODEL_NAME, "--load-format", "dummy", "--dtype", "bfloat16")
    none = Speculator(NONE.name, flags=("--async-scheduling",), environment={"VLLM_USE_V2_MODEL_RUNNER": "1"})
    return Engine(model, (*flags, "--max-model-len", "8192"), {"VLLM_LOGGING_LEVEL": "WARNING"}, none)


def bundled_on_cpu() -> Engine:
    """Return the bundled model on the CPU, exact enough that rounding does not decide greedy choices."""
    flags = ("--served-model-name", MODEL_NAME, "--dtype", "float32", "--enforce-eager")
    return Engine(
        str(bundled_model_dir()),
        (*flags, "--max-model-len", str(MAX_MODEL_LEN)),
        {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
    )
