"""Searches: tasks whose answers are right, candidates that cost what they say, halving, and going on after a stop."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refusing

from asterism.errors import CheckpointError, ConfigurationError, DataError, NonFiniteLossError
from asterism.patterns import Pattern, layer_mixers
from asterism.patterns.selected import bounds_of
from asterism.search import SearchSettings, draw_frontier, search, table, trainee
from asterism.search.budget import dense_keys, keys_read, read_limit
from asterism.search.candidates import Family, Place, Size, candidates, fit
from asterism.search.halving import Trainee
from asterism.search.plot import _frontier
from asterism.search.record import score_at, summary
from asterism.search.tasks import make_task
from asterism.training.run.integrity import seal

PLACE = Place(length=128, layers=2, heads=2)
SMALL = SearchSettings(
    task="recall",
    length=64,
    candidates=5,
    steps=8,
    rungs=2,
    width=16,
    heads=2,
    batch=4,
    held_out=8,
    budgets=("keys=24",),
)


# --- tasks ------------------------------------------------------------------------------------------------------------


def answers_of(targets: list[int]) -> dict[int, int]:
    """Place and byte of every answer that counts: column i predicts the byte after it."""
    return {i + 1: byte for i, byte in enumerate(targets) if byte != -100}


@pytest.mark.parametrize("length", [64, 250, 500])
def test_the_answers_of_recall_are_in_its_text(length):
    task = make_task("recall", length, 3)
    for ids, targets in (task.held_out(40), task.draw(5, 40)):
        assert ids.shape == targets.shape == (40, length) and ids.dtype == targets.dtype == torch.int64
        for row, wanted in zip(ids.tolist(), targets.tolist(), strict=True):
            half = length // 2
            given = {byte // 8 - 16: byte % 8 for byte in row[:half] if byte >= 128}
            asked = {i: given[byte - ord("@")] for i, byte in enumerate(row[half:], half + 1) if byte >= ord("@")}
            assert {i: value - ord("0") for i, value in answers_of(wanted).items()} == asked
            assert all(row[i] == ord("0") + value for i, value in asked.items())
            assert len(given) == len(asked) == min(16, length // 16)


@pytest.mark.parametrize("length", [64, 300, 2000])
def test_the_answers_of_needles_are_in_their_text(length):
    depths = []
    for row, wanted in zip(*(x.tolist() for x in make_task("needles", length, 3).draw(5, 200)), strict=True):
        (needle,) = re.finditer(rb"[A-Z][0-9]", bytes(row[:-2]))
        assert bytes(row[-3:]) == b"?" + needle.group()
        assert answers_of(wanted) == dict(zip((length - 2, length - 1), needle.group(), strict=True))
        depths.append(needle.start() / length)
    assert min(depths) < 0.1 and max(depths) > 0.85


def test_a_text_is_read_in_windows(tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(256)) * 20)
    task = make_task(str(tmp_path / "text"), 64, 0)
    for ids, targets in (task.draw(0, 5), task.held_out(5)):
        assert ((ids[:, 1:] - ids[:, :-1]) % 256 == 1).all() and (targets[:, :-1] == ids[:, 1:]).all()
    (tmp_path / "text").write_bytes(b"short" * 20)
    with refusing(DataError, "pieces-too-short", "a shorter context"):
        make_task(str(tmp_path / "text"), 64, 0)


def test_examples_depend_on_the_seed_and_the_step_and_touch_no_global_generator():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    for name in ("recall", "needles"):
        one, again = make_task(name, 128, 1), make_task(name, 128, 1)
        assert torch.equal(one.draw(7, 4).ids, again.draw(7, 4).ids)
        others = [one.draw(8, 4), make_task(name, 128, 2).draw(7, 4), one.held_out(4)]
        assert not any(torch.equal(one.draw(7, 4).ids, other.ids) for other in others)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == np.random.get_state()[1].tolist()


def test_a_task_that_is_not_there_is_named():
    with refusing(DataError, "search-task", "Did you mean 'recall'"):
        make_task("recal", 64, 0)
    with refusing(DataError, "search-task", "The tasks are recall, needles"):
        make_task("/nowhere", 64, 0)
    with refusing(ConfigurationError, "search-length", "at least 64"):
        make_task("recall", 63, 0)


# --- budgets and candidates -------------------------------------------------------------------------------------------


def most_read(pattern: Pattern, length: int, head: int) -> int:
    """Pairs of one head, one by one; of a pattern that chooses, with the fullest choice of every query."""
    place = np.arange(length)
    pairs = np.ix_(place, place)
    if not pattern.chooses:
        return int(pattern.allows(*pairs, length, head).sum())
    bounds, size = bounds_of(pattern), bounds_of(pattern).chosen.block
    most, always, forced = (
        rule.allows(*pairs, length) for rule in (bounds.most, bounds.always, bounds.chosen.forced & bounds.most)
    )
    total = 0
    for query in range(length):
        blocks = range(length // size)
        taken = {b for b in range(-(-length // size)) if forced[query, b * size : (b + 1) * size].any()}
        free = [b for b in blocks if b not in taken and most[query, b * size : (b + 1) * size].all()]
        free = [b for b in free if not always[query, b * size : (b + 1) * size].all()]
        room = max(0, bounds.chosen.topk - len(taken))
        total += int(always[query].sum()) + size * min(room, len(free))
    return total


@pytest.mark.parametrize("budget", ["flops=40%", "keys=40"])
def test_candidates_cost_what_they_say_and_meet_the_budget(budget):
    limit = read_limit(budget, PLACE.length)
    found = candidates(limit, PLACE, 14, seed=5)
    assert [one.name for one in found[:3]] == ["window", "bigbird", "selected"]
    assert len({one.schedule for one in found}) == len(found) == 14
    assert {one.name.partition(":")[0] for one in found} >= {"layers", "heads"}
    for one in found:
        layers = layer_mixers(one.schedule, PLACE.layers)
        pairs = [most_read(rule, PLACE.length, head) for rule in layers for head in range(PLACE.heads)]
        assert one.keys == pytest.approx(np.mean(pairs) / PLACE.length)
        assert 0.9 * limit.keys < one.keys <= limit.keys


def test_equal_seeds_draw_equal_candidates():
    limit = read_limit("keys=30", 128)
    assert candidates(limit, PLACE, 10, seed=1) == candidates(limit, PLACE, 10, seed=1)
    assert candidates(limit, PLACE, 10, seed=1) != candidates(limit, PLACE, 10, seed=2)


def test_a_size_is_the_largest_that_the_budget_allows():
    limit = read_limit("keys=20", 128)
    one = fit(Family("window", "window(left={w})", (Size("w"),)), limit, PLACE)
    (left,) = (w for w in range(128) if one.schedule == f"window(left={w})")
    assert keys_read(f"window(left={left})", 128, 2) <= 20 < keys_read(f"window(left={left + 1})", 128, 2)
    whole = fit(Family("window", "window(left={w})", (Size("w"),)), read_limit("flops=100%", 128), PLACE)
    assert whole.keys == dense_keys(128) == keys_read("causal()", 128, 2)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("25%", "unknown-budget", "got '25%'"),
        ("time=3", "unknown-budget", "got 'time=3'"),
        ("flops=25", "bad-budget", "got '25'"),
        ("flops=0%", "bad-budget", "above 0% and at most 100%, got '0%'"),
        ("flops=101%", "bad-budget", "at most 100%"),
        ("keys=nan", "bad-budget", "a number above 0"),
        ("keys=many", "bad-budget", "got 'many'"),
        ("keys=65", "budget-amount", "those that causal() reads of 128"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(text, code, message):
    with refusing(ConfigurationError, code, message):
        read_limit(text, 128)


def test_a_budget_that_nothing_meets_names_the_nearest():
    with refusing(ConfigurationError, "budget-too-small", "the nearest is window(left=0): keys=1"):
        candidates(read_limit("keys=0.5", 128), PLACE, 4, 0)


def test_the_ladder_multiplies_steps_as_it_divides_candidates():
    settings = SearchSettings(task="recall", candidates=12, steps=800)
    assert settings.ladder() == [(12, 200), (6, 400), (3, 800)]
    assert replace(settings, eta=3).ladder() == [(12, 266), (4, 800)]
    assert replace(settings, rungs=1).ladder() == [(12, 800)]
    assert replace(settings, candidates=1).ladder() == [(1, 800)]


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({"steps": 0}, "search-setting", "steps: must be at least 1"),
        ({"eta": 1}, "search-setting", "eta: must be at least 2"),
        ({"learning_rate": float("nan")}, "search-setting", "must be positive"),
        ({"width": 30, "heads": 4}, "search-setting", "multiple of twice the 4 heads"),
        ({"budgets": ("keys=3", "keys=3")}, "search-setting", "each once"),
        ({"rungs": 5}, "search-rungs", "from 1 to 3 for 5 candidates"),
    ],
)
def test_settings_that_cannot_work_are_refused(changed, code, message):
    with refusing(ConfigurationError, code, message):
        replace(SMALL, **changed)


# --- searching --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search from beginning to end, and its folder."""
    folder = tmp_path_factory.mktemp("searches") / "whole"
    return search(replace(SMALL, seeds=2), folder), folder


def without_seconds(record):
    rows = [
        {**row, "scores": {s: [one | {"seconds": 0} for one in many] for s, many in row["scores"].items()}}
        for row in record["rows"]
    ]
    return {**record, "rows": rows}


@pytest.mark.model
def test_halving_keeps_the_best_and_trains_dense_to_the_end(whole):
    record, folder = whole
    dense, *rows = record["rows"]
    assert [one["rung"] for one in dense["scores"]["0"]] == [1] and dense["pattern"] == "causal()"
    first = {row["pattern"]: score_at(row, 0, 0)["loss"] for row in rows}
    assert len(first) == 5 and len(set(first.values())) > 1
    kept = {row["pattern"] for row in rows if score_at(row, 0, 1)}
    assert kept == set(sorted(first, key=first.get)[:3])
    assert all(set(row["scores"]) == ({"0", "1"} if row["pattern"] in kept else {"0"}) for row in rows)
    assert [one["steps"] for one in rows[0]["scores"]["0"]][:1] == [4]
    assert json.loads((folder / "record.json").read_text()) == seal(record)
    printed = table(record)
    assert all(row["pattern"] in printed for row in record["rows"]) and "100.0%" in printed
    ((pattern, place),) = re.findall(
        r"^best of keys=24: (.*), loss .*; its first model is (.*)$", printed, re.MULTILINE
    )
    best = min((row for row in rows if score_at(row, 0, 1)), key=lambda row: summary(row)["loss"])
    assert pattern == best["pattern"] and (folder / place / "model.safetensors").exists()
    assert ("With all keys the loss is higher" in printed) == (summary(best)["loss"] < summary(dense)["loss"])
    draw_frontier(record, folder / "frontier.svg")
    assert "keys per query" in (folder / "frontier.svg").read_text()


class Killed(BaseException):
    pass


@pytest.mark.model
@pytest.mark.parametrize("after", [2, 5])
def test_a_search_that_is_killed_goes_on_to_the_same_end(whole, after, tmp_path, monkeypatch):
    """Killed after some steps of every training, and after every few scores, again and again."""
    monkeypatch.setattr(trainee, "CHECKPOINT_EVERY", 3)
    steps, own = 0, Trainee._step

    def step(self):
        nonlocal steps
        steps += 1
        if steps > 3 * after:
            raise Killed
        own(self)

    monkeypatch.setattr(Trainee, "_step", step)
    kills, record = 0, None
    while record is None:
        steps = 0
        try:
            record = search(replace(SMALL, seeds=2), tmp_path / "search")
        except Killed:
            kills += 1
    assert kills > 1
    assert without_seconds(record) == without_seconds(whole[0])


@pytest.mark.model
def test_a_finished_search_trains_nothing(whole, monkeypatch):
    monkeypatch.setattr(Trainee, "_step", lambda self: pytest.fail("a step of a finished search"))
    assert search(replace(SMALL, seeds=2), whole[1]) == whole[0]


@pytest.mark.model
def test_a_loss_that_is_not_finite_ends_its_candidate_only(tmp_path, monkeypatch):
    own = Trainee._require_finite

    def require(self, loss):
        if "selected" in str(self.model.config.mixers) and self.state.step == 2:
            loss = float("nan")
        own(self, loss)

    monkeypatch.setattr(Trainee, "_require_finite", require)
    record = search(replace(SMALL, candidates=3, rungs=1, steps=4), tmp_path / "search")
    notes = {row["name"]: row["note"] for row in record["rows"]}
    assert "not finite at step 2" in notes.pop("selected") and not any(notes.values())
    assert "selected: the loss is not finite" in table(record)
    assert NonFiniteLossError.exit_code == 5
    draw_frontier(record, tmp_path / "frontier.png")


@pytest.mark.model
def test_budgets_compete_apart(tmp_path):
    settings = replace(SMALL, budgets=("keys=20", "keys=28"), candidates=2, rungs=1, steps=1)
    rows = search(settings, tmp_path / "search")["rows"]
    assert [(row["budget"], row["name"]) for row in rows[1:]] == [
        (budget, name) for budget in settings.budgets for name in ("window", "bigbird")
    ]
    assert all(row["keys"] <= float(row["budget"][5:]) for row in rows[1:])


def test_the_frontier_only_falls():
    assert _frontier([(0.5, 2.0), (0.25, 3.0), (1.0, 2.5), (0.75, 1.0)]) == [(0.25, 3.0), (0.5, 2.0), (0.75, 1.0)]


@pytest.mark.model
def test_another_search_in_the_folder_is_refused(whole, tmp_path):
    with refusing(CheckpointError, "search-other", "a search with steps 8, not 9; give another --output"):
        search(replace(SMALL, seeds=2, steps=9), whole[1])
    (tmp_path / "notes.txt").touch()
    with refusing(CheckpointError, "search-folder", "holds no search but notes.txt; give another --output"):
        search(SMALL, tmp_path)
    (tmp_path / "record.json").write_text(json.dumps(seal({"rows": []})))
    with refusing(CheckpointError, "foreign-record", "no record of a search"):
        search(SMALL, tmp_path)
    (tmp_path / "record.json").write_text(json.dumps({**whole[0], "rows": []}))
    with refusing(CheckpointError, "seal-missing"):
        search(SMALL, tmp_path)


@pytest.mark.model
def test_training_learns(tmp_path):
    """A pattern that reaches the needle answers better than one that does not."""
    task = make_task("needles", 64, 0)
    settings = replace(SMALL, task="needles", steps=100, width=32, batch=16, held_out=64)
    near, far = (Trainee(rule, settings, task, 0, tmp_path / rule) for rule in ("causal()", "window(left=1)"))
    before = near.score()
    for one in (near, far):
        one.advance(100)
    assert near.score().loss + 0.5 < far.score().loss < before.loss - 1


@pytest.mark.model
def test_the_caller_s_arithmetic_decides_nothing(tmp_path):
    """Autocast, inference mode and the default dtype are the caller's; they are the same afterwards."""
    small = replace(SMALL, candidates=1, rungs=1, steps=3)
    losses = [[one["loss"] for row in search(small, tmp_path / "plain")["rows"] for one in row["scores"]["0"]]]
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            found = search(small, tmp_path / "disturbed")
            assert torch.is_inference_mode_enabled() and torch.is_autocast_enabled("cpu")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    losses.append([one["loss"] for row in found["rows"] for one in row["scores"]["0"]])
    assert losses[0] == losses[1]
