"""The checks of vLLM's sources find each kind of change, in a made-up vLLM of a few lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentspec.gateway.call import Endpoint
from agentspec.vllm_plugin.checks import NEWEST, OLDEST, parse
from tests.vllm_sources.support import server, table, types

BODIES = "\n".join(f'@router.post("{one}")\nasync def answer(): ...' for one in Endpoint)
RUNNER, SETTINGS = "vllm/v1/worker/gpu/model_runner.py", "vllm/config/speculative.py"
FLAGS, SAMPLER, ENVS = "vllm/engine/arg_utils.py", "vllm/v1/worker/gpu/sample/bad_words.py", "vllm/envs.py"
BODY, KERNEL = "vllm/entrypoints/bodies.py", "vllm/v1/sample/rejection_sampler.py"
VLLM = {
    "vllm/server.py": "if __name__ == '__main__':\n    print()\n",
    ENVS: "VLLM_API_KEY: str | None = None\nVLLM_MAX_NUM_BAD_WORDS: int = 128\n",
    FLAGS: 'def add(parser):\n    parser.add_argument("--speculative-config", "-sc", type=str)\n'
    '    group.add_argument("--worker-cls")\n',
    "vllm/entrypoints/cli_args.py": "class FrontendArgs:\n    disable_docs: bool = False\n",
    SETTINGS: 'SpeculativeMethod = Literal["ngram", "ngram_gpu"]\nclass SpeculativeConfig:\n'
    "    method: SpeculativeMethod\n    num_speculative_tokens: int\n",
    "vllm/config/vllm.py": "if speculative.method in ('suffix', 'eagle'):\n    refuse()\n",
    KERNEL: "MAX_SPEC_LEN = 128\ndef expand_kernel(out, values, ends, old, new, most): ...\n",
    RUNNER: "class Runner:\n    def step(self):\n        self.speculator = init_speculator()\n"
    "        output = AsyncOutput()\n        return self.speculator.propose(output)\n",
    SAMPLER: "def add_request(params):\n    assert params.words\n    raise ValueError\n",
    BODY: f"state.engine_client = 1\nvllm_xargs: dict\nextra_args=self.vllm_xargs\n{BODIES}\n",
}
PLUGIN = "agentspec/vllm_plugin"
OURS = {
    f"{PLUGIN}/launch.py": 'NAMES = ("--worker-cls", "-sc", "--no-disable-docs", "VLLM_API_KEY")\n',
    f"{PLUGIN}/cpu.py": "def expand(output, values, ends, old, new, most): ...\n",
}
LINE = [sys.executable, "-m", "vllm.server", "--speculative-config", '{"method": "ngram_gpu"}']


def write(folder: Path, files: dict[str, str], file: str = "", old: str = "", new: str = "") -> Path:
    """Write files, with one text of one of them replaced by another."""
    for name, text in files.items():
        assert name != file or old in text
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new) if name == file else text, encoding="utf-8")
    return folder


def findings(sources: Path, root: Path) -> Iterator[str]:
    yield from types.unused_names(sources)
    yield from types.other_orders(sources)
    yield from types.unknown_reads(sources)
    yield from server.missing_names(sources, root)
    yield from server.wrong_command(sources, LINE)
    yield from server.unknown_settings(sources)
    yield from (text for text in server.other_numbers(sources) if "MAX_SPEC_LEN" in text)
    yield from server.other_limits(sources)
    yield from server.untagged_paths(sources)
    yield from server.missing_state(sources)
    yield from server.wrong_kernel(sources, root)


def test_nothing_is_found_where_all_is_there(tmp_path: Path) -> None:
    assert list(findings(write(tmp_path / "theirs", VLLM), write(tmp_path / "ours", OURS))) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "text"),
    [
        (FLAGS, "--worker-cls", "--worker", "there is no flag --worker-cls"),
        (FLAGS, '"-sc", ', "", "there is no flag -sc"),
        (FLAGS, '"--worker-cls"', '"--worker-cls", "-se"', "new short flag -se"),
        ("vllm/entrypoints/cli_args.py", "disable_docs", "docs", "there is no flag --no-disable-docs"),
        (ENVS, "VLLM_API_KEY", "VLLM_KEY", "there is no variable VLLM_API_KEY"),
        (SETTINGS, '"ngram_gpu"', '"other"', "there is no speculative method 'ngram_gpu'"),
        (SETTINGS, "method: S", "kind: S", "speculative_config has no method"),
        (SETTINGS, "num_spec", "most_spec", "the new setting most_speculative_tokens"),
        ("vllm/config/vllm.py", "eagle", "ngram_gpu", "vllm.config.vllm names 'ngram_gpu'"),
        ("vllm/server.py", "__main__", "main", "starts nothing in vllm/server.py"),
        (KERNEL, "128", "64", "MAX_SPEC_LEN is [64], ours is 128"),
        (KERNEL, "MAX_SPEC_LEN", "MOST", "MAX_SPEC_LEN is [], ours is 128"),
        (KERNEL, "ends, ", "", "expand_kernel has 5 parameters, ours has 6"),
        (KERNEL, "expand_kernel", "expand", "expand_kernel has -1 parameters"),
        (SAMPLER, "raise ValueError", "pass", "bad_words.py refuses requests in 1 ways"),
        (RUNNER, "init_speculator()", "self.make()", "does not call init_speculator"),
        (RUNNER, "AsyncOutput()", "Output()", "does not call AsyncOutput"),
        (RUNNER, "output = AsyncOutput()", "", "does not call AsyncOutput before self.speculator.propose"),
        (
            RUNNER,
            "return self",
            "self.speculator.begin()\n        return self",
            "reads self.speculator.begin",
        ),
        (BODY, "engine_client", "engine", "sets no app.state.engine_client"),
        (BODY, "vllm_xargs", "xargs", "has vllm_xargs"),
        (BODY, "=self.vllm_xargs", "=None", "reach no sampling parameters"),
        (BODY, '"/v1/messages"', '"/messages"', "there is no path /v1/messages"),
    ],
)
def test_a_change_of_vllm_is_found(tmp_path: Path, file: str, old: str, new: str, text: str) -> None:
    sources = write(tmp_path / "theirs", VLLM, file, old, new)
    found = list(findings(sources, write(tmp_path / "ours", OURS)))
    assert [one for one in found if text in one], found


THEIRS = """
class Output:
    new: list[str]
class Base:
    def execute(self, output: Output, is_dummy: bool = False) -> Output: ...
    def stop(self, wait: bool) -> None: ...
def make(size: int) -> Base: ...
"""
USES = """
from typing import Any
from vllm.worker import Base, Output, make
from vllm.worker import absent
class Worker(Base):
    def execute(self, output: Output) -> Output:
        print(output.old)
        return super().execute(output, is_profile=True)
    def stop(self) -> None:
        make(1, 2).warm_up()
"""


def test_mypy_finds_what_the_plugin_uses_otherwise_than_vllm_has_it(tmp_path: Path) -> None:
    sources = write(tmp_path / "theirs", {"vllm/__init__.py": "", "vllm/worker.py": THEIRS})
    files = {"agentspec/__init__.py": "", f"{PLUGIN}/__init__.py": "", f"{PLUGIN}/worker.py": USES}
    root = write(tmp_path / "ours", files)
    found = "\n".join(types.wrong_uses(sources, root, tmp_path / "cache"))
    for text in (
        'Module "vllm.worker" has no attribute "absent"',
        'Signature of "execute" incompatible with supertype',
        '"Output" has no attribute "old"',
        'Unexpected keyword argument "is_profile"',
        'Signature of "stop" incompatible with supertype',
        'Too many arguments for "make"',
        '"Base" has no attribute "warm_up"',
    ):
        assert text in found, found


def test_every_supported_minor_is_checked() -> None:
    checked = [parse(version) for version in table.CHECKED]
    assert checked == [(0, minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]
    assert len(checked) == 2


def test_the_command_lines_of_both_model_runners_are_checked(tmp_path: Path) -> None:
    lines = list(server.command_lines("0.33.0", tmp_path))
    assert len(lines) == 2
    assert all("--speculative-config" in line and "--shutdown-timeout" in line for line in lines)
