"""The paper's figures: each computation against an example worked by hand, then the whole on tiny traces."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path

import pytest

from agentspec.errors import ConfigError
from agentspec.replay.calls import RecordedCall
from agentspec.replay.methods import Rule
from agentspec.replay.tally import Counts, Tally
from lab.command import main
from lab.paper import document, fig2, fig4, fig7, fig8, fig9, options, table1
from lab.paper.runs import Replay, done, whole
from lab.paper.samples import LABELS, Traces, held_out

NUM_SESSIONS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write eleven data sets of 12 sessions with two stages each; two sessions to a group."""
    folder = tmp_path_factory.mktemp("traces")
    for name in LABELS:
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as lines:
            for session in range(NUM_SESSIONS):
                for stage in ("plan", "sql"):
                    call = {
                        "session": f"session {session}",
                        "task": f"task {session // 2}",
                        "stage": stage,
                        "prompt": f"{name}: how many users have the number {session}?",
                        "response": f"{stage}: SELECT count(*) FROM users WHERE number = {session};",
                    }
                    lines.write(json.dumps(call) + "\n")
    return folder


def of(tokens: int, steps: int, drafted: int = 0, accepted: int = 0) -> Tally:
    return Tally(steps=steps, tokens=tokens, drafted=drafted, accepted=accepted)


def point(
    tokens_per_step: float, drafted_per_step: float = 1.0, acceptance_rate: float = 0.5
) -> dict[str, float]:
    return {
        "tokens_per_step": tokens_per_step,
        "drafted_per_step": drafted_per_step,
        "acceptance_rate": acceptance_rate,
    }


# ---- samples ----


def test_sessions_stay_whole_in_an_order_of_their_own(folder):
    records = Traces(folder).sample("tot_text").records()
    sessions = [record.session for record in records]
    assert len(records) == 2 * NUM_SESSIONS
    assert [record.stage for record in records] == ["plan", "sql"] * NUM_SESSIONS
    assert sessions[::2] == sessions[1::2] != sorted(sessions[::2])
    assert Traces(folder).sample("tot_text", 3, skip=2).records() == records[2:5]
    assert Traces(folder, limit=4).sample("tot_text").size() == 4


def test_what_is_held_out_is_whole_groups_a_fifth_of_the_calls(folder):
    apart = [Traces(folder).sample("tot_text", held_out=away) for away in (True, False)]
    away, rest = ({record.group for record in sample.records()} for sample in apart)
    assert not away & rest
    assert [sample.size() for sample in apart] == [8, 16]  # two groups of 4 calls: one is less than a fifth
    assert held_out([RecordedCall("s", "a", "one", "", "")] * 3) == {"one"}


def test_missing_traces_are_named(folder, tmp_path):
    (tmp_path / "tot_text.jsonl.gz").touch()
    with pytest.raises(ConfigError, match=r"lacks rsl_sql_spider_test\.jsonl\.gz.*TRACES=DIR") as refused:
        Traces(tmp_path)
    assert "tot_text" not in str(refused.value)


# ---- figures ----


def test_accepted_tokens_are_averaged_over_the_drafts_of_a_match_length():
    tally = Tally()
    tally.by_match[4] = Counts(drafts=50, drafted=200, accepted=125)
    tally.by_match[2] = Counts(drafts=80, drafted=160, accepted=40)
    tally.by_match[8] = Counts(drafts=49, drafted=80, accepted=20)  # too few
    assert fig2.accepted_by_match(tally) == {"2": 0.5, "4": 2.5}


def test_limits_are_compared_at_the_draft_tokens_of_the_constant_one():
    by_limit = {
        "constant": {"4": point(2.0, drafted_per_step=3.0)},
        "adaptive": {"1": point(2.0, 2.0), "2": point(2.4, 4.0)},  # 2.2 at 3
        "learned": {"0.5": point(1.5, 1.0), "0.1": point(2.5, 2.5)},  # never drafts 3
    }
    assert fig2.gains(by_limit) == {"adaptive": pytest.approx(0.1), "learned": None}


def test_every_method_is_compared_and_data_sets_count_alike():
    names = {form.partition(" ")[0] for form in fig4.forms()}
    assert {"learned", "paper-shared", "pld", "recycling", "rest"} <= names
    assert {"rest (tree)", "pld (chain)", "learned (tree)"} <= set(fig4.forms())
    measured = {"a": {"x": point(1.0)}, "b": {"x": point(4.0)}}
    assert fig4.mean(measured, "x", "tokens_per_step") == 2.5


def test_a_tie_is_not_better():
    by_method = {"both": point(2.0), "one": point(1.5), "other": point(2.0)}
    assert fig7.is_better(by_method, "both", "one")
    assert not fig7.is_better(by_method, "both", "one", "other")


def test_tree_sizes_end_with_all_there_are(folder, monkeypatch):
    monkeypatch.setattr(fig8, "SIZES", (4, 8, 100))
    assert fig8.sizes(Traces(folder), "tot_text") == [4, 8, 16]
    monkeypatch.setattr(fig8, "SIZES", (4, 8, 10))
    assert fig8.sizes(Traces(folder), "tot_text") == [4, 8, 10]


def test_growth_is_from_the_smallest_to_the_largest_tree():
    by_size = {"4": point(2.0, acceptance_rate=0.5), "8": point(9.0), "16": point(3.0, acceptance_rate=0.4)}
    assert fig8.growth(by_size) == pytest.approx((0.5, -0.1))


def test_windows_move_by_a_chunk():
    outcome = [{"s": of(tokens, steps=10)} for tokens in (10, 20, 30, 40, 90)]
    moved = fig9.windows(outcome)
    assert {end: one["tokens_per_step"] for end, one in moved.items()} == {"100": 2.5, "125": 4.5}
    assert list(fig9.windows(outcome[:2])) == ["50"]


def test_moments_are_first_after_as_many_and_last():
    ends = {str(end): None for end in range(100, 1001, 25)}
    assert fig9.moments(ends) == ("100", "600", "1000")
    assert fig9.moments({"50": None}) == ("50", "50", "50")


def test_rank_correlation():
    assert table1.rank_correlation([1, 2, 3], [5, 50, 500]) == pytest.approx(1)
    assert table1.rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # ranks 1 2.5 2.5 4 against 1 2 3 4: covariance 4.5 / 4, variances 4.5 / 4 and 5 / 4
    assert table1.rank_correlation([1, 7, 7, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert math.isnan(table1.rank_correlation([1, 1], [1, 2]))


# ---- runs ----


def test_shared_trees_that_do_not_learn_stay_as_they_are(folder):
    """Check that two chunks of the same calls cost the same unless the first was learned."""
    sample = Traces(folder).sample("tot_text", 2)
    rule = Rule("chain", 64, 100.0)
    fixed, learning, primed = (
        [whole([chunk]).steps for chunk in Replay(sample, "paper-shared", rule, before, learns, 1).outcome()]
        for before, learns in (((), False), ((), True), ((sample,), False))
    )
    assert learning[0] == fixed[0]
    assert learning[1] < fixed[1]  # the second response has the words of the first
    assert primed == [2, 2]  # the first token can't be drafted


def test_equal_runs_are_done_once(folder):
    sample = Traces(folder).sample("tot_text", 2)
    outcomes = done([Replay(sample, "pld"), Replay(sample, "pld"), Replay(sample, "llma")], 1)
    assert set(outcomes) == {Replay(sample, "pld"), Replay(sample, "llma")}


# ---- the document ----


def test_paragraphs_are_wrapped_and_tables_are_not():
    text = document.table(("name", "x"), [["word " * 60, "1"]])
    assert len(text.splitlines()) == 3
    assert "| --- | --: |" in text


@pytest.mark.slow
def test_the_whole_document_from_tiny_traces(folder, tmp_path, capsys):
    command = ["paper", "--traces", str(folder), "--docs", str(tmp_path), "--jobs", "1"]
    assert main(command) == 0
    text = (tmp_path / "paper.md").read_text()
    measured = json.loads((tmp_path / "paper" / "figures.json").read_text())
    assert set(measured) == {*options.SECTIONS, "data"}
    assert text.count("**The paper.**") == text.count("**The difference.**") == len(options.SECTIONS)
    plots = re.findall(r"!\[[^]]+\]\((paper/\w+\.svg)\)", text)
    assert len(plots) == 7
    drawn = {name: (tmp_path / name).read_bytes() for name in plots}
    assert str(folder) not in text + json.dumps(measured)

    # repeating a part gives the same figures and plot, and changes nothing else
    assert main([*command, "--only", "fig8"]) == 0
    again = json.loads((tmp_path / "paper" / "figures.json").read_text())
    timeless = re.compile(r'"draft_us_per_step": [0-9.e-]+')
    assert timeless.sub("", json.dumps(again["fig8"]["figures"])) == timeless.sub(
        "", json.dumps(measured["fig8"]["figures"])
    )
    assert again["fig4"] == measured["fig4"]
    assert {name: (tmp_path / name).read_bytes() for name in plots} == drawn
    assert (tmp_path / "paper.md").read_text() == text

    # a part can't use another limit than the parts that stay
    assert main([*command, "--only", "fig8", "--limit", "1"]) == 1
    assert "was measured with limit None, not 1" in capsys.readouterr().err
    assert (tmp_path / "paper.md").read_text() == text


def test_a_folder_without_traces_is_an_error(tmp_path, capsys):
    assert main(["paper", "--traces", str(tmp_path)]) == 1
    assert "codegen_gpt4_simple.jsonl.gz" in capsys.readouterr().err
