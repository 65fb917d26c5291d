"""The model runner that a vLLM server gets with the plugin, and the flags that follow from it.

vLLM's runner V2 (0.32 and later) schedules ahead of the drafts. The plugin drafts for it as a speculator.
The runner V1 takes drafts from a class of ours (``custom_class``), and schedules step by step. Does not
import vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.config import OWN_HEADS
from agentspec.errors import ConfigError
from agentspec.vllm_plugin.versions import FIRST_WITH_RUNNER_V2, parse

DEFAULT_MAX_DRAFT = 15  # 1 + K is a power of two, as are the sizes that vLLM captures CUDA graphs for
PROPOSER = "agentspec.vllm_plugin.proposer.ForestProposer"
SCHEDULER = "agentspec.vllm_plugin.scheduler.ForestScheduler"
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
V1_METHOD, V2_METHOD = "custom_class", "ngram_gpu"  # the second: vLLM runs it with asynchronous scheduling
MODEL_METHODS = ("eagle", "eagle3", "mtp", "draft_model")  # whose drafts the trees can be used with
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
        self,
        num_speculative_tokens: int,
        *,
        draft_model: str | None = None,
        adaptive_verification: bool = False,
    ) -> dict[str, Any]:
        """Return the value of ``--speculative-config``.

        Args:
            num_speculative_tokens: most draft tokens of a request in a step.
            draft_model: folder or name of a draft model, which drafts as well as the trees, or ``OWN_HEADS``.
            adaptive_verification: see :class:`PluginSettings`.

        Raises:
            ConfigError: the runner has no adaptive verification, or none together with a draft model.
        """
        if draft_model is not None:
            self.check_is_v2("draft_model")
            if adaptive_verification:
                raise ConfigError("adaptive_verification can't be used with a draft model")
            return {**_drafting(draft_model), "num_speculative_tokens": num_speculative_tokens}
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


def _drafting(draft_model: str) -> dict[str, Any]:
    """Return vLLM's settings for a draft model. vLLM recognizes the kind of other models by itself."""
    if draft_model == OWN_HEADS:
        return {"method": OWN_HEADS}
    try:
        config = json.loads((Path(draft_model) / "config.json").read_text())
    except (OSError, ValueError):  # a name that vLLM downloads, or it reports the error
        return {"model": draft_model}
    names = config.get("architectures") if isinstance(config, dict) else None
    kinds = {"Eagle3": "eagle3", "Eagle": "eagle"}
    method = next((kinds[kind] for kind in kinds if any(kind in str(name) for name in names or ())), None)
    return {"model": draft_model} if method is None else {"method": method, "model": draft_model}
