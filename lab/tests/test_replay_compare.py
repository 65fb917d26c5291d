"""The comparison: interpolation and summary against figures worked by hand, then the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agentspec.replay.calls import END, Call, encoded, load_tokenizer
from agentspec.replay.jobs import Selection
from agentspec.replay.tally import Tally
from lab.command import main
from lab.compare import compare
from lab.compare.compare import ROWS, summary
from lab.compare.trials import (
    TREE_SIZES,
    TRIALS,
    DataSet,
    Outcome,
    Trial,
    distractor,
    learned_chain,
    most_unlike,
    paper_chain,
    tree,
)
from lab.replay.curve import Curve, Point

# ---- between the prices ----


def test_between_two_points_lines_are_straight():
    curve = Curve([Point(4.0, 3.0), Point(2.0, 2.0)])
    assert curve.gained(3.0) == 2.5
    assert curve.drafted(2.5) == 3.0
    assert (curve.gained(4.0), curve.drafted(3.0)) == (3.0, 4.0)


def test_beyond_the_last_point_nothing_is_known():
    curve = Curve([Point(2.0, 1.0), Point(4.0, 1.5)])
    assert curve.gained(4.1) is None
    assert curve.drafted(1.6) is None


# ---- the figures of a data set ----

STEPS = 1100  # eleven prices all give whole numbers of tokens


def tally(drafted: float, accepted: float) -> Tally:
    """Return a tally with these draft tokens and accepted tokens per step. A step adds one more token."""
    return Tally(
        steps=STEPS,
        tokens=round(STEPS * (accepted + 1)),
        drafted=round(STEPS * drafted),
        accepted=round(STEPS * accepted),
    )


def tallies() -> dict[Trial, Tally]:
    """Return tallies of learned chains that accept half of up to 8 drafted tokens; other trials draft 3."""
    made = {trial: tally(3.0, 1.0) for trial in TRIALS}
    prices = [one for one in TRIALS if one == learned_chain(one.rule.min_prob)]
    for i, trial in enumerate(prices, 1):
        made[trial] = tally(8.0 * i / len(prices), 4.0 * i / len(prices))
    return made


def test_the_gain_is_against_the_better_of_the_papers_at_its_drafts():
    made = tallies()
    made[paper_chain("paper-shared", 1.0)] = tally(4.0, 1.6)
    made[paper_chain("paper-stage", 1.0)] = tally(2.0, 0.9)
    assert compare.accepted_gain(made) == pytest.approx(2.0 / 1.6 - 1)  # learned: 2 of 4
    made[paper_chain("paper-stage", 1.0)] = tally(9.0, 1.7)
    assert compare.accepted_gain(made) is None  # no learned chain drafts 9


def test_the_papers_rule_on_all_trees_is_a_peer_of_its_own():
    made = tallies()
    made[paper_chain("forest", 1.0)] = tally(4.0, 1.8)
    made[paper_chain("paper-shared", 1.0)] = tally(4.0, 1.6)
    assert compare.accepted_gain(made, ("forest",)) == pytest.approx(2.0 / 1.8 - 1)
    assert compare.accepted_gain(made) == pytest.approx(2.0 / 1.6 - 1)


def test_the_ratio_is_of_drafts_for_as_many_accepted():
    made = tallies()
    made[paper_chain("paper-shared", 4.0)] = tally(10.0, 2.5)
    made[paper_chain("paper-stage", 4.0)] = tally(9.0, 2.4)
    assert compare.draft_ratio(made) == pytest.approx(5.0 / 10.0)  # learned: 2.5 of 5
    made[paper_chain("paper-stage", 4.0)] = tally(9.0, 4.1)
    assert compare.draft_ratio(made) is None  # no learned chain accepts 4.1


def test_trees_gain_on_the_better_of_the_papers_at_each_size():
    made = tallies()
    for size, (shared, stage, learned) in zip(TREE_SIZES, [(1, 0.5, 1.5), (1, 3, 3), (0, 1, 2)], strict=True):
        made[tree("paper-shared", size)] = tally(size, shared)
        made[tree("paper-stage", size)] = tally(size, stage)
        made[tree("learned", size)] = tally(size, learned)
    assert compare.tree_gain(made) == pytest.approx((2.5 / 2 - 1 + 0 + 3 / 2 - 1) / 3)


def test_stage_trees_gain_at_the_drafts_of_one_tree():
    made = tallies()
    made[learned_chain(0.25, by_stage=False, is_limited=True)] = tally(3.0, 1.0)
    for price, accepted in [(0.35, 1.0), (0.25, 1.5), (0.17, 1.7), (0.11, 1.8), (0.07, 1.9)]:
        made[learned_chain(price, is_limited=True)] = tally(2 * accepted, accepted)
    assert compare.stage_gain(made) == pytest.approx(2.5 / 2.0 - 1)
    made[learned_chain(0.25, by_stage=False, is_limited=True)] = tally(1.0, 0.25)
    assert compare.stage_gain(made) == pytest.approx(1.5 / 1.25 - 1)  # below the first point, from 1 token
    made[learned_chain(0.25, by_stage=False, is_limited=True)] = tally(4.0, 1.0)
    assert compare.stage_gain(made) is None


def test_the_loss_is_of_tokens_per_step():
    made = tallies()
    made[learned_chain(0.25)] = tally(3.0, 3.0)
    made[learned_chain(0.25, is_distracted=True)] = tally(3.0, 2.8)
    assert compare.distractor_loss(made) == pytest.approx(0.05)


def test_a_data_set_has_every_figure_and_every_point():
    made = tallies()
    made[learned_chain(0.11)].add_estimate(0.9, is_right=False)
    outcomes = {trial: Outcome(one, 7, 900, 12 << 20, 4500) for trial, one in made.items()}
    figures = compare.figures(outcomes)
    assert {row.figure for row in ROWS} <= set(figures)
    assert figures["ece"] == pytest.approx(0.9)
    assert (figures["num_calls"], figures["num_tokens"], figures["distractor_tokens"]) == (7, 900, 4500)
    assert (figures["one_tree_bytes"], figures["limit_bytes"]) == (12 << 20, 6 << 20)
    assert len(figures["points"]) == len(TRIALS) == len(set(TRIALS))


# ---- the summary ----

FIGURES = {
    "x": {
        "accepted_gain_equal_drafts": 0.2,
        "accepted_gain_vs_all_trees": 0.1,
        "draft_ratio_equal_tokens": 0.5,
        "tree_gain_equal_nodes": 0.1,
        "stage_gain": 0.03,
        "ece": 0.02,
        "distractor_loss": -0.01,
    },
    "y": {
        "accepted_gain_equal_drafts": -0.1,
        "accepted_gain_vs_all_trees": 0.0,
        "draft_ratio_equal_tokens": 0.6,
        "tree_gain_equal_nodes": 0.0,
        "stage_gain": -0.01,
        "ece": 0.06,
        "distractor_loss": 0.01,
    },
}


def test_every_key_of_the_summary():
    assert summary(FIGURES) == pytest.approx(
        {
            "accepted_gain_equal_drafts_mean": 0.05,
            "accepted_gain_equal_drafts_min": -0.1,
            "accepted_gain_vs_all_trees_mean": 0.05,
            "accepted_gain_vs_all_trees_min": 0.0,
            "draft_ratio_equal_tokens_mean": 0.55,
            "tree_gain_equal_nodes_mean": 0.05,
            "stage_gain_mean": 0.01,
            "stage_gain_min": -0.01,
            "ece_max": 0.06,
            "distractor_loss_max": 0.01,
        }
    )
    failed = [row.key for row in ROWS if not row.passes(FIGURES)]
    assert failed == [
        "accepted_gain_equal_drafts_mean",
        "accepted_gain_equal_drafts_min",
        "draft_ratio_equal_tokens_mean",
        "ece_max",
    ]


def test_what_is_not_reached_meets_no_bar():
    figures = {**FIGURES, "z": {**FIGURES["x"], "draft_ratio_equal_tokens": None}}
    [row] = [row for row in ROWS if row.figure == "draft_ratio_equal_tokens"]
    assert (row.result(figures), row.passes(figures), row.worst(figures)) == (None, False, "z")


# ---- the unrelated corpus ----


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def test_alone_a_data_set_is_distracted_by_its_own_words_exchanged():
    data = DataSet([Call("s", "a", ids(), ids(3, 4, 3, END)), Call("s", "a", ids(), ids(5, 3, END))])
    corpus = distractor(data, (), Selection())
    assert sum(map(len, corpus)) == 5 * data.num_tokens == 35
    first, second = corpus[0].tolist(), corpus[1].tolist()
    assert first[0] == first[2] == second[1] != first[1]
    assert first[-1] == second[-1] == END
    assert corpus[2].tolist() == first


def responses(path: Path, *texts: str) -> Path:
    path.write_text("\n".join(json.dumps({"prompt": "p", "response": text, "stage": "s"}) for text in texts))
    return path


def test_the_unrelated_corpus_is_of_the_files_that_share_the_least(tmp_path):
    sql, alike, prose, code = (
        responses(tmp_path / f"{number}.jsonl", *texts)
        for number, texts in enumerate(
            (
                ["SELECT name FROM users WHERE id = 1", "SELECT name FROM users WHERE id = 2"],
                ["SELECT name FROM users WHERE id = 3"],
                ["The weather was fine, so they went to the lake."],
                ["for (int i = 0; i < n; ++i) sum += values[i];"],
            )
        )
    )
    selection = Selection()
    encode = load_tokenizer(selection.tokenizer)
    data = DataSet([encoded(record, encode) for record in selection.chosen(sql)])
    assert most_unlike(data, [alike, prose, code], selection) == [prose, code]
    [like_it] = (np.append(encode(record.response), np.int32(END)) for record in selection.chosen(alike))
    assert like_it.tobytes() not in {
        one.tobytes() for one in distractor(data, [alike, prose, code], selection)
    }
    assert most_unlike(data, [prose], selection) == [prose]


# ---- the command ----


def write(path: Path, table: str) -> Path:
    calls = [
        {
            "prompt": f"question {i}",
            "response": f"SELECT name FROM {table} WHERE id = {i % 5} ORDER BY name;" * (1 + i % 2),
            "stage": ("plan", "sql")[i % 2],
            "session": str(i // 2),
        }
        for i in range(24)
    ]
    path.write_text("\n".join(map(json.dumps, calls)))
    return path


def test_compare_prints_a_table_of_bars_and_writes_json(tmp_path, capsys):
    paths = [str(write(tmp_path / f"{table}.jsonl", table)) for table in ("users", "orders")]
    written, tables, plot = (tmp_path / "out" / f"compare.{ending}" for ending in ("json", "md", "svg"))
    options = [
        "--half",
        "both",
        "--jobs",
        "1",
        "--json",
        str(written),
        "--markdown",
        str(tables),
        "--plot",
        str(plot),
    ]
    assert main(["compare", *paths, *options]) == 0
    table = capsys.readouterr().out
    assert "calibration error, largest" in table
    assert '"summary"' not in table
    result = json.loads(written.read_text())
    assert set(result["summary"]) == {row.key for row in ROWS}
    assert result["summary"] == result["summary_by_half"]["second"]
    assert set(result["figures"]) == {"first", "second"}
    users = result["figures"]["second"]["users"]
    assert len(users["points"]) == len(TRIALS)
    assert all(point["tokens"] == users["num_tokens"] for point in users["points"])
    assert users["distractor_tokens"] >= 5 * users["num_tokens"]
    assert users["accepted_gain_equal_drafts"] is not None
    assert tables.read_text().count("| users |") == 2
    assert sum(one["num"] for one in users["calibration"]) > 0
    drawn = plot.read_text()
    for text in ("users", "orders", "learned, by price", "paper-stage, alpha 4", "estimated probability"):
        assert text in drawn


def test_a_half_without_calls_is_an_error(tmp_path, capsys):
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"prompt": "p", "response": "r", "session": "1"}))
    assert main(["compare", str(path), "--half", "both"]) == 1
    assert "one.jsonl" in capsys.readouterr().err
