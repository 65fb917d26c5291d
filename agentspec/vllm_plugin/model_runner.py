"""The model runner that a vLLM server gets with the plugin, and the flags that follow from it.

vLLM's runner V2 (0.32 and later) schedules ahead of the drafts. The plugin drafts for it as a speculator.
The runner V1 takes drafts from a class of ours (``custom_class``), and schedules step by step. Does not
import vLLM.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agentspec.errors import ConfigError
from agentspec.vllm_plugin.versions import FIRST_WITH_RUNNER_V2, parse

DEFAULT_MAX_DRAFT = 15  # 1 + K is a power of two, as are the sizes that vLLM captures CUDA graphs for
PROPOSER = "agentspec.vllm_plugin.proposer.ForestProposer"
SCHEDULER = "agentspec.vllm_plugin.scheduler.ForestScheduler"
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
V1_METHOD, V2_METHOD = "custom_class", "ngram_gpu"  # the second: vLLM runs it with asynchronous scheduling
# what the runner V2 refuses (VllmConfig._get_v2_model_runner_unsupported_features)
REFUSED_FLAGS = ("--enable-dbo", "--ubatch-size")
_OFF = ("0", "false", "off", "no")


def asks_for_v2(environment: Mapping[str, str]) -> bool | None:
    """Return the user's choice of the runner; None if these variables leave it open."""
    wish = environment.get(RUNNER_VARIABLE)
    return None if wish is None else wish.strip().lower() not in _OFF


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """A choice of model runner.

    Attributes:
        is_v2: V2, otherwise V1.
        reason: why it is V1 although this vLLM has V2; None if there is no reason to name.
    """

    is_v2: bool
    reason: str | None = None

    @classmethod
    def choose(
        cls,
        version: str,
        environment: Mapping[str, str],
        flags: Collection[str],
        *,
        is_for_cpus: bool,
        recomputes_failed_loads: bool = False,
    ) -> ModelRunner:
        """Return the runner for a server of this version of vLLM, with these variables and flags.

        Args:
            flags: names of the user's flags, such as ``--enable-dbo``.
            is_for_cpus: this vLLM was built for CPUs.
            recomputes_failed_loads: blocks of the KV cache that can't be loaded are computed. V2 (0.32) keeps
                its own count of computed tokens, and continues without the lost blocks.
        """
        if parse(version) < FIRST_WITH_RUNNER_V2:
            return cls(False)
        wish = asks_for_v2(environment)
        if wish is not None:
            return cls(wish, None if wish else f"{RUNNER_VARIABLE}={environment[RUNNER_VARIABLE]}")
        if is_for_cpus:
            return cls(False, "vLLM's build for CPUs has no Triton")
        if recomputes_failed_loads:
            return cls(False, "its runner V2 does not recompute after a failed load of the KV cache")
        refused = next((flag for flag in REFUSED_FLAGS if flag in flags), None)
        return cls(refused is None, None if refused is None else f"its runner V2 does not support {refused}")

    @property
    def name(self) -> str:
        """``V1`` or ``V2``."""
        return "V2" if self.is_v2 else "V1"

    def check_is_v2(self, setting: str) -> None:
        """Raise ConfigError if it is V1, which the setting has no effect on."""
        if not self.is_v2:
            reason = f" ({self.reason})" if self.reason else ""
            raise ConfigError(f"{setting} needs vLLM's model runner V2, not {self.name}{reason}")

    def speculative_config(
        self, num_speculative_tokens: int, *, adaptive_verification: bool = False
    ) -> dict[str, Any]:
        """Return the value of ``--speculative-config``.

        Raises:
            ConfigError: the runner has no adaptive verification.
        """
        if adaptive_verification:
            self.check_is_v2("adaptive_verification")
        if not self.is_v2:
            return {
                "method": V1_METHOD,
                "model": PROPOSER,
                "num_speculative_tokens": num_speculative_tokens,
            }
        config = {
            "method": V2_METHOD,
            "num_speculative_tokens": num_speculative_tokens,
            "prompt_lookup_min": 2,  # not used; vLLM wants both
            "prompt_lookup_max": 4,
        }
        return {**config, "enable_adaptive_verification": True} if adaptive_verification else config
