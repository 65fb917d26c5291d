"""Settings of one embedded engine. Frozen; checked when made. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from agentspec.config import DraftConfig, check_prob
from agentspec.errors import ConfigError

DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a model is served.

    Attributes:
        model_path: directory of a Hugging Face checkpoint.
        served_name: the name in ``/v1/models``; empty = the directory's name.
        device: a torch device, e.g. ``"cpu"`` or ``"cuda:0"``.
        dtype: one of ``DTYPES``; None = the loader's choice for the device.
        num_slots: KV-cache slots: most sequences in a decode step.
        kv_cache_mb: limit of the KV cache's memory, in MiB; None = half of the free memory after the weights
            are loaded. On a CPU a slot takes memory for the tokens that it holds; elsewhere the slots are
            allocated at the start, as many as fit. Requests wait for memory.
        max_model_len: most tokens of prompt and output; None = the model's own limit.
        max_batch_tokens: most prompt tokens read in one forward pass. A longer prompt is read in
            chunks, while other sequences continue to decode.
        draft: draft settings; a request can only lower them.
        price: cost of verifying a draft token, in accepted tokens (0 to 1). Tokens with an estimated
            probability below it, or below the request's own ``min_prob``, are not drafted. None = learned
            from the time that steps take, so that a loaded server drafts less (docs/drafting.md).
        threads: CPU threads of torch; None = torch's choice.
        max_queue: most sequences in the queue for a slot; beyond it a request is refused.
        is_replaying: every request has a dictated output (``GenerationRequest.forced``), so the model's
            knowledge does not matter. Missing weights become random. The context may be longer than the
            model's own. A template that shows no tool calls is replaced. A prompt that continues an earlier
            request is read from that request's end.
    """

    model_path: str | Path
    served_name: str = ""
    device: str = "cpu"
    dtype: str | None = None
    num_slots: int = 16
    kv_cache_mb: int | None = None
    max_model_len: int | None = None
    max_batch_tokens: int = 256
    draft: DraftConfig = field(default_factory=DraftConfig)
    price: float | None = None
    threads: int | None = None
    max_queue: int = 256
    is_replaying: bool = False

    def __post_init__(self) -> None:
        for name in ("num_slots", "max_batch_tokens", "max_queue"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        for name in ("max_model_len", "threads", "kv_cache_mb"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1 or None, not {value!r}")
        if self.price is not None:
            check_prob("price", self.price)
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {DTYPES} or None, not {self.dtype!r}")

    @property
    def name(self) -> str:
        """The name under which the model is served."""
        return self.served_name or Path(self.model_path).resolve().name
