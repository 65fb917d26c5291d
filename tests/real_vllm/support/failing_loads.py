"""A KV connector whose loads fail: it promises the first blocks of a prompt, and never delivers them.

vLLM then discards what the step sampled, and computes the blocks or ends the request with an error
(``kv_load_failure_policy``: ``recompute`` or ``fail``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)


@dataclass
class Promised(KVConnectorMetadata):
    """The blocks that a step should load."""

    block_ids: set[int] = field(default_factory=set)


def is_promised(num_prompt_tokens: int) -> bool:
    """Return True for some prompts: those that :class:`SometimesFailingConnector` promises to load."""
    return num_prompt_tokens % 4 == 0


class FailingConnector(KVConnectorBase_V1):
    """Promises all whole blocks of every prompt once."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._promised = Promised()  # in the scheduler
        self._failed: set[int] = set()  # in the worker

    # ---- in the scheduler ----

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the tokens of the prompt's whole blocks that are not cached here."""
        block_size = self._vllm_config.cache_config.block_size
        num_promised = (request.num_prompt_tokens - 1) // block_size * block_size
        return max(0, num_promised - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Take the blocks to load into."""
        if num_external_tokens:
            block_size = self._vllm_config.cache_config.block_size
            (ids,) = blocks.get_block_ids()
            end = (request.num_prompt_tokens - 1) // block_size
            self._promised.block_ids |= set(ids[end - num_external_tokens // block_size : end])

    def build_connector_meta(self, scheduler_output: Any) -> Promised:
        """Pass the promised blocks to the worker."""
        promised, self._promised = self._promised, Promised()
        return promised

    # ---- in the worker ----

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        """Load nothing."""
        self._failed |= self._get_connector_metadata().block_ids

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the promised blocks of the step."""
        failed, self._failed = self._failed, set()
        return failed

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Do nothing."""

    def wait_for_save(self) -> None:
        """Do nothing."""


class SometimesFailingConnector(FailingConnector):
    """Promises the blocks of some prompts."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the tokens of a promised prompt's whole blocks that are not cached here."""
        if not is_promised(request.num_prompt_tokens):
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)
