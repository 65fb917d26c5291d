"""The checker of flags, settings, variables and bodies finds each kind of change, in a made-up vLLM."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.vllm_sources.support import server
from tests.vllm_sources.support.made_up import write
from tests.vllm_sources.support.own_code import OwnFile
from tests.vllm_sources.support.package import Package

VLLM = {
    "vllm/__init__.py": "",
    "vllm/server.py": "if __name__ == '__main__':\n    print()\n",
    "vllm/envs.py": "VLLM_API_KEY: str | None = None\n",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
def add(parser):
    parser.add_argument("--speculative-config", "-sc", type=str)
    group.add_argument("--worker-cls")
""",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli_args.py": "class FrontendArgs:\n    disable_docs: bool = False\n",
    "vllm/config/__init__.py": """
from typing import Literal
GpuTypes = Literal["ngram_gpu"]
SpeculativeMethod = Literal["ngram", GpuTypes]
class SpeculativeConfig:
    method: SpeculativeMethod
    num_speculative_tokens: int
    rejection_sample_method: str = "standard"
""",
    "vllm/config/vllm.py": "if speculative.method in ('suffix', 'eagle'):\n    refuse()\n",
    "vllm/sampler.py": "MAX_SPEC_LEN = 128\n@jit\ndef kernel(out, values): ...\n",
    "vllm/entrypoints/router.py": """
from vllm.entrypoints.bodies import Chat, Batch
@router.post("/v1/chat/completions", responses={})
async def chat(request: Chat, raw: Request): ...
@router.post("/v1/chat/completions/batch")
async def batch(request: Batch): ...
""",
    "vllm/v1/worker/gpu/sample/bad_words.py": """
def add_request(params):
    if len(params.words) > 9:
        raise ValueError("too many")
    if sum(map(len, params.words)) > 99:
        raise ValueError("too long")
""",
    "vllm/v1/worker/gpu/sample/min_p.py": "def add_request(params): ...\ndef load():\n    raise KeyError\n",
    "vllm/entrypoints/state.py": "def init(state):\n    state.engine_client = 1\n",
    "vllm/entrypoints/bodies.py": """
class Chat(Model):
    vllm_xargs: dict | None = None
    def to_params(self):
        return Params.make(extra_args=self.vllm_xargs)
class Batch(Model):
    model_config = ConfigDict(extra="allow")
    def to_chat(self) -> Chat:
        return Chat(**self.model_dump())
""",
}
OURS = """
import vllm
SERVER, VARIABLE = "vllm.server", "VLLM_API_KEY"
KERNEL = "vllm.sampler.kernel"
FLAGS = ("--worker-cls", "-sc", "--no-disable-docs")
def expand(output, values): ...
register_kernels({KERNEL: expand})
request.app.state.engine_client
"""
LINE = [sys.executable, "-m", "vllm.server", "--worker-cls", "ours", "--speculative-config"]
CONFIG = '{"method": "ngram_gpu", "num_speculative_tokens": 8}'


def package(folder: Path, file: str = "vllm/envs.py", old: str = "", new: str = "") -> Package:
    assert old in VLLM[file]
    changed = VLLM[file].replace(old, new) if old else VLLM[file]
    return Package(write(folder / "theirs", {**VLLM, file: changed}))


def own(folder: Path, old: str = "", new: str = "") -> list[OwnFile]:
    assert old in OURS
    path = "agentspec/vllm_plugin/command.py"
    root = write(folder / "ours", {path: OURS.replace(old, new) if old else OURS})
    return [OwnFile(root, root / path)]


def all_of(theirs: Package, files: list[OwnFile], config: str = CONFIG) -> list[str]:
    return [
        *server.missing_flags(theirs, files, (1, 0)),
        *server.wrong_command(theirs, [*LINE, config]),
        *server.missing_paths(theirs, files),
        *server.missing_state(theirs, files),
        *server.wrong_kernels(theirs, files),
        *server.missing_number(theirs, "vllm.sampler.MAX_SPEC_LEN", 128),
        *server.unknown_settings(theirs),
        *server.other_limits(theirs),
    ]


def test_nothing_is_found_where_all_is_there(tmp_path: Path) -> None:
    assert all_of(package(tmp_path), own(tmp_path)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "text"),
    [
        ("vllm/engine/arg_utils.py", "--worker-cls", "--worker", "there is no flag --worker-cls"),
        ("vllm/engine/arg_utils.py", "--worker-cls", "--worker", "the command line has --worker-cls"),
        ("vllm/engine/arg_utils.py", '"-sc", ', "", "there is no flag -sc"),
        ("vllm/entrypoints/cli_args.py", "disable_docs", "docs", "there is no flag --no-disable-docs"),
        ("vllm/config/__init__.py", '"ngram_gpu"', '"other"', "there is no speculative method 'ngram_gpu'"),
        ("vllm/config/__init__.py", "num_spec", "most_spec", "has no num_speculative_tokens"),
        ("vllm/config/__init__.py", "rejection_", "typical_", "the new setting typical_sample_method"),
        ("vllm/engine/arg_utils.py", '"--worker-cls"', '"--worker-cls", "-se"', "new short flag -se"),
        (
            "vllm/config/__init__.py",
            "class SpeculativeConfig",
            "class Speculation",
            "no vllm.config.Speculative",
        ),
        ("vllm/config/vllm.py", "eagle", "ngram_gpu", "vllm.config.vllm names 'ngram_gpu'"),
        ("vllm/server.py", "__main__", "main", "python -m vllm.server starts nothing"),
        ("vllm/envs.py", "VLLM_API_KEY", "VLLM_KEY", "there is no variable VLLM_API_KEY"),
        ("vllm/entrypoints/state.py", "engine_client", "engine", "sets no app.state.engine_client"),
        ("vllm/sampler.py", "def kernel", "def expand_kernel", "there is no vllm.sampler.kernel"),
        ("vllm/sampler.py", "values", "values, ends", "vllm.sampler.kernel has 3 parameters, ours has 2"),
        ("vllm/v1/worker/gpu/sample/min_p.py", "...", "assert params.min_p", "refuses requests in 1 ways"),
        ("vllm/v1/worker/gpu/sample/bad_words.py", 'raise ValueError("too long")', "pass", "in 1 ways"),
        ("vllm/sampler.py", "128", "64", "vllm.sampler.MAX_SPEC_LEN is 64, ours is 128"),
        ("vllm/sampler.py", "MAX_SPEC_LEN", "MOST", "vllm.sampler.MAX_SPEC_LEN is None, ours is 128"),
    ],
)
def test_a_change_of_vllm_is_found(tmp_path: Path, file: str, old: str, new: str, text: str) -> None:
    found = all_of(package(tmp_path, file, old, new), own(tmp_path))
    assert [one for one in found if text in one], found


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        ("vllm/envs.py", "", "", {}),
        ("vllm/entrypoints/bodies.py", "vllm_xargs", "xargs", {"", "/batch"}),
        ("vllm/entrypoints/bodies.py", "allow", "ignore", {"/batch"}),
        ("vllm/entrypoints/bodies.py", "self.model_dump()", "{}", {"/batch"}),
    ],
)
def test_a_body_without_tags_is_found(tmp_path: Path, file: str, old: str, new: str, found: set[str]) -> None:
    untagged = [
        text for text in server.untagged_paths(package(tmp_path, file, old, new), (9, 0)) if "body" in text
    ]
    assert untagged == [f"the body of /v1/chat/completions{one} has no vllm_xargs" for one in sorted(found)]


def test_a_body_whose_tags_are_not_used_is_found(tmp_path: Path) -> None:
    theirs = package(tmp_path, "vllm/entrypoints/bodies.py", "extra_args=", "arguments=")
    assert "the vllm_xargs of /v1/chat/completions reach no sampling parameters" in list(
        server.untagged_paths(theirs, (9, 0))
    )


def test_a_missing_path_is_found(tmp_path: Path) -> None:
    assert "there is no path /v1/messages" in list(server.untagged_paths(package(tmp_path), (9, 0)))


def test_the_command_lines_of_both_model_runners_are_checked(tmp_path: Path) -> None:
    lines = server.command_lines("0.33.0", tmp_path)
    assert all("--speculative-config" in line and "--shutdown-timeout" in line for line in lines)
    assert len(lines) == 2
