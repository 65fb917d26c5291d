"""``python -m benchmarks gpu pack``: the calls, and parts that are joined and checked file by file."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import join, pack
from benchmarks.gpu.calls import Call, Calls, Load, Sizes, digest, prepare, recorded
from benchmarks.gpu.example import example

SIZES = Sizes((Load("past", 4, 20, is_past=True), Load("2", 2, 20)), most_prompt=8, most_response=6)
CORE = join.CORE


def encode(text: str) -> Any:
    return np.array([1_000_000 + len(word) for word in text.split()], np.int32)


def write_traces(folder: Path, **files: list[dict[str, str]]) -> None:
    for name, records in files.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


def records(
    session: str, task: str = "", responses: tuple[str, ...] = ("a bb ccc", "a")
) -> list[dict[str, str]]:
    return [
        {"stage": "x/y", "session": session, "task": task or session, "prompt": "to be", "response": one}
        for one in responses
    ]


def many(name: str) -> list[dict[str, str]]:
    return [one for number in range(12) for one in records(f"{name}{number}")]


def prepared(folder: Path) -> Calls:
    write_traces(folder, agents=many("a"), tools=many("b"), spec_bench_x=many("c"))
    return prepare(recorded(folder), SIZES, encode, lambda text: None)


def test_calls_of_whole_sessions_in_turn(tmp_path: Path) -> None:
    calls = prepared(tmp_path)
    assert calls.num_ids == 3 + 1  # three lengths of words, and the end
    for load in SIZES.loads:
        sessions = [[calls.calls[number] for number in session] for session in calls.sessions[load.name]]
        assert sum(len(call.response) for session in sessions for call in session) >= 20
        for session in sessions:
            assert len({call.session for call in session}) == 1
            assert [call.response.tolist() for call in session] == [[0, 1, 2, 3], [0, 3]]
            assert [call.prompt.tolist() for call in session] == [[1, 1], [1, 1]]
        names = [session[0].stage for session in sessions]
        assert names == [["agents/x-y", "tools/x-y"][number % 2] for number in range(len(names))]
    past, live = (
        {calls.calls[number].session for session in calls.sessions[name] for number in session}
        for name in ("past", "2")
    )
    assert past.isdisjoint(live)


def test_only_the_first_trial_of_a_task(tmp_path: Path) -> None:
    trials = [one for task in range(30) for trial in "ab" for one in records(f"{task}{trial}", f"t{task}")]
    write_traces(tmp_path, tau_bench_z=trials)
    calls = prepare(recorded(tmp_path), SIZES, encode, lambda text: None)
    assert {call.session[-1] for call in calls.calls} == {"a"}


def test_long_and_empty_calls_are_left_out(tmp_path: Path) -> None:
    fitting = "a bb"
    write_traces(
        tmp_path,
        agents=[
            one for n in range(60) for one in records(f"s{n}", responses=("", "a " * 9, fitting, "a " * 99))
        ],
    )
    calls = prepare(recorded(tmp_path), SIZES, encode, lambda text: None)
    assert {len(call.response) for call in calls.calls} == {2 + 1}


def test_the_example_has_calls_for_everyone() -> None:
    calls = prepare(example, Sizes(SIZES.loads, 2_000, 500), encode, lambda text: None)
    assert all(call.stage.startswith("agentic_sql/") for call in calls.calls)
    names = [{calls.calls[one[0]].session for one in sessions} for sessions in calls.sessions.values()]
    assert names[0].isdisjoint(names[1])


def test_calls_are_read_as_they_were_written(tmp_path: Path) -> None:
    calls = prepared(tmp_path)
    calls.save(tmp_path / "calls.xz")
    again = Calls.load(tmp_path / "calls.xz")
    assert (again.sessions, again.sizes, again.num_ids) == (calls.sessions, calls.sizes, calls.num_ids)
    assert again.longest == calls.longest == 2 + 4
    for one, other in zip(again.calls, calls.calls, strict=True):
        assert (one.stage, one.session) == (other.stage, other.session)
        assert one.prompt.tolist() == other.prompt.tolist()
        assert one.response.tolist() == other.response.tolist()
    tokens, starts = again.flat()
    assert tokens[starts[1] : starts[2]].tolist() == [1, 1, 0, 3]
    assert digest(tmp_path / "calls.xz") == join.file_sha256(tmp_path / "calls.xz")


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a pack of two made-up wheels, in parts of 2,000 bytes."""
    wheels = [
        wheel(
            tmp_path / "vllm-0.26.0-py3-none-any.whl",
            {
                "vllm/__init__.py": b"version = 26\n",
                "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": bytes(9_000),
                "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": b"needed",
                "vllm/_moe_C_stable_libtorch.abi3.so": b"left out",
                "vllm/vllm-rs": b"left out",
                "vllm-0.26.0.data/purelib/vllm/more.py": b"more = 1\n",
                "vllm-0.26.0.data/scripts/vllm": b"left out",
            },
        )
    ]
    core = wheel(tmp_path / "agentspec.whl", {CORE: b"\x7fELF", "agentspec/__init__.py": b""})
    monkeypatch.setattr(pack, "download", lambda target, folder: list(wheels))
    monkeypatch.setattr(pack, "build", lambda folder: core)
    call = Call("a/b", "s", np.array([1], np.int32), np.array([2, 3], np.int32))
    target = pack.Target("0.26.0", "3.12", tmp_path / "wheels.txt")
    calls = Calls([call], {"past": [], "2": [[0]]}, SIZES, 4)
    found = pack.pack(target, calls, tmp_path / "parts", 2_000, lambda text: None)
    assert len(found.part_bytes) > 10
    assert max(found.part_bytes) == 2_000
    return tmp_path / "parts"


def joined(parts: Path, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(parts / "join.py"), "--to", str(to)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_pack_is_joined_without_the_project(packed: Path, tmp_path: Path) -> None:
    done = joined(packed, tmp_path / "to")
    assert (done.returncode, done.stderr) == (0, "")
    files = json.loads((packed / join.MANIFEST).read_text())["files"]
    found = {
        one.relative_to(tmp_path / "to").as_posix() for one in (tmp_path / "to").rglob("*") if one.is_file()
    }
    assert found == set(files)
    assert {name for name in found if name.startswith("vllm/")} == {
        "vllm/__init__.py",
        "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
        "vllm/more.py",
    }
    assert {"benchmarks/gpu/join.py", "native/CMakeLists.txt", pack.CALLS} < found
    assert Calls.load(tmp_path / "to" / pack.CALLS).calls[0].response.tolist() == [2, 3]
    assert f"{len(files)} files in {tmp_path / 'to'}" in done.stdout


def test_the_same_files_give_the_same_parts(packed: Path, tmp_path: Path) -> None:
    archive = tmp_path / "pack"
    for _ in range(2):
        digests = pack.write(archive, [], [("a", packed / "join.py")])
        assert digests == {"a": join.file_sha256(packed / "join.py")}
        assert len(pack.split(archive, tmp_path, 1_000)) > 1
    assert pack.split(archive, tmp_path, 1_000) == pack.split(archive, tmp_path, 1_000)


def test_a_damaged_part_is_named(packed: Path, tmp_path: Path) -> None:
    part = packed / "pack.01"
    part.write_bytes(b"x" + part.read_bytes()[1:])
    done = joined(packed, tmp_path / "to")
    assert (done.returncode, "pack.01' is damaged: copy it again" in done.stderr) == (1, True)


def _calls_of(packed: Path, tmp_path: Path) -> Path:
    joined(packed, tmp_path / "whole")
    return tmp_path / "whole" / pack.CALLS
