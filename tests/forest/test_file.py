"""A forest saved to and loaded from a file: equal drafts, isolation and budgets, and no partial file."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec import Draft, DraftConfig, Forest, ForestConfig, Source, StageKey
from agentspec._native import MODEL_BYTES, ForestCore
from agentspec.errors import ConfigError, ForestFileError
from agentspec.forest.file import ForestWriter, SavedForest, SavedModel, SavedOutputs, writing

VOCABULARY = "tekken"
EXTRACT = StageKey("t", ("sql", "extract"))
COMBINE = StageKey("t", ("sql", "combine"))
OTHER = StageKey("u", ("sql", "extract"))
LEARNED = DraftConfig(rule="learned", min_prob=0.02)
RULES = (DraftConfig(), DraftConfig("tree", doubt=1.0), LEARNED, DraftConfig("tree", rule="learned"))


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def text(seed: int, length: int, vocabulary: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocabulary, length).astype(np.int32)


def shown(draft: Draft) -> tuple[object, ...]:
    arrays = (draft.token_ids.tolist(), draft.parents.tolist(), draft.probs.tolist())
    return *arrays, draft.score, draft.match_length, draft.source


def save(forest: Forest, path: Path) -> SavedForest:
    return forest.save(path, vocabulary=VOCABULARY)


def load(path: Path, config: ForestConfig | None = None) -> Forest:
    forest = Forest(config)
    forest.load(path, vocabulary=VOCABULARY)
    return forest


def drafts_for(forest: Forest, stage: StageKey, context: np.ndarray) -> list[int]:
    """Return the draft for a request that has just produced this context."""
    forest.start("reader", stage, ids(), learn=False)
    (draft,) = forest.step([("reader", context)])
    forest.finish("reader", learn=False)
    return draft.token_ids.tolist()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "forest"


# ---- round trip ----


class Traffic:
    """Random requests of several tenants, one after another, with all drafting rules."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.phrases = [text(seed + i, self.rng.randint(1, 9), 30) for i in range(12)]

    def output(self) -> np.ndarray:
        """Return phrases in random order. Some outputs are equal."""
        return np.concatenate(
            self.rng.choices(self.phrases[: self.rng.randint(1, 12)], k=self.rng.randint(1, 6))
        )

    def stage(self) -> StageKey:
        return StageKey(self.rng.choice("tu"), tuple(self.rng.choices("ab", k=self.rng.randint(1, 3))))

    def serve(self, forests: list[Forest], number: int) -> None:
        """Serve some requests in each of the forests. Their drafts must be equal."""
        for i in range(number):
            stage, prompt, output = self.stage(), self.output(), self.output()
            for forest in forests:
                forest.start("r", stage, prompt, draft=RULES[i % len(RULES)], learn=i % 5 != 0)
            for begin in range(0, len(output), 3):
                drafts = [forest.step([("r", output[begin : begin + 3])])[0] for forest in forests]
                assert all(shown(draft) == shown(drafts[0]) for draft in drafts)
            for forest in forests:
                forest.finish("r")


@pytest.mark.parametrize("seed", range(6))
def test_a_loaded_forest_drafts_as_the_one_that_was_saved(path, seed):
    traffic, forest = Traffic(seed), Forest(ForestConfig(depth=6 + seed))
    traffic.serve([forest], 80)
    saved = save(forest, path)
    loaded = load(path, forest.config)
    assert saved.num_trees > 10
    assert saved.num_bytes == path.stat().st_size
    assert (loaded.stats().num_sequences, loaded.stats().num_tokens) == (saved.num_outputs, saved.num_tokens)
    traffic.serve([forest, loaded], 80)
    loaded.check_integrity()
    again = path.with_name("again")
    assert save(loaded, again) == save(forest, path)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), max_size=12))
@settings(max_examples=60)
def test_any_outputs_come_back_with_their_counts_and_ages(tmp_path_factory, outputs):
    path = tmp_path_factory.getbasetemp() / "outputs"
    forest = Forest(ForestConfig(sources=(Source.STAGE,)))
    for output in outputs:
        forest.learn(EXTRACT, ids(*output))
    expected = SavedForest(bool(outputs), len(outputs), sum(map(len, outputs)))
    saved = save(forest, path)
    assert (saved.num_trees, saved.num_outputs, saved.num_tokens) == (
        expected.num_trees,
        expected.num_outputs,
        expected.num_tokens,
    )
    before = path.read_bytes()
    loaded = load(path, forest.config)
    loaded.check_integrity()
    save(loaded, path)
    assert path.read_bytes() == before
    for context in ((0,), (1, 2), (3, 3, 0)):
        assert drafts_for(loaded, EXTRACT, ids(*context)) == drafts_for(forest, EXTRACT, ids(*context))


def test_an_output_that_occurs_very_often_takes_its_place_once(path):
    forest = Forest(ForestConfig(sources=(Source.STAGE,)))
    for _ in range(70_000):  # more than one text can represent
        forest.learn(EXTRACT, ids(1, 2, 3))
    assert save(forest, path).num_outputs == 70_000
    assert path.stat().st_size < 500
    loaded = load(path)
    assert loaded.stats(EXTRACT).num_sequences == 70_000
    assert drafts_for(loaded, EXTRACT, ids(1, 2)) == [3]


def test_an_output_longer_than_any_piece_comes_back(path):
    forest = Forest()
    output = text(0, 50_000)
    forest.learn(EXTRACT, output)
    save(forest, path)
    assert drafts_for(load(path), EXTRACT, output[-10:-5]) == output[-5:].tolist()


def test_tenants_stay_apart(path):
    forest = Forest()
    forest.learn(EXTRACT, ids(1, 2, 3))
    forest.learn(OTHER, ids(1, 2, 4))
    save(forest, path)
    loaded = load(path)
    assert drafts_for(loaded, EXTRACT, ids(1, 2)) == [3]
    assert drafts_for(loaded, OTHER, ids(1, 2)) == [4]
    assert drafts_for(loaded, StageKey("new", EXTRACT.path), ids(1, 2)) == []


def test_running_outputs_and_sessions_are_not_saved(path):
    forest = Forest()
    forest.start("done", EXTRACT, ids(), session="s")
    forest.observe("done", ids(1, 2, 3))
    forest.finish("done")
    forest.start("running", EXTRACT, ids(), session="s")
    forest.observe("running", ids(4, 5))
    assert save(forest, path) == SavedForest(3, 3, 9, path.stat().st_size)  # stage, workflow, tenant


# ---- into a forest that has learned ----


def test_what_is_loaded_adds_to_what_is_there(path):
    forest = Forest()
    forest.learn(EXTRACT, ids(1, 2, 3))
    save(forest, path)
    forest.learn(EXTRACT, ids(5, 6, 7))
    assert forest.load(path, vocabulary=VOCABULARY) == SavedForest(3, 3, 9, path.stat().st_size)
    assert forest.stats(EXTRACT).num_sequences == 3
    assert drafts_for(forest, EXTRACT, ids(5, 6)) == [7]


def teach(forest: Forest, stage: StageKey, is_right: bool) -> None:
    """Run a request that continues 1, 2 with 3 if ``is_right``, else with other tokens."""
    forest.start("pupil", stage, ids(1, 2, 3), draft=LEARNED)
    for i in range(100):
        forest.step([("pupil", ids(1, 2))])
        forest.observe("pupil", ids(3 if is_right else 50 + i))
    forest.finish("pupil", learn=False)


def score(forest: Forest, stage: StageKey) -> float:
    forest.start("examined", stage, ids(1, 2, 3, 1, 2), draft=LEARNED)
    draft = forest.draft("examined")
    forest.finish("examined", learn=False)
    return draft.score


def test_a_model_that_is_there_stays_as_it_is(path):
    forest = Forest()
    teach(forest, EXTRACT, is_right=False)
    teach(forest, COMBINE, is_right=True)
    save(forest, path)
    scores = score(forest, EXTRACT), score(forest, COMBINE)
    assert scores[0] < scores[1]
    other = Forest()
    teach(other, EXTRACT, is_right=True)
    own = score(other, EXTRACT)
    other.load(path, vocabulary=VOCABULARY)
    assert (score(other, EXTRACT), score(other, COMBINE)) == (own, scores[1])
    other.check_integrity()


def test_models_find_a_place_within_their_share_the_ones_used_last_first(path):
    forest = Forest()
    for i in range(6):
        teach(forest, StageKey("t", (f"s{i}",)), is_right=i >= 4)
    save(forest, path)
    small = load(path, ForestConfig(tenant_limit_bytes=16 * 2 * MODEL_BYTES))
    assert small.memory_bytes() == 2 * MODEL_BYTES
    for i in (4, 5):
        assert score(small, StageKey("t", (f"s{i}",))) == score(forest, StageKey("t", (f"s{i}",)))


def test_a_model_that_stages_share_is_saved_too(path):
    limits = ForestConfig(tenant_limit_bytes=16 * 2 * MODEL_BYTES)
    forest = Forest(limits)
    for i in range(4):
        teach(forest, StageKey("t", (f"s{i}",)), is_right=i == 0)
    save(forest, path)
    for config, first in ((limits, 1), (ForestConfig(tenant_limit_bytes=16 * MODEL_BYTES), 2)):
        small = load(path, config)
        small.check_integrity()
        for i in range(first, 4):  # the second stage has its own model if there is room
            assert score(small, StageKey("t", (f"s{i}",))) == score(forest, StageKey("t", (f"s{i}",)))
            assert score(small, StageKey("t", (f"s{i}",))) < score(Forest(), EXTRACT)


def test_trees_find_a_place_beside_those_that_are_there(path):
    forest = Forest(ForestConfig(sources=(Source.STAGE,)))
    for i in range(40):
        forest.learn(StageKey("t", (f"s{i}",)), ids(1, 2, i))
    save(forest, path)
    small = Forest(ForestConfig(sources=(Source.STAGE,), max_trees=16))
    small.learn(EXTRACT, ids(1, 2, 99))
    loaded = small.load(path, vocabulary=VOCABULARY)
    assert (loaded.num_trees, loaded.num_outputs) == (15, 15)
    assert drafts_for(small, EXTRACT, ids(1, 2)) == [99]
    for i in range(25, 40):
        assert small.stats(StageKey("t", (f"s{i}",))).num_tokens == 3
    small.learn(COMBINE, ids(1))  # one more evicts the least recently used
    assert small.stats(StageKey("t", ("s25",))).num_tokens == 0
    assert small.stats(StageKey("t", ("s26",))).num_tokens == 3


@pytest.mark.parametrize(
    ("sources", "num_trees"),
    [((Source.TENANT,), 1), ((Source.STAGE,), 2), ((Source.WORKFLOW,), 2), ((Source.SESSION,), 0)],
)
def test_trees_of_a_kind_that_is_not_kept_are_left_out(path, sources, num_trees):
    forest = Forest()
    forest.learn(EXTRACT, ids(1, 2, 3))
    save(forest, path)
    other = Forest(ForestConfig(sources=sources))
    assert other.load(path, vocabulary=VOCABULARY).num_trees == num_trees
    assert other.stats().num_tokens == 3 * num_trees


@pytest.mark.parametrize("name", ["stage_limit_bytes", "tenant_limit_bytes", "total_limit_bytes"])
def test_budgets_hold_and_the_youngest_outputs_stay(path, name):
    forest = Forest()
    outputs = [text(i, 200) for i in range(200)]
    for output in outputs:
        forest.learn(EXTRACT, output)
    save(forest, path)
    limit_bytes = 512 << 10
    small = load(path, ForestConfig(**{name: limit_bytes}))
    held = small.memory_bytes(EXTRACT) if name == "stage_limit_bytes" else small.memory_bytes()
    assert limit_bytes / 2 < held <= limit_bytes
    assert drafts_for(small, EXTRACT, outputs[-1][:5])[:9] == outputs[-1][5:14].tolist()
    assert drafts_for(small, EXTRACT, outputs[0][:5])[:9] != outputs[0][5:14].tolist()
    small.check_integrity()


# ---- concurrent calls ----


class Decoding:
    """A thread that serves requests until it is stopped."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._thread = threading.Thread(target=self._run)
        self._is_over = False
        self.errors: list[BaseException] = []
        self.num_served = 0

    def __enter__(self) -> Decoding:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
            while not self._is_over:
                self._serve()
        except BaseException as error:
            self.errors.append(error)

    def _serve(self) -> None:
        name, stage = f"d{self.num_served}", (EXTRACT, COMBINE, OTHER)[self.num_served % 3]
        self._forest.start(name, stage, text(1, 20), draft=RULES[self.num_served % 4])
        for i in range(10):
            self._forest.step([(name, text(self.num_served % 50 + i, 20, 100))])
        self._forest.finish(name, learn=self.num_served % 7 != 0)
        if self.num_served % 40 == 39:
            self._forest.evict(COMBINE)
        self.num_served += 1


def test_saving_beside_decode_steps(path):
    forest = Forest(ForestConfig(stage_limit_bytes=1 << 20, depth=16))
    known = [text(1000 + i, 100) for i in range(150)]
    for output in known:
        forest.learn(StageKey("t", ("still",)), output)
    with Decoding(forest) as decoding:
        for _ in range(5):
            served = decoding.num_served
            saved = save(forest, path)
            loaded = load(path)
            assert loaded.stats().num_tokens == saved.num_tokens
            assert loaded.stats(StageKey("t", ("still",))).num_sequences == len(known)
            while decoding.num_served == served and not decoding.errors:
                time.sleep(0.001)
    assert decoding.errors == []
    forest.check_integrity()


def test_loading_beside_decode_steps(path):
    known = Forest()
    for i in range(100):
        known.learn(StageKey("t", ("still",)), text(1000 + i, 100))
        known.learn(EXTRACT, text(2000 + i, 100))
    save(known, path)
    forest = Forest(ForestConfig(stage_limit_bytes=1 << 20, depth=16))
    with Decoding(forest) as decoding:
        for _ in range(3):
            forest.load(path, vocabulary=VOCABULARY)
    assert decoding.errors == []
    assert decoding.num_served > 0
    assert forest.stats(StageKey("t", ("still",))).num_sequences == 300
    forest.check_integrity()


def test_several_saves_at_once_wait_for_each_other(path):
    forest = Forest()
    for i in range(200):
        forest.learn(EXTRACT, text(i, 200))
    paths = [path.with_name(f"forest-{i}") for i in range(4)]
    threads = [threading.Thread(target=save, args=(forest, one)) for one in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.read_bytes() for one in paths}) == 1


# ---- the file ----


@pytest.fixture
def saved(path: Path) -> bytes:
    """Save a small file with two trees at ``path`` and return its bytes."""
    forest = Forest(ForestConfig(sources=(Source.STAGE,)))
    forest.learn(EXTRACT, ids(1, 2, 3))
    forest.learn(OTHER, ids(4, 5))
    forest.learn(OTHER, ids(4, 5))
    save(forest, path)
    return path.read_bytes()


def assert_refused(path: Path, reason: str = "forest") -> None:
    forest = Forest()
    forest.learn(EXTRACT, ids(7, 8, 9))
    before = forest.stats()
    with pytest.raises(ForestFileError, match=reason) as caught:
        forest.load(path, vocabulary=VOCABULARY)
    assert str(path) in str(caught.value)
    assert forest.stats() == before


def test_a_file_with_any_byte_changed_is_refused(path, saved):
    for place in range(len(saved)):
        for flipped in (saved[place] ^ 1, saved[place] ^ 0x80, saved[place] ^ 0xFF):
            path.write_bytes(saved[:place] + bytes([flipped]) + saved[place + 1 :])
            assert_refused(path)


def test_a_file_that_was_cut_off_or_continued_is_refused(path, saved):
    for size in range(len(saved)):
        path.write_bytes(saved[:size])
        assert_refused(path)
    path.write_bytes(saved + b"\0")
    assert_refused(path, "does not end as one")


def test_a_file_that_lost_a_chunk_is_refused(path, saved):
    end = saved.index(b"OUTS", saved.index(b"OUTS") + 1)
    path.write_bytes(saved[: saved.index(b"OUTS")] + saved[end:])
    assert_refused(path, "does not end as one")


@pytest.mark.parametrize("version", [0, 2, 5])
def test_a_file_of_another_format_is_refused(path, saved, version):
    path.write_bytes(saved[:16] + version.to_bytes(4, "little") + saved[20:])
    assert_refused(path, f"format {version}, .* reads the format 1")


def test_a_file_of_another_vocabulary_is_refused(path, saved):
    with pytest.raises(ForestFileError, match="vocabulary 'tekken', not of 'llama'"):
        Forest().load(path, vocabulary="llama")


NAME = ("t", ("a",))


def outputs(tokens: list[int], sizes: list[int], uses: list[int], name: object = NAME) -> SavedOutputs:
    return SavedOutputs(name, ids(*tokens), np.array(sizes, np.uint32), np.array(uses, np.uint32))


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (outputs([1, -2], [2], [1]), "the token id -2"),
        (outputs([1, 2], [3], [1]), "sizes of outputs"),
        (outputs([1, 2], [1], [1]), "sizes of outputs"),
        (outputs([1, 2], [2, 0], [1, 1]), "sizes of outputs"),
        (outputs([1, 2], [2], [0]), "0 times"),
        (outputs([1, 2], [2], [65_536]), "65536 times"),
        (outputs([], [], []), "OUTS"),
        (outputs([1, 2], [2], [1], ("", ("a",))), "a tenant is"),
        (outputs([1, 2], [2], [1], ("t", ("a/b",))), "bad stage segment 'a/b'"),
        (outputs([1, 2], [2], [1], ("t", (1, 2))), "OUTS"),
        (outputs([1, 2], [2], [1], (3, ("a",))), "OUTS"),
        (outputs([1, 2], [2], [1], ("t", 3)), "OUTS"),
        (SavedModel(NAME, b"\0" * 100), "not 100"),
        (SavedModel(NAME, b"\xff" * len(ForestCore.untrained_model_state())), "no model learns"),
    ],
)
def test_a_whole_file_with_impossible_content_is_refused(path, item, reason):
    with writing(path, VOCABULARY) as file:
        file.add_outputs(outputs([1, 2], [2], [1]))
        file.add_model(item) if isinstance(item, SavedModel) else file.add_outputs(item)
        file.finish()
    assert_refused(path, reason)


def test_a_file_with_an_unknown_kind_of_chunk_is_refused(path):
    class Newer(ForestWriter):
        def add_sessions(self) -> None:
            self._write(b"SESS", {})

    with writing(path, VOCABULARY) as file:
        file.__class__ = Newer
        Newer.add_sessions(file)
        file.finish()
    assert_refused(path, "b'SESS'")


def test_the_file_is_its_owners_alone(path):
    save(Forest(), path)
    path.chmod(0o644)
    path.with_name("forest.saving").write_bytes(path.read_bytes()[:30])  # of a killed process
    path.with_name("forest.saving").chmod(0o666)
    save(Forest(), path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["forest"]


@pytest.mark.parametrize("vocabulary", ["", None, 3])
def test_a_vocabulary_has_a_name(path, vocabulary):
    for call in (Forest().save, Forest().load):
        with pytest.raises(ConfigError, match=repr(vocabulary)):
            call(path, vocabulary=vocabulary)
    assert not path.exists()


def test_a_place_that_the_system_refuses_is_named(tmp_path):
    for path in (tmp_path / "no folder" / "forest", tmp_path):
        with pytest.raises(ForestFileError, match=str(path)):
            save(Forest(), path)
        assert_refused(path)
    assert list(tmp_path.parent.glob("*.saving")) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("forest", b""),
        ("forest", b"AgentSpec fores"),
        ("forest", b"server: {port: 80}\n"),
        ("forest.saving", b"server: {port: 80}\n"),
        ("forest.saving", b"\0" * 64),
    ],
)
def test_a_file_that_is_no_forest_stays_as_it_is(path, name, content):
    other = path.with_name(name)
    other.write_bytes(content)
    with pytest.raises(ForestFileError, match=f"{name}' is no forest file and stays as it is"):
        save(Forest(), path)
    assert other.read_bytes() == content
    assert [one.name for one in path.parent.iterdir()] == [name]


def test_a_file_that_appears_while_a_forest_is_saved_stays(path):
    def write() -> None:
        with writing(path, VOCABULARY) as file:
            path.write_text("mine")
            file.finish()

    with pytest.raises(ForestFileError, match="is no forest file"):
        write()
    assert path.read_text() == "mine"
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["forest", "forest.saving"])
def test_pipes_and_folders_are_no_forests_and_are_not_waited_for(path, name):
    for make in (os.mkfifo, os.mkdir):
        folder = path.parent / make.__name__
        folder.mkdir()
        make(folder / name)
        with pytest.raises(ForestFileError):
            save(Forest(), folder / "forest")
        with pytest.raises(ForestFileError):
            Forest().load(folder / name, vocabulary=VOCABULARY)
        assert [one.name for one in folder.iterdir()] == [name]


def test_what_a_crash_left_is_written_over(path):
    path.with_name("forest.saving").write_bytes(b"AgentSpec")
    save(Forest(), path)
    assert [one.name for one in path.parent.iterdir()] == ["forest"]


def test_a_link_in_place_of_the_new_file_is_not_followed(path):
    other = path.with_name("other")
    other.write_bytes(b"precious")
    path.with_name("forest.saving").symlink_to(other)
    with pytest.raises(ForestFileError):
        save(Forest(), path)
    assert other.read_bytes() == b"precious"


def test_two_processes_do_not_write_to_one_place(path, saved):
    with path.with_name("forest.saving").open("wb") as others:
        others.write(b"half a forest")
        others.flush()
        fcntl.flock(others, fcntl.LOCK_EX)
        with pytest.raises(ForestFileError, match="being saved"):
            save(Forest(), path)
    assert path.with_name("forest.saving").read_bytes() == b"half a forest"
    assert path.read_bytes() == saved


SCRIPT = """
import resource, sys
import numpy as np
from agentspec import Forest, StageKey
from agentspec.errors import ForestFileError

forest = Forest()
for i in range(100):
    forest.learn(StageKey.parse("a/b"), np.random.default_rng(i).integers(0, 1000, 500).astype(np.int32))
"""


def test_a_full_disk_leaves_the_old_file(path, saved):
    script = """
resource.setrlimit(resource.RLIMIT_FSIZE, (75_000, 75_000))
try:
    forest.save(sys.argv[1], vocabulary="tekken")
except ForestFileError as error:
    print(error)
"""
    command = [sys.executable, "-c", SCRIPT + script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.strip() == f"can't save the forest to {str(path)!r}: File too large"
    assert path.read_bytes() == saved
    assert [file.name for file in path.parent.iterdir()] == ["forest"]


@pytest.mark.parametrize("num_bytes", [1, 125_000, 250_000, 375_000])
def test_a_process_that_is_killed_while_it_saves_leaves_a_whole_file(path, saved, num_bytes):
    """The kernel kills it, as by SIGKILL, at the first write beyond this size."""
    beside = path.with_name("forest.saving")
    script = f"""
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, ({num_bytes}, {num_bytes}))
forest.save(sys.argv[1], vocabulary="tekken")
"""
    done = subprocess.run([sys.executable, "-c", SCRIPT + script, str(path)], timeout=120)
    assert done.returncode == -signal.SIGXFSZ
    assert beside.stat().st_size == num_bytes
    assert path.read_bytes() == saved
    assert load(path).stats().num_tokens == 7
    save(Forest(), path)
    assert not beside.exists()
