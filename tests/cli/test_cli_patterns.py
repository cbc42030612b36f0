"""Verbs about patterns: what show, plan and certify print and draw."""

import json
import re
from pathlib import Path

import pytest
from command_line import Result, Run, refuses


def test_show_one_head(run: Run, tmp_path: Path):
    """Every figure is about the head that was asked for."""
    pattern = "per_head((causal(), window(left=1)))"
    result = run("show", pattern, "-n", "4", "--head", "1", "--plot", tmp_path / "x.png")
    assert result.out.splitlines() == [
        "per_head(patterns=(causal(), window(left=1))), 4 tokens, head 1 of 2",
        "█···",
        "██··",
        "·██·",
        "··██",
        "rows: queries, columns: keys; █ may attend, · may not",
        "degrees: a query of head 1 reads 1 to 2 keys, 1.8 on average",
        "density: 43.75% of the pairs of head 1",
        "cost:    1.79 kFLOP forward for head 1, 64 features wide; `asterism plan` says more",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]


def test_show_every_head(run: Run):
    """Without --head the picture says whose it is, and each head has figures of its own."""
    result = run("show", "per_head((causal(), window(left=1), window(left=1)))", "-n", "4")
    assert result.out.splitlines()[0].endswith("4 tokens, head 0 of 3")
    assert result.out.splitlines()[6:] == [
        "degrees and density, head by head:",
        "  head 0         a query reads 1 to 4 keys, 2.5 on average; 62.50% of the pairs",
        "  heads 1 to 2   a query reads 1 to 2 keys, 1.8 on average; 43.75% of the pairs",
        "density: 50.00% of the pairs, over 3 heads",
        "cost:    6.14 kFLOP forward for 3 heads, 64 features wide; `asterism plan` says more",
    ]
    document = json.loads(run("show", "per_head((causal(), window(left=1)))", "-n", "4", "--json").out)
    (pattern,) = document["mixers"]
    assert [(head["head"], head["density"]) for head in pattern["heads"]] == [(0, 0.625), (1, 0.4375)]
    assert pattern["picture"] == {"head": 0, "rows": ["█···", "██··", "███·", "████"]}


def test_show_schedules(run: Run, tmp_path: Path):
    schedule = "interleave(causal(), per_head((window(left=1), window())), causal())"
    lines = run("show", schedule, "-n", "3", "--head", "1", "--plot", tmp_path / "x.svg").out.splitlines()
    assert lines[:5] == ["layers 0, 2, 3, 5, ... (2 of every 3)", "causal(), 3 tokens", "█··", "██·", "███"]
    second = lines.index("layers 1, 4, 7, ... (1 of every 3)")
    assert lines[second + 1 : second + 5] == [
        "per_head(patterns=(window(left=1), window())), 3 tokens, head 1 of 2",
        "█··",
        "·█·",
        "··█",
    ]
    assert (tmp_path / "x.svg").read_text().count("<image") == 2
    assert run("show", schedule, "-n", "3", "--layer", "4").out.startswith("layer 4\nper_head(")
    document = json.loads(run("show", schedule, "-n", "3", "--json").out)
    assert [row["places"] for row in document["mixers"]] == [[0, 2], [1]] and document["period"] == 3


def test_plan_schedules(run: Run):
    schedule = "interleave(causal(), window(left=4), causal())"
    lines = run("plan", schedule, "-n", "128").out.splitlines()
    assert lines[:2] == ["layers 0, 2, 3, 5, ... (2 of every 3)", "causal()"]
    second = lines.index("layers 1, 4, 7, ... (1 of every 3)")
    assert lines[second + 1] == "window(left=4)"
    assert run("plan", schedule, "-n", "128", "--layer", "7").out.splitlines()[:2] == ["layer 7", "window(left=4)"]
    plans = json.loads(run("plan", schedule, "-n", "128", "--json").out)["mixers"]
    assert [(plan["places"], plan["plan"]["pattern"]) for plan in plans] == [
        ([0, 2], "causal()"),
        ([1], "window(left=4, right=0, dilation=1)"),
    ]
    assert run("plan", "interleave(causal(), causal())", "-n", "9").out.startswith("every layer\ncausal()")


@pytest.mark.parametrize("verb", ["show", "plan"])
def test_fourier_is_told_in_a_line(run: Run, tmp_path: Path, verb: str):
    told = (
        "fourier() mixes all tokens by a Fourier transform (Lee-Thorp 2021): every token depends on every other, and"
        " there is no pattern of attention"
    )
    assert run(verb, "fourier()", "-n", "4") == Result(0, f"{told}\n", "")
    mixed = run(verb, "interleave(fourier(), causal())", "-n", "4").out.splitlines()
    assert mixed[:2] == ["layers 0, 2, 4, ... (1 of every 2)", told] and "layers 1, 3, 5, ... (1 of every 2)" in mixed
    rows = json.loads(run(verb, "interleave(fourier(), causal())", "-n", "4", "--json").out)["mixers"]
    assert [(row["mixer"], row["plan"] is None) for row in rows] == [("fourier()", True), ("causal()", False)]


def test_pictures_of_mixers(run: Run, tmp_path: Path):
    refuses(run("show", "fourier()", "-n", "4", "--plot", tmp_path / "x.png"), 2, "--plot: fourier.. mixes all tokens")
    assert run("show", "interleave(fourier(), causal())", "-n", "4", "--plot", tmp_path / "x.png").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]
    refuses(run("certify", "fourier()", "-n", "4"), 2, r"fourier\(\) is not a pattern")


def test_show_says_when_it_counted_some_queries_only(run: Run):
    assert "on average (of 2,048 queries counted)" in run("show", "strided(stride=256)", "-n", "65536").out


def test_show_does_not_round_a_density_to_nothing(run: Run):
    assert "density: 0.0005% of the pairs\n" in run("show", "window(left=4)", "-n", "1000000").out


def test_plan(run: Run):
    result = run("plan", "strided(stride=128)", "-n", "16384")
    assert (result.code, result.err) == (0, "")
    assert len(result.out.splitlines()) <= 40


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_certify_explains_checks_and_draws(run: Run, tmp_path: Path, suffix: str):
    picture = tmp_path / f"reach.{suffix}"
    rule = "interleave(window(left=4, right=4), stride(period=8))"
    result = run("certify", rule, "-n", 64, "--check", "--plot", picture)
    assert (result.code, result.err) == (0, "")
    assert "s = 3 layers: 0 does not depend on 61 after 2" in result.out
    assert re.search(r"average path length +1\.77 +1\.\d+ +2\.646\n", result.out)
    assert result.out.count("checked  ") == 4
    assert picture.stat().st_size > 5000


def test_certify_in_json(run: Run):
    document = json.loads(run("certify", "strided(8)", "-n", 32, "--check", "--json").out)
    assert (document["star"], document["yun"], document["hops"]) == (False, False, None)
    assert document["never"] == {"kind": "Never", "query": 0, "key": 1, "closed": [0]}
    assert len(document["checked"]) == 4


def test_a_pattern_that_chooses_is_drawn_as_what_may_be_read(run):
    text = "window(left=3) | selected(block=16, topk=2) & causal()"
    shown, causal = run("show", text, "-n", "64"), run("show", "causal()", "-n", "64")
    assert shown.out.splitlines()[1:65] == causal.out.splitlines()[1:65]
    assert "choice:  blocks of 16 keys, by content" in shown.out
    most = float(re.search(r"a query reads (\S+) keys on average, at most", shown.out)[1])
    assert 16 < most <= 35  # its own block and one more, and the window
    found = json.loads(run("show", text, "-n", "64", "--json").out)["mixers"][0]
    assert found["plan"] is None and found["heads"][0]["density"] == pytest.approx(most / 64, abs=0.001)
