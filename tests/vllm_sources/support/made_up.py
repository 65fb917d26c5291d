"""A made-up vLLM and a made-up plugin, both a few lines long."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.vllm_sources.support.consumers import accesses
from tests.vllm_sources.support.own_code import own_files
from tests.vllm_sources.support.package import Package
from tests.vllm_sources.support.uses import Uses

VLLM = {
    "vllm/__init__.py": "from .version import __version__\n",
    "vllm/version.py": "__version__ = '1.0'\n",
    "vllm/config/__init__.py": "from vllm.config.all import *\n",
    "vllm/config/all.py": """
from dataclasses import dataclass

@dataclass
class SchedulerConfig:
    max_num_seqs: int = 8

@dataclass
class VllmConfig:
    scheduler_config: SchedulerConfig
    speculative_config: "SpeculativeConfig | None" = None

class SpeculativeConfig:
    @property
    def num_tokens(self) -> int:
        return 1
""",
    "vllm/worker.py": """
from abc import ABC, abstractmethod
from typing import Any
from vllm.config import VllmConfig
from vllm.output import Output, Request

class Base(ABC):
    def __init__(self, vllm_config: VllmConfig) -> None:
        self.vllm_config = vllm_config
        self.requests: dict[str, Request] = {}

    @abstractmethod
    def stop(self) -> None: ...

    def warm_up(self) -> None: ...

    def execute(self, output: Output, is_dummy: bool = False) -> Output | None:
        raise NotImplementedError

    def _after(self): ...

class Worker(Base):
    def execute(self, output: Output, is_dummy: bool = False) -> Output | None:
        self._after()
        return output

    def stop(self) -> None: ...

def tokenizer(): ...

def make(size: int, *, name: str = "") -> Worker: ...
""",
    "vllm/output.py": """
class Tokenizer:
    def encode(self, text): ...

@dataclass
class Request:
    name: str
    spec_tokens: list[int]

class Output:
    new: list[Request]
    counts: dict[str, int]

    def __init__(self, size): self.finished = set()
""",
    "vllm/runner.py": """
from vllm.speculator import BaseSpeculator, DraftModel, init_speculator

class Runner:
    def __init__(self):
        self.speculator = init_speculator(1, 2)

    def step(self):
        if isinstance(self.speculator, DraftModel):
            self.speculator.load()
        if self.config.use_eagle():
            self.speculator.of_eagle()
        if self.speculator.is_ready:
            return self.speculator.propose(rows, count=2)
""",
    "vllm/speculator.py": """
class BaseSpeculator:
    is_ready: bool = True

class DraftModel(BaseSpeculator):
    def load(self): ...

def init_speculator(config, device): ...
""",
}

PLUGIN = """
from __future__ import annotations
from typing import Any
from vllm import __version__
from vllm.config import VllmConfig
from vllm.output import Request
from vllm.worker import Worker, make, tokenizer
from vllm import runner
from vllm.speculator import BaseSpeculator
try:
    from vllm.later import optional
except ImportError:
    pass

def install() -> None:
    runner.init_speculator = OurSpeculator

class OurWorker(Worker):
    _seen: int = 0

    def execute(self, output: Any, is_dummy: bool = False) -> Any:
        for new in output.new:
            self.take(new)
        for count in output.counts:
            print(count)
        return super().execute(output)

    def _after(self) -> None:
        super()._after()

    def take(self, new: Any) -> None:
        request = self.requests[new.name]
        request.spec_tokens = [1] * self.vllm_config.scheduler_config.max_num_seqs
        make(1, name="x").warm_up()
        getattr(request, "later", None)
        setattr(request, "ours", 1)
        tokenizer().encode("x")

class OurSpeculator(BaseSpeculator):
    def __init__(self, config: Any, device: Any) -> None:
        self._config = config

    def propose(self, rows: int, count: int = 0) -> int:
        spec = self._config.speculative_config
        return 0 if spec is None else spec.num_tokens
"""

RESULTS = {"vllm.worker.tokenizer": "vllm.output.Tokenizer"}
PARAMETERS = {"new": "vllm.output.Request", "config": "vllm.config.VllmConfig"}


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files and return their folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def package(folder: Path, changes: Mapping[str, tuple[str, str]] | None = None) -> Package:
    """Return the made-up vLLM, with one text of a file replaced by another."""
    files = dict(VLLM)
    for name, (old, new) in (changes or {}).items():
        assert files[name].count(old) >= 1, old
        files[name] = files[name].replace(old, new)
    return Package(write(folder / "theirs", files))


def plugin(folder: Path, old: str = "", new: str = "") -> Path:
    """Return the folder of the made-up plugin, with one text replaced by another."""
    assert old in PLUGIN
    return write(
        folder / "ours", {"agentspec/vllm_plugin/worker.py": PLUGIN.replace(old, new) if old else PLUGIN}
    )


def checked(theirs: Package | None, ours: Path, parameters: Mapping[str, str | None] = PARAMETERS) -> Uses:
    """Return the checker, which has read all files."""
    uses = Uses(theirs, own_files(ours), parameters, {}, RESULTS)
    uses.check()
    return uses


def findings(
    theirs: Package | None, ours: Path, parameters: Mapping[str, str | None] = PARAMETERS
) -> list[str]:
    """Return the texts of what the checker finds."""
    uses = checked(theirs, ours, parameters)
    own = uses.own_class("OurSpeculator")
    module = None if theirs is None else theirs.module("vllm.runner")
    if own is not None and module is not None:
        for access in accesses(module, "self.speculator", "ngram", frozenset({"BaseSpeculator"})):
            uses.check_consumer(own, access)
    return [one.text for one in uses.found]
