"""`asterism reproduce`: lists, runs, counts, writes pages; and one line for what it refuses."""

import json
import re

import pytest
from command_line import refuses


def test_an_experiment_runs_to_its_page_and_is_not_run_again(run, tmp_path):
    words = "reproduce", "turing", "--output", tmp_path / "found"
    first = run(*words)
    assert first.code == 0 and "palindromes 0110" in first.out and first.err.startswith("1 of 10: palindromes, full")
    assert "T steps take T (T + 1) / 2 tokens of the sparse decoder: holds." in first.out
    assert (tmp_path / "found" / "plot.svg").read_text().startswith("<?xml")
    again = run(*words)
    assert again.out == first.out and not again.err
    record = json.loads(run(*words, "--json").out)
    assert [finding["holds"] for finding in record["findings"]] == [True, True, True]
    refuses(run("reproduce", "reach", "--output", tmp_path / "found"), 4, "holds experiment 'turing', not 'reach'")


def test_the_list_says_what_was_found(run):
    listed = run("reproduce", "--list").out
    assert "turing" in listed and "3 of 3 claims hold, 1 seed, 20" in listed
    assert re.search(r"  \d of \d of ours, 1 seed, 20", listed)  # of a paper that claims nothing of the kind
    assert re.search(r"  \d of \d claims hold, \d of \d of ours, 3 seeds, 20", listed)
    experiments = json.loads(run("reproduce", "--list", "--json").out)["experiments"]
    assert {"copy-task", "reach", "recall", "turing"} <= {one["name"] for one in experiments}
    pictures = next(one for one in experiments if one["name"] == "factorised-pictures")
    assert pictures["seeds"] == 3 and 5 < pictures["minutes"] < 20 and pictures["reads"] == ["cifar10-jpeg.tar.gz"]
    line = next(line for line in listed.splitlines() if line.startswith("factorised-pictures"))
    assert "claims hold, 3 seeds, 20" in line and f" {pictures['minutes']:.0f} " in line and " --data " in line


def test_the_list_of_an_experiment_names_its_trials_and_settings(run):
    listed = run("reproduce", "reach", "lra-text", "--list").out
    assert listed.startswith("trial of reach ") and "--set can change: length, pattern\n" in listed
    assert "\ntrial of lra-text " in listed and "counted words" in listed and " learning_rate, " in listed
    found = json.loads(run("reproduce", "copy-task", "--list", "--json").out)
    assert len(found["trials"]) == 32 and all(trial["minutes"] > 0 for trial in found["trials"])
    assert {"steps", "model.hidden_size"} <= set(found["settings"]) and "seed" not in found["settings"]
    work = json.loads(run("reproduce", "fnet", "--scale", "workstation", "--list", "--json").out)["trials"]
    assert len(work) == 15 and {trial["minutes"] for trial in work} == {None}


def test_costs_are_counted_without_a_run(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "strided, union, 4 layers" in run("reproduce", "copy-task", "--scale", "paper", "--dry-run").out
    costs = json.loads(run("reproduce", "copy-task", "--dry-run", "--json").out)["costs"]
    assert len(costs) == 32 and all(cost["flops"] > 0 for cost in costs)
    counted = run("reproduce", "long-documents", "--dry-run").out
    assert counted.endswith("Fine-tuning is not counted.\n")
    assert json.loads(run("reproduce", "long-documents", "--dry-run", "--json").out)["not_counted"] == ["fine-tuning"]
    one, other = (line.split()[1] for line in run("reproduce", "summaries", "--dry-run").out.splitlines()[1:3])
    assert one == other == "2.0M"  # a run that starts from another has its model, with its tokenizer
    assert not list(tmp_path.iterdir())


def test_some_trials_with_other_settings(run, tmp_path):
    words = (
        "reproduce",
        "reach",
        "--only",
        "star",
        "--only",
        "window",
        "--set",
        "length=64",
        "--output",
        tmp_path / "made",
    )
    made = run(*words, "--json")
    rows = json.loads(made.out)["rows"]
    assert [(row["trial"], row["settings"]["length"]) for row in rows] == [("star", 64), ("window", 64)]
    page = (tmp_path / "made" / "page.md").read_text()
    assert "`--only star --only window --set length=64`" in page and "What was tried" not in page
    refuses(run("reproduce", "reach", "--output", tmp_path / "made"), 4, "holds reach --set length=64; give the same")
    counted = run("reproduce", "copy-task", "--only", "star, 1 layer", "--set", "steps=10", "--dry-run", "--json")
    assert [cost["name"] for cost in json.loads(counted.out)["costs"]] == ["star, 1 layer"]


def test_several_experiments_run_one_after_the_other(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    both = run("reproduce", "turing", "reach")
    assert both.code == 0 and both.out.startswith("turing\n\nmachine and word") and "\n\nreach\n\npattern " in both.out
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"reproduce-turing", "reproduce-reach"}
    found = json.loads(run("reproduce", "turing", "reach", "--json").out)["experiments"]
    assert [one["experiment"] for one in found] == ["turing", "reach"]
    refuses(run("reproduce", "turing", "rech"), 2, "Did you mean 'reach'?")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("", 2, "give the NAME of an experiment, or --list"),
        ("copy-tsk", 2, "Did you mean 'copy-task'?"),
        ("turing --scale paper", 2, "turing runs at scale laptop, not paper"),
        ("copy-tsk --list", 2, "Did you mean 'copy-task'?"),
        ("turing --scale workstation --list", 2, "turing runs at scale laptop, not workstation"),
        ("turing --list --only one --seeds 2", 2, "--list runs nothing; leave out --seeds, --only"),
        ("turing --list --jobs 2 --dry-run", 2, "--list runs nothing; leave out --jobs, --dry-run"),
        ("turing --pages made", 2, "--pages runs nothing; leave out NAME"),
        ("copy-task --dry-run --seeds 0 --data nodir", 2, "--dry-run runs nothing; leave out --data, --seeds"),
        ("turing lra-text", 3, "lra-text reads imdb-train.jsonl.xz"),
        ("turing reach --seeds 0", 2, "seeds: must be from 1 to 100, got 0"),
        ("bigbird", 2, "That paper has building-blocks, blocks-reviews"),
        ("lra-text", 3, "imdb-train.jsonl.xz"),
        ("turing --data nosuch", 3, "there is no folder 'nosuch'"),
        ("turing --jobs 0", 2, "jobs: must be at least 1, got 0"),
        ("turing --scale desktop", 2, "invalid choice: 'desktop'"),
        ("turing --output file", 4, "file"),
        ("reach turing --output made", 2, "--output is the folder of one experiment"),
        ("reach --set length=64", 2, "--set and --only need a folder of their own: --output DIR"),
        ("reach --output made --set length", 2, "give NAME=VALUE, got 'length'"),
        ("reach --output made --set lenth=64", 2, "Did you mean 'length'?"),
        ("reach --output made --only stars", 2, "Did you mean 'star'?"),
    ],
)
def test_what_cannot_be_run_is_one_line(run, tmp_path, monkeypatch, words, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    refuses(run("reproduce", *words.split()), code, message)
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "runs"}
