"""The list in docs/vllm.md of places where vLLM is patched, against the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "agentspec" / "vllm_plugin"
# objects of our own classes, of numpy and of ctypes, whose attributes the plug-in writes
OURS = {
    *("self", "cls", "live", "live.call", "known", "stage", "counters", "drafter", "StepOutput", "output"),
    *("call", "yaml", "self._endings", "self.planner.drafter", "driver.cuLaunchHostFunc"),
}
OURS_BY_FILE = {("v2/slots.py", "request")}  # DraftSlots has requests of its own


def listed() -> list[tuple[str, str]]:
    """Return file and code of each row, in the order of the list."""
    text = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
    table = text.partition("## Where vLLM is patched")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ") and "`" in line]
    return [(row[0].removeprefix("| "), row[1].strip("`")) for row in rows]


def written() -> Iterator[tuple[str, str]]:
    """Yield file and code of each write to an attribute of an object that is not ours."""
    for path in sorted(PLUGIN.rglob("*.py")):
        file = path.relative_to(PLUGIN).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
                yield file, ast.unparse(node)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                owner = ast.unparse(node.value)
                if owner not in OURS and (file, owner) not in OURS_BY_FILE:
                    yield file, ast.unparse(node)


def test_every_patch_is_listed() -> None:
    found = set(written())
    assert len(found) > 10
    assert found <= set(listed())


def test_every_row_of_the_list_is_in_the_code() -> None:
    rows = listed()
    assert len(rows) == len(set(rows)) > 20
    for file, code in rows:
        tree = ast.parse((PLUGIN / file).read_text(encoding="utf-8"))
        assert any(ast.unparse(node) == code for node in ast.walk(tree) if isinstance(node, ast.expr)), (
            file,
            code,
        )
