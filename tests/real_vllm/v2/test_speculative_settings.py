"""The worker's check of the speculative settings with model runner V2, with a draft model and without."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.models import bundled_model_dir
from tests.real_vllm.support.lossy import HARMLESS, LOSSY
from tests.real_vllm.support.started import check, parsed

DRAFT_MODEL = {"method": "draft_model", "model": str(bundled_model_dir()), "num_speculative_tokens": 15}
WITH_V2 = [one for one in LOSSY if "parallel_drafting" not in one[1]]  # vLLM itself refuses it
BESIDE_TREES = {"prompt_lookup_min": None, "prompt_lookup_max": None, **DRAFT_MODEL}


@pytest.mark.parametrize("drafter", [{}, BESIDE_TREES], ids=["trees", "draft model"])
@pytest.mark.parametrize(("text", "changes"), WITH_V2)
def test_a_worker_refuses_lossy_settings(text: str, changes: dict[str, Any], drafter: dict[str, Any]) -> None:
    arguments = parsed()
    assert arguments is not None
    with pytest.raises(ConfigError, match=rf"speculative setting {text}, .*: leave it out, or set it to "):
        check(arguments, {**drafter, **changes})


@pytest.mark.parametrize("drafter", [{}, BESIDE_TREES], ids=["trees", "draft model"])
@pytest.mark.parametrize("changes", HARMLESS)
def test_a_worker_takes_harmless_settings(changes: dict[str, Any], drafter: dict[str, Any]) -> None:
    arguments = parsed()
    assert arguments is not None
    check(arguments, {**drafter, **changes})
