"""The checker of the names that the plugin uses finds each kind of change, in a made-up vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.vllm_plugin.versions import NEWEST, OLDEST, parse
from tests.vllm_sources.support import table
from tests.vllm_sources.support.consumers import precedes
from tests.vllm_sources.support.made_up import PARAMETERS, checked, findings, package, plugin, write
from tests.vllm_sources.support.own_code import own_files
from tests.vllm_sources.support.package import Package
from tests.vllm_sources.support.uses import Uses

ROOT = Path(__file__).parents[2]
WORKER, OUTPUT, CONFIG = "vllm/worker.py", "vllm/output.py", "vllm/config/all.py"
RUNNER, SPECULATOR = "vllm/runner.py", "vllm/speculator.py"


def test_nothing_is_found_where_all_is_there(tmp_path: Path) -> None:
    assert findings(package(tmp_path), plugin(tmp_path)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "text"),
    [
        ("vllm/version.py", "__version__", "VERSION", "there is no vllm.__version__"),
        (OUTPUT, "class Request", "class NewRequest", "there is no vllm.output.Request"),
        (OUTPUT, "new: list", "added: list", "vllm.output.Output has no new"),
        (OUTPUT, "name: str", "req_id: str", "vllm.output.Request has no name"),
        (OUTPUT, "spec_tokens", "draft_tokens", "vllm.output.Request has no spec_tokens"),
        (CONFIG, "max_num_seqs", "most_seqs", "vllm.config.all.SchedulerConfig has no max_num_seqs"),
        (CONFIG, "def num_tokens", "def most", "vllm.config.all.SpeculativeConfig has no num_tokens"),
        (WORKER, "self.requests", "self.live", "vllm.worker.Worker has no requests"),
        (WORKER, "def warm_up", "def warmup", "vllm.worker.Worker has no warm_up"),
        (
            WORKER,
            "def make(size: int, *, name",
            "def make(size: int, *, label",
            "make takes no argument 'name'",
        ),
        (WORKER, "def make(size: int", "def make(size: int, kind: str", "make needs the argument 'kind'"),
        (WORKER, "def execute(", "def run(", "vllm.worker.Worker has no execute"),
        (WORKER, "(Base):\n    def execute(", "(Base):\n    def run(", "vllm.worker.Worker has no execute"),
        (WORKER, "self._after()", "self._later()", "Worker._after is not called in its module"),
        (WORKER, "def _after", "def _later", "vllm.worker.Worker has no _after"),
        (WORKER, "is_dummy", "is_profile", "has 'is_profile' as its argument 2, ours has 'is_dummy'"),
        (WORKER, "is_dummy: bool = False", "*, step: int", "execute takes an argument 'step', ours does not"),
        (WORKER, "def stop(self) -> None: ...\n\ndef", "x = 1\n\ndef", "vllm.worker.Worker.stop is abstract"),
        (
            WORKER,
            "self.requests:",
            "self._seen = 0\n        self.requests:",
            "has a _seen of its own: rename",
        ),
        (SPECULATOR, "(config, device)", "(config, device, states)", "has 'states' as its argument 3"),
        (RUNNER, "is_ready", "is_loaded", "reads is_loaded, which OurSpeculator lacks"),
        (
            OUTPUT,
            "def encode(self, text)",
            "def encode(self, text, kind)",
            "encode needs the argument 'kind'",
        ),
        (OUTPUT, "@dataclass", "@dataclass(slots=True)", "vllm.output.Request takes no further attributes"),
        (
            WORKER,
            "def tokenizer(",
            "def load() -> None: ...\ndef tokenize(",
            "there is no vllm.worker.tokenizer",
        ),
        (RUNNER, "rows, count=2", "self.count", "takes 'rows' as argument 1, not 'count'"),
        (RUNNER, "count=2", "count=2, seed=3", "calls propose: ours takes no argument 'seed'"),
    ],
)
def test_a_change_of_vllm_is_found(tmp_path: Path, file: str, old: str, new: str, text: str) -> None:
    found = findings(package(tmp_path, {file: (old, new)}), plugin(tmp_path))
    assert [one for one in found if text in one], found


def test_a_replaced_name_that_vllm_does_not_use_is_found(tmp_path: Path) -> None:
    changes = {
        RUNNER: ("= init_speculator(", "= self.make("),
        SPECULATOR: ("def init", "init = 1\n\ndef init"),
    }
    found = findings(package(tmp_path, changes), plugin(tmp_path))
    assert found == ["vllm.runner.init_speculator is not used in its module: replacing it does nothing"]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("request.spec_tokens", "request.drafts", "vllm.output.Request has no drafts"),
        ("self.take(new)", "print(new.size)", "vllm.output.Request has no size"),
        ("for count in output.counts:\n            print(count)", "output.finished, output.left", "no left"),
        (
            "for new in output.new",
            "for _, new in enumerate(output.new, new.x)",
            "vllm.output.Request has no x",
        ),
        ("self._config = config", "self._config = config.parts", "vllm.config.all.VllmConfig has no parts"),
        ("make(1, name=", "make(name=", "make needs the argument 'size'"),
        ("super().execute(output)", "super().run(output)", "vllm.worker.Worker has no run"),
    ],
)
def test_a_change_of_ours_is_found(tmp_path: Path, old: str, new: str, text: str) -> None:
    found = findings(package(tmp_path), plugin(tmp_path, old, new))
    assert [one for one in found if text in one], found


def test_what_is_read_with_a_default_may_be_absent(tmp_path: Path) -> None:
    uses = checked(package(tmp_path), plugin(tmp_path))
    assert uses.absent == {"vllm.output.Request.later", "vllm.later.optional"}


def test_a_result_that_vllm_does_not_annotate_must_be_in_the_table(tmp_path: Path) -> None:
    files = own_files(plugin(tmp_path))
    uses = Uses(package(tmp_path), files, PARAMETERS, {})
    uses.check()
    assert [one.text.partition(",")[0] for one in uses.found] == [
        "the class of the result of vllm.worker.tokenizer is unknown"
    ]


@pytest.mark.parametrize(("first", "second", "holds"), [("make", "use", True), ("use", "make", False)])
def test_the_order_of_calls(tmp_path: Path, first: str, second: str, holds: bool) -> None:
    text = "def step():\n    out = make()\n    use(out)\ndef other():\n    use()\n"
    module = Package(write(tmp_path, {"vllm/__init__.py": "", "vllm/runner.py": text})).module("vllm.runner")
    assert module is not None
    assert precedes(module, first, second) is holds
    assert not precedes(module, "missing", second)


UNTYPED = {
    "parameter": "def read(thing: Any) -> None:\n    thing.size\n",
    "elements": "def read(thing: list[Any]) -> None:\n    [one.size for one in thing]\n",
    "nested": "def read() -> None:\n    def inner(thing: Any) -> None:\n        thing.size\n",
    "field": "class Read:\n    thing: Any\n    def read(self) -> None:\n        self.thing.size\n",
    "assigned": "class Read:\n    def read(self) -> None:\n"
    "        self.thing: Any = None\n        self.thing.size\n",
    "result": "def get(thing: Any) -> Any:\n    return thing\ndef read() -> None:\n    get(1).size\n",
}


@pytest.mark.parametrize("code", UNTYPED.values(), ids=UNTYPED)
@pytest.mark.parametrize("knows_vllm", [False, True])
def test_an_untyped_value_of_unknown_class_is_found(tmp_path: Path, knows_vllm: bool, code: str) -> None:
    ours = plugin(tmp_path, "def install() -> None:", f"{code}\ndef install() -> None:")
    theirs = package(tmp_path) if knows_vllm else None
    found = findings(theirs, ours)
    assert found == ["the class of the untyped 'thing' is unknown, 'size' is read: add it to table.py"]
    assert findings(theirs, ours, {**PARAMETERS, "thing": None}) == []


@pytest.mark.parametrize(
    "code",
    [
        "def read(new: Any) -> None:\n    new.size\n",
        "def read(given: list) -> None:\n    sorted(given, key=lambda new: new.size)\n",
        "class Read:\n    new: Any\n\ndef read(given: Read) -> None:\n    given.new.size\n",
        "class Read:\n    def __init__(self, one: Outer) -> None:\n        self.outer: Outer = None\n"
        "    def read(self) -> None:\n        self.outer.new.size\nclass Outer:\n    new: Any\n",
    ],
)
def test_a_value_is_followed_through_our_code(tmp_path: Path, code: str) -> None:
    ours = plugin(tmp_path, "def install() -> None:", f"{code}\ndef install() -> None:")
    assert findings(package(tmp_path), ours) == ["vllm.output.Request has no size"]


def test_the_table_types_what_vllm_annotates_with_any(tmp_path: Path) -> None:
    theirs = package(tmp_path, {WORKER: ("output: Output, is_dummy", "output: Any, is_dummy")})
    assert findings(theirs, plugin(tmp_path))[0].startswith("the class of the untyped 'output' is unknown")
    assert findings(theirs, plugin(tmp_path), {**PARAMETERS, "output": "vllm.output.Output"}) == []


def test_every_untyped_value_of_the_plugin_is_in_the_table() -> None:
    uses = Uses(None, own_files(ROOT), table.PARAMETERS, table.ATTRIBUTES, table.RESULTS)
    uses.check()
    assert uses.found == []


def test_the_oldest_and_the_newest_supported_versions_are_checked() -> None:
    checked = [parse(version) for version in table.CHECKED]
    assert (checked[0], checked[-1]) == (OLDEST, NEWEST)


def test_the_files_in_the_table_exist() -> None:
    exist = [(ROOT / name).exists() for name in table.FIRST_VERSIONS]
    assert all(exist) or not any(exist)
