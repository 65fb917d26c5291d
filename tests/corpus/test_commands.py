"""``agentspec corpus`` on stores of both kinds, as the command line runs it."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.prompt import Confirm

from agentspec.cli import main
from agentspec.corpus.batch import Batch, ForgetStage, Output
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.encryption import KeyRing
from agentspec.corpus.snapshots import SnapshotWriter
from agentspec.corpus.store import START, Scope, open_store
from agentspec.stages import StageKey
from agentspec.tags import subject_hash
from agentspec.vllm_plugin.lora import adapted
from tests.corpus.support.replica import Replica, output, stored

VOCABULARY = "tekken-v3"
KEY = bytes(range(32))
KEY_VARIABLE = "AGENTSPEC_CORPUS_KEY"
NOW = 29_000_000  # a minute


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in (KEY_VARIABLE, "AGENTSPEC_ENGINE__CORPUS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def with_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, base64.b64encode(KEY).decode())


class Engine:
    """Publishes batches as one engine process does."""

    def __init__(
        self,
        location: str,
        *,
        key: bytes | None = None,
        vocabulary: str = VOCABULARY,
    ) -> None:
        self.store = open_store(location)
        self.log = BatchLog(self.store, vocabulary, KeyRing(self.store, key) if key else None)
        self._numbers: dict[str, int] = {}

    def publish(self, *records: Any, tenant: str = "acme", origin: bytes = b"a" * 16) -> None:
        first = self._numbers.get(tenant, 0)
        self._numbers[tenant] = first + len(records)
        batch = Batch(origin, first, records)
        assert self.store.publish(self.log.scope(tenant), self.log.encode(tenant, batch))

    def write_snapshot(self, tenant: str = "acme") -> None:
        assert SnapshotWriter(self.log, "engine", most_age_s=1e12).write(tenant)

    def held(self, tenant: str = "acme") -> dict[tuple[str, tuple[int, ...]], int]:
        records = [record for batch in stored(self.log, tenant) for record in batch.records]
        return {
            (record.stage.name, tuple(record.tokens.tolist())): record.uses
            for record in records
            if isinstance(record, Output)
        }


@pytest.fixture
def engine(location: str):
    engine = Engine(location)
    with closing(engine.store):
        yield engine


def corpus(action: str, location: str, *arguments: str | Path) -> int:
    return main(["corpus", action, *map(str, arguments), "--corpus", location])


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def figures(location: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert corpus("stats", location, "--json", *arguments) == 0
    scopes: list[dict[str, Any]] = json.loads(shown(capsys))["scopes"]
    return scopes


def fill(engine: Engine) -> None:
    """Publish three outputs of two stages, two of them twice, and write a snapshot in between."""
    one, two = output([1, 2, 3], "sql/extract"), output([4, 5], "plan", subject=b"p" * 16)
    engine.publish(one, two)
    engine.publish(one, one)
    engine.write_snapshot()
    engine.publish(output([4, 5], "plan", subject=b"p" * 16), output([7] * 9, "sql/extract"))


# ---- stats ----


def without_ages(found: Any) -> Any:
    """Return figures without those that grow by the second."""
    if isinstance(found, list):
        return [without_ages(one) for one in found]
    if isinstance(found, dict):
        ages = {"log_age_s", "snapshot_age_s", "oldest_s", "newest_s"}
        return {key: without_ages(one) for key, one in found.items() if key not in ages}
    return found


def test_stats_count_each_output_once(engine, location, capsys):
    fill(engine)
    engine.publish(output([1], tenant="globex"), tenant="globex", origin=b"b" * 16)
    acme, globex = figures(location, capsys)
    assert (acme["tenant"], acme["vocabulary"], acme["is_encrypted"]) == ("acme", VOCABULARY, False)
    assert (acme["num_outputs"], acme["num_tokens"], acme["num_log_batches"]) == (3, 14, 3)
    assert (acme["num_damaged"], acme["erasure_age_s"], acme["num_tombstones"]) == (0, None, 0)
    assert acme["num_snapshot_bytes"] > 0
    assert acme["snapshot_age_s"] < 3600
    stages = {stage["stage"]: stage for stage in acme["stages"]}
    assert {name: (one["num_outputs"], one["num_uses"]) for name, one in stages.items()} == {
        "sql/extract": (2, 4),
        "plan": (1, 2),
    }
    assert globex["snapshot_age_s"] is None
    assert without_ages(figures(location, capsys, "--tenant", "globex")) == without_ages([globex])


def test_stats_fit_a_terminal(engine, location, capsys):
    long = "workflow_" + "x" * 120 + "/last_step"
    engine.publish(*(output([n], long) for n in range(1200)), output([1] * 5000, "plan"))
    assert corpus("stats", location) == 0
    lines = shown(capsys).splitlines()
    assert max(map(len, lines)) <= 80
    assert "1,200" in lines[-2] + lines[-1]
    assert any(line.startswith("plan ") for line in lines)


def test_stats_say_what_was_erased(engine, location, capsys):
    engine.store.erase(engine.log.scope("acme"))
    fill(engine)
    assert corpus("forget", location, "--tenant", "acme", "--stage", "plan", "--yes") == 0
    (acme,) = figures(location, capsys)
    assert (0 <= acme["erasure_age_s"] < 1000, acme["num_outputs"]) == (True, 2)
    assert corpus("stats", location) == 0
    assert re.search(r"  erased    as a whole .* ago, stages or persons \d+ time", shown(capsys))
    assert acme["num_tombstones"] >= 1
    assert [stage["stage"] for stage in acme["stages"]] == ["sql/extract"]


def test_an_empty_corpus(engine, location, capsys):
    assert corpus("stats", location) == 0
    assert "holds no outputs yet" in shown(capsys)


@pytest.mark.parametrize("action", ["stats", "forget"])
def test_a_folder_without_a_corpus_stays_without(action, tmp_path, capsys):
    arguments = ["--tenant", "acme"] if action == "forget" else []
    assert corpus(action, str(tmp_path / "none"), *arguments) == 1
    assert "there is no corpus in" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_place_is_named_once(engine, location, monkeypatch, capsys):
    assert main(["corpus", "stats"]) == 1
    assert "--corpus PLACE, or $AGENTSPEC_ENGINE__CORPUS" in capsys.readouterr().err
    monkeypatch.setenv("AGENTSPEC_ENGINE__CORPUS", location)
    assert main(["corpus", "stats"]) == 0


def test_an_unknown_tenant_is_an_error_that_names_the_known(engine, location, tmp_path, capsys):
    fill(engine)
    for action in (["stats"], ["export", tmp_path / "file"], ["forget", "--yes"]):
        assert corpus(action[0], location, *action[1:], "--tenant", "acne") == 1
        assert "'acne' has no outputs" in (said := capsys.readouterr().err)
        assert said.rstrip().endswith("acme")
    assert list(tmp_path.glob("file*")) == []


# ---- export and import ----


def test_outputs_move_to_another_store(engine, location, tmp_path, redis_url, capsys):
    fill(engine)
    before = engine.held()
    folder = tmp_path / "warm"
    assert corpus("export", location, folder) == 0
    assert "exported 3 outputs, 14 tokens, of 1 tenant" in shown(capsys)
    assert (folder / "corpus.sqlite").stat().st_mode & 0o777 == 0o600
    other = str(tmp_path / "other") if location.startswith("redis") else f"{redis_url[:-1]}1"
    assert corpus("import", other, folder, "--json") == 0
    assert json.loads(shown(capsys))["num_outputs"] == 3
    moved = Engine(other)
    with closing(moved.store):
        held = moved.held()
        assert held.keys() == before.keys()
        assert (held["sql/extract", (1, 2, 3)], held["plan", (4, 5)]) == (3, 2)
        subjects = {one.subject for batch in stored(moved.log, "acme") for one in batch.outputs}
    assert subjects == {b"", b"p" * 16}
    assert without_ages(figures(location, capsys)[0]["stages"]) == without_ages(
        figures(other, capsys)[0]["stages"]
    )


def test_an_engine_learns_what_was_imported(engine, location, tmp_path):
    fill(engine)
    assert corpus("export", location, tmp_path / "warm") == 0
    other = str(tmp_path / "other")
    with closing(open_store(other)) as store:
        replica = Replica(store)
        replica.log._vocabulary = VOCABULARY
        assert corpus("import", other, tmp_path / "warm") == 0
        replica.learn()
        assert replica.held() == {
            ("sql/extract", (1, 2, 3)): 3,
            ("plan", (4, 5)): 2,
            ("sql/extract", (7,) * 9): 1,
        }


def test_a_part_of_the_outputs(engine, location, tmp_path, capsys):
    fill(engine)
    engine.publish(output([1], "sql/check", tenant="globex"), tenant="globex")
    for arguments, num_outputs in (
        (["--tenant", "acme"], 3),
        (["--stage", "sql"], 3),
        (["--tenant", "globex", "--stage", "sql/check"], 1),
    ):
        folder = tmp_path / "-".join(arguments).replace("/", "_")
        assert corpus("export", location, folder, "--json", *arguments) == 0
        assert json.loads(shown(capsys))["num_outputs"] == num_outputs
    before = sorted(tmp_path.iterdir())
    assert corpus("export", location, tmp_path / "none", "--stage", "nowhere") == 1
    assert "holds no such outputs" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_another_vocabulary_is_refused_unless_it_is_named(engine, location, tmp_path, capsys):
    other = Engine(str(tmp_path / "other"), vocabulary="llama-3")
    other.publish(output([1]))
    other.store.close()
    fill(engine)
    folder = tmp_path / "export"
    assert corpus("export", str(tmp_path / "other"), folder) == 0
    before = engine.store.stats()
    assert corpus("import", location, folder) == 1
    assert "'llama-3', but the corpus those of 'tekken-v3'" in capsys.readouterr().err
    assert engine.store.stats() == before
    assert corpus("import", location, folder, "--vocabulary", "llama-3") == 0
    assert {scope.vocabulary for scope in engine.store.stats()} == {"llama-3", "tekken-v3"}


@pytest.mark.parametrize("damage", ["cut off", "changed", "gone", "another file"])
def test_a_damaged_export_changes_nothing(engine, location, tmp_path, damage, capsys):
    engine.publish(*(output(np.random.default_rng(n).integers(0, 1 << 30, 200)) for n in range(50)))
    folder = tmp_path / "export"
    assert corpus("export", location, folder) == 0
    file = folder / "corpus.sqlite"
    whole = file.read_bytes()
    at = whole.index(b"AgSpecBt") + 100  # in a batch
    changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    found = {"cut off": whole[: len(whole) // 2], "changed": changed, "gone": b"", "another file": b"mine"}
    file.write_bytes(found[damage])
    before = engine.store.stats()
    for place in (location, str(tmp_path / "new")):
        assert corpus("import", place, folder) == 1
        assert "error: " in capsys.readouterr().err
    assert engine.store.stats() == before
    assert not (tmp_path / "new").exists()


def test_a_folder_is_never_overwritten(engine, location, tmp_path, capsys):
    fill(engine)
    folder = tmp_path / "mine"
    folder.mkdir()
    assert corpus("export", location, folder) == 1
    assert "is there already" in capsys.readouterr().err
    assert list(folder.iterdir()) == []
    assert corpus("import", location, folder) == 1
    assert corpus("import", location, tmp_path / "gone") == 1
    (tmp_path / "file").touch()
    assert corpus("export", location, tmp_path / "file" / "folder") == 1
    assert "Not a directory" in capsys.readouterr().err


# ---- keys ----


def test_an_encrypted_corpus_needs_its_key(location, tmp_path, monkeypatch, with_key, capsys):
    engine = Engine(location, key=KEY)
    with closing(engine.store):
        fill(engine)
        folder, copy = tmp_path / "folder", str(tmp_path / "copy")
        (acme,) = figures(location, capsys)
        assert (acme["is_encrypted"], acme["num_outputs"]) == (True, 3)
        assert corpus("export", location, folder) == 0
        assert figures(str(folder), capsys)[0]["is_encrypted"]
        assert np.array([7] * 9, "<i4").tobytes() not in (folder / "corpus.sqlite").read_bytes()
        assert corpus("import", copy, folder) == 0
        assert figures(copy, capsys)[0]["is_encrypted"]
        monkeypatch.delenv(KEY_VARIABLE)
        for command in (["stats"], ["export", tmp_path / "two"], ["import", folder]):
            assert corpus(command[0], location, *command[1:]) == 1
            assert "encrypted: set $AGENTSPEC_CORPUS_KEY" in capsys.readouterr().err
        monkeypatch.setenv(KEY_VARIABLE, bytes(32).hex())
        for command in (["stats"], ["export", tmp_path / "two"], ["import", folder]):
            assert corpus(command[0], location, *command[1:]) == 1
            assert "operator's key" in capsys.readouterr().err
        monkeypatch.setenv(KEY_VARIABLE, "no key")
        assert corpus("stats", location) == 1
        assert "$AGENTSPEC_CORPUS_KEY holds no key" in capsys.readouterr().err


def test_a_corpus_without_encryption_stays_so(engine, location, tmp_path, with_key):
    fill(engine)
    assert corpus("export", location, tmp_path / "folder") == 0
    assert corpus("import", location, tmp_path / "folder") == 0
    assert engine.store.wrapped_key(engine.log.scope("acme")) is None
    assert len(engine.held()) == 3


def test_reading_makes_no_key(engine, location, with_key):
    fill(engine)
    assert corpus("stats", location) == 0
    assert engine.store.wrapped_key(engine.log.scope("acme")) is None


def test_a_tenant_is_forgotten_without_its_key(location, monkeypatch, capsys):
    engine = Engine(location, key=KEY)
    with closing(engine.store):
        fill(engine)
        assert corpus("forget", location, "--tenant", "acme", "--stage", "plan", "--yes") == 1
        assert "encrypted" in capsys.readouterr().err
        assert corpus("forget", location, "--tenant", "acme", "--yes") == 0
        assert engine.store.stats() == {}
        assert engine.store.wrapped_key(engine.log.scope("acme")) is None


# ---- forget ----


def test_a_stage_is_forgotten_in_store_and_engines(engine, location, capsys):
    replica = Replica(engine.store)
    replica.log._vocabulary = VOCABULARY
    fill(engine)
    replica.learn()
    assert len(replica.held()) == 3
    assert corpus("forget", location, "--tenant", "acme", "--stage", "sql", "--yes") == 0
    assert "erased 2 outputs (12 tokens) of stage 'sql' of tenant 'acme'" in shown(capsys)
    assert set(engine.held()) == {("plan", (4, 5))}
    replica.learn()
    assert set(replica.held()) == {("plan", (4, 5))}


def test_a_person_is_forgotten(engine, location, capsys):
    person = subject_hash("acme", "jane@example.org")
    replica = Replica(engine.store)
    replica.log._vocabulary = VOCABULARY
    engine.publish(output([1], subject=person), output([2], subject=b"x" * 16), output([3]))
    engine.write_snapshot()
    replica.learn()
    arguments = ["--tenant", "acme", "--subject", "jane@example.org", "--yes"]
    assert corpus("forget", location, *arguments, "--json") == 0
    (erased,) = json.loads(shown(capsys))["erased"]
    assert (erased["num_outputs"], erased["num_tokens"]) == (1, 1)
    assert {tokens for _, tokens in engine.held()} == {(2,), (3,)}
    replica.learn()
    assert {tokens for _, tokens in replica.held()} == {(2,), (3,)}
    assert corpus("forget", location, *arguments) == 0
    assert "erased 0 outputs" in shown(capsys)


def test_a_tenant_is_forgotten_with_its_adapters_and_vocabularies(engine, location):
    adapter = adapted(StageKey.parse("plan", "acme"), "lora").tenant
    engine.publish(output([1]))
    engine.publish(output([2], tenant=adapter), tenant=adapter)
    engine.publish(output([3], tenant="acme2"), tenant="acme2")
    other = Engine(location, vocabulary="llama-3")
    other.publish(output([4]))
    other.store.close()
    assert corpus("forget", location, "--tenant", "acme", "--yes") == 0
    assert set(engine.store.stats()) == {Scope(VOCABULARY, "acme2")}
    assert engine.store.marks(Scope(VOCABULARY, adapter)).epoch > 0
    assert engine.store.marks(Scope("llama-3", "acme")).epoch > 0


def test_a_stage_without_a_workflow_is_forgotten_for_vllm_too(engine, location, capsys):
    stage = adapted(StageKey.parse("plan", "acme"), None)
    engine.publish(output([1], stage.name), output([2], "plan"), output([3], "planning"))
    assert {one["stage"] for one in figures(location, capsys)[0]["stages"]} == {"plan", "planning"}
    assert corpus("forget", location, "--tenant", "acme", "--stage", "plan", "--yes") == 0
    assert set(engine.held()) == {("planning", (3,))}


def test_a_tenant_is_forgotten_though_its_log_is_empty(engine, location):
    scope = engine.log.scope("acme")
    engine.publish(output([1]))
    engine.store.rewrite(scope, [(engine.store.end(scope), None)])
    assert engine.store.stats() == {}
    assert corpus("forget", location, "--tenant", "acme", "--yes") == 0
    assert engine.store.marks(scope).epoch > 0


def test_a_tenant_that_the_store_no_longer_knows_needs_its_vocabulary(engine, location):
    assert corpus("forget", location, "--tenant", "acme", "--yes") == 1
    assert corpus("forget", location, "--tenant", "acme", "--yes", "--vocabulary", VOCABULARY) == 0
    assert engine.store.marks(engine.log.scope("acme")).epoch > 0


def test_nothing_is_forgotten_unless_it_is_confirmed(engine, location, monkeypatch, capsys):
    fill(engine)
    arguments = ["--tenant", "acme", "--stage", "plan"]
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert corpus("forget", location, *arguments) == 1
    assert "--yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked: list[str] = []
    for answer, status in ((False, 1), (True, 0)):
        monkeypatch.setattr(
            Confirm, "ask", lambda text, answer=answer, **_: [asked.append(str(text)), answer][1]
        )
        assert len(engine.held()) == 3
        assert corpus("forget", location, *arguments) == status
    assert len(engine.held()) == 2
    assert "Erase 1 output (2 tokens) of stage 'plan' of tenant 'acme'" in asked[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tenant", "acme", "--stage", "a", "--subject", "b"], "not both"),
        (["--tenant", "acme", "--stage", "a//b"], "bad stage segment"),
        (["--tenant", "ac me"], "'ac me'"),
        (["--tenant", "acme", "--subject", ""], "not empty"),
    ],
)
def test_an_erasure_that_cannot_be(engine, location, arguments, said, capsys):
    fill(engine)
    assert corpus("forget", location, *arguments, "--yes") == 1
    assert said in capsys.readouterr().err
    assert len(engine.held()) == 3


def test_an_erasure_keeps_what_engines_keep(engine, location):
    """The command drops nothing that the engines' own retention keeps."""
    large = [output(np.random.default_rng(n).integers(0, 1 << 30, 100_000)) for n in range(4)]
    for one in large:
        engine.publish(one)
    engine.publish(output([1], "plan/b"))
    assert corpus("forget", location, "--tenant", "acme", "--stage", "plan/b", "--yes") == 0
    assert len(engine.held()) == 4


# ---- damage ----


def test_stats_and_export_count_what_is_damaged(engine, location, tmp_path, capsys):
    fill(engine)
    scope = engine.log.scope("acme")
    entries = engine.store.read(scope, START, 1 << 30)
    damaged = bytearray(entries[0].batch)
    damaged[-1] ^= 1
    engine.store.publish(scope, bytes(damaged))
    fence = engine.store.lease(scope, "engine", 60.0)
    assert engine.store.put_snapshot(scope, fence, "0", [entries[0].batch, b"noise"])
    before = engine.store.read(scope, START, 1 << 30)
    (acme,) = figures(location, capsys)
    assert (acme["num_damaged"], acme["num_outputs"]) == (2, 3)
    assert corpus("stats", location) == 0
    assert "  damaged   2 batches, which engines ignore" in shown(capsys)
    assert corpus("export", location, tmp_path / "folder") == 0
    assert "2 batches can't be read and were left out" in shown(capsys)
    assert engine.store.read(scope, START, 1 << 30) == before


def test_a_damaged_file_is_reported_and_stays(tmp_path, capsys):
    folder = tmp_path / "corpus"
    engine = Engine(str(folder))
    for _ in range(40):
        engine.publish(output(np.random.default_rng(1).integers(0, 1 << 30, 2000)))
    engine.store.close()
    file = folder / "corpus.sqlite"
    whole = file.read_bytes()
    with closing(sqlite3.connect(file)) as connection:
        (page_size,) = connection.execute("pragma page_size").fetchone()
    for begin, end in ((0, 100), (10 * page_size, 30 * page_size)):
        damaged = whole[:begin] + b"\xff" * (end - begin) + whole[end:]
        file.write_bytes(damaged)
        for action in (["stats"], ["forget", "--tenant", "acme", "--yes"]):
            if action[0] != "forget" or begin == 0:
                assert corpus(action[0], str(folder), *action[1:]) == 1
        said = capsys.readouterr()
        assert "corpus" in said.out + said.err
        assert file.read_bytes() == damaged
        assert list(folder.glob("*.damaged-*")) == []


def test_a_file_of_another_program_is_refused(tmp_path, capsys):
    with closing(sqlite3.connect(tmp_path / "corpus.sqlite")) as other:
        other.execute("create table mine (x)")
        other.commit()
    assert corpus("stats", str(tmp_path)) == 1
    assert "is no corpus and stays as it is" in capsys.readouterr().err


def test_a_server_that_is_away(capsys):
    assert corpus("stats", "redis://user:secret@127.0.0.1:1/0") == 1
    said = capsys.readouterr().err
    assert "redis://user@127.0.0.1:1/0 can't be used now" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("redis://h/0?nonsense=1", "the option 'nonsense'"),
        ("redis://h/0?decode_responses=1", "the option 'decode_responses'"),
        ("redis://h/0?protocol=3", "the option 'protocol'"),
        ("redis://h/0?socket_timeout=60", "the option 'socket_timeout'"),
        ("redis://h/0?db=SECRET", "options is out of range"),
        ("redis://h/0?ssl_ca_certs=x", "options is out of range"),
        ("rediss://h/0?ssl_cert_reqs=SECRET", "options is out of range"),
        ("redis://u:SECRET@h:port/0", "is no URL of a Redis server"),
        ("redis://u:SEC/RET:SECRET@h/0", "is no URL of a Redis server"),
        ("redis://h/0?password=SECRET&x=SECRET", "the option 'x'"),
        ("redis:u:SECRET@h", "is no place for a corpus"),
        ("s3://SECRET@bucket", "is no place for a corpus"),
        ("http://SECRET", "is no place for a corpus"),
    ],
)
@pytest.mark.parametrize("action", ["stats", "forget"])
def test_a_place_that_is_none_is_an_error_without_its_secrets(action, place, named, tmp_path, capsys):
    arguments = ["--tenant", "acme", "--yes"] if action == "forget" else []
    assert corpus(action, place, *arguments) == 1
    said = "".join(capsys.readouterr())
    assert named in said
    assert "SECRET" not in said.replace("http://SECRET", "")
    assert "Traceback" not in said


def test_one_tenant_with_a_key_that_no_one_has_stops_no_other(engine, location, capsys):
    fill(engine)
    engine.publish(output([1], tenant="globex"), tenant="globex")
    engine.store.wrapped_key(engine.log.scope("globex"), b"noise")
    assert corpus("stats", location) == 1
    assert "'globex' are encrypted" in capsys.readouterr().err
    assert corpus("stats", location, "--tenant", "acme") == 0
    assert corpus("forget", location, "--tenant", "acme", "--stage", "sql", "--yes") == 0
    assert corpus("forget", location, "--tenant", "globex", "--yes") == 0


def test_tombstones_of_engines_are_honoured(engine, location, tmp_path, capsys):
    engine.publish(output([1], "a"), output([2], "b"))
    engine.publish(ForgetStage(("a",)))  # the eraser died here: the log still has the output
    engine.publish(output([3], "a"))
    assert corpus("export", location, tmp_path / "folder", "--json") == 0
    assert json.loads(shown(capsys))["num_outputs"] == 2
