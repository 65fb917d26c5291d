"""The trees together with a draft model of vLLM's: outputs are the same, and both draft."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from agentspec.config import OWN_HEADS
from agentspec.models import bundled_model_dir
from benchmarks.vllm.chats import load
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.runner_v2 import TWO_WORKERS
from benchmarks.vllm.speculators import NONE, Speculator, bundled_on_cpu
from tests.support.eagle_heads import head_config, head_tensors, write_head

Serving = Callable[..., AbstractContextManager[Any]]

CHATS = load(8, 3)
PRICE = 0.05  # close to 0: drafts must not depend on the machine's load
LAYERS = (1, 2, 4)
SHAPE = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size"),
    *("max_position_embeddings", "rms_norm_eps", "rope_theta"),
)
MTP_LAYER = "model.mtp_layers.0."


def answers(server: Any) -> list[list[int]]:
    return [answer.choices[0].token_ids for answer in ask_all(server.url, CHATS, 4)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Return the outputs without speculation."""
    with bundled_on_cpu().serving(NONE, tmp_path_factory.mktemp("none")) as server:
        return answers(server)


def untrained_head(folder: Path) -> str:
    """Write an EAGLE-3 head that is hardly ever right."""
    served = json.loads((bundled_model_dir() / "config.json").read_text())
    layers = {"eagle_aux_hidden_state_layer_ids": list(LAYERS)}
    config = head_config(
        **{name: served[name] for name in SHAPE},
        draft_vocab_size=served["vocab_size"],
        target_hidden_size=served["hidden_size"],
        torch_dtype="float16",
        eagle_config={**layers, "use_aux_hidden_state": True},
        **layers,  # where vLLM's runner V2 reads them
    )
    tensors = head_tensors(config, target_hidden=served["hidden_size"])
    # all tokens can be drafted: vLLM takes no table of their ids then
    halves = {name: one.half() for name, one in tensors.items() if one.is_floating_point()}
    return str(write_head(folder, config, halves))


def with_mtp_head(folder: Path) -> Path:
    """Write the bundled model with an MTP head that is hardly ever right, in the layout of MiMo."""
    served = bundled_model_dir()
    shutil.copytree(served, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    config = json.loads((served / "config.json").read_text())
    layout = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps({**config, **layout}))
    tensors = safetensors.torch.load_file(served / "model.safetensors")
    hidden, last = config["hidden_size"], f"model.layers.{config['num_hidden_layers'] - 1}."
    torch.manual_seed(0)
    for name, like in list(tensors.items()):
        if name.startswith(last):
            tensors[MTP_LAYER + name.removeprefix(last)] = 0.02 * torch.randn_like(like)
    for name in ("hidden_layernorm", "token_layernorm", "final_layernorm"):
        tensors[f"{MTP_LAYER}{name}.weight"] = torch.ones(hidden).half()
    tensors[f"{MTP_LAYER}input_proj.weight"] = 0.02 * torch.randn(hidden, 2 * hidden).half()
    for name in [
        name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
    ]:
        bias = torch.zeros(len(tensors[name])).half()  # MiMo has biases; those of zeros are none
        tensors[name.removesuffix("weight") + "bias"] = bias
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def drafted_with(draft_model: str, *flags: str, num_tokens: int = 15) -> Speculator:
    return Speculator(
        "hybrid",
        num_tokens=num_tokens,
        settings={"price": PRICE},
        draft_model=draft_model,
        flags=flags,
        environment=TWO_WORKERS,
    )


def figures(server: Any) -> tuple[Counter[str], Counter[str]]:
    """Return the drafted and accepted tokens by what drafted them."""
    drafted: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for stage in server.control("stages")["stages"]:
        drafted.update(stage["drafted_by_source"])
        accepted.update(stage["accepted_by_source"])
    return drafted, accepted


@pytest.mark.slow
def test_a_head_that_is_wrong_changes_no_token_and_is_soon_left_out(
    serving: Serving, expected: list[list[int]], tmp_path: Path
) -> None:
    with serving(drafted_with(untrained_head(tmp_path / "head"), "--no-async-scheduling")) as server:
        assert answers(server) == expected
        drafted, accepted = figures(server)
        assert drafted["model"] > 0
        assert accepted.total() - accepted["model"] > 10 * accepted["model"]
        assert server.counters().num_draft_tokens == drafted.total()


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--async-scheduling", "--no-async-scheduling"])
def test_a_model_that_is_right_drafts_what_the_trees_do_not_know(
    serving: Serving, expected: list[list[int]], flag: str
) -> None:
    with serving(drafted_with(str(bundled_model_dir()), flag)) as server:
        assert answers(server) == expected
        assert server.control("status")["model_runner"] == "V2"
        drafted, accepted = figures(server)
        assert accepted["model"] > 0.8 * drafted["model"] > 50
        assert accepted.total() > accepted["model"]


@pytest.mark.slow
def test_heads_in_the_checkpoint_draft_beside_the_trees(tmp_path: Path) -> None:
    engine = replace(bundled_on_cpu(), model=str(with_mtp_head(tmp_path / "model")))
    with engine.serving(NONE, tmp_path) as server:  # another class of vLLM's, so near ties may differ
        expected = answers(server)
    with engine.serving(drafted_with(OWN_HEADS, "--async-scheduling"), tmp_path) as server:
        assert answers(server) == expected
        drafted, accepted = figures(server)
        assert drafted["model"] > 0
        assert accepted.total() > accepted["model"]


@pytest.mark.slow
def test_two_ranks_verify_the_same_drafts(serving: Serving, expected: list[list[int]]) -> None:
    ranks = ("--tensor-parallel-size", "2", "--async-scheduling")
    with serving(drafted_with(str(bundled_model_dir()), *ranks)) as server:
        assert answers(server) == expected
        _, accepted = figures(server)
        assert accepted["model"] > 0
        assert accepted.total() > accepted["model"]


@pytest.mark.slow
def test_drafts_may_be_shorter_than_the_models(serving: Serving, expected: list[list[int]]) -> None:
    with serving(drafted_with(str(bundled_model_dir()), "--async-scheduling", num_tokens=2)) as server:
        assert answers(server) == expected
        _, accepted = figures(server)
        assert accepted["model"] > 0
