"""FNet's mixers and what a step costs by length; needles beside recall; blocks that judge reviews."""

import numpy as np
import pytest
from test_language_experiments import made_up

from asterism.reproduce.experiment import Results
from asterism.reproduce.experiments import blocks_reviews, fnet, fnet_length, recall
from asterism.reproduce.step import training_step
from asterism.search.tasks import make_task


def holds(experiment, results) -> list[bool | None]:
    return [finding.holds for finding in experiment.findings(results)]


# --- FNet -------------------------------------------------------------------------------------------------------------


def test_linear_and_random_mixing_differ_from_fnet_in_their_mixers_alone():
    models = {trial.name: trial.config.model for trial in fnet.FNET.trials("laptop")}
    assert list(models) == ["BERT", "hybrid", "FNet", "Linear", "Random"]
    assert models["Linear"].mixers == "linear()" and models["Random"].mixers == "linear(learned=False)"
    shapes = [{**vars(models[name]), "mixers": None} for name in ("FNet", "Linear", "Random")]
    assert shapes[0] == shapes[1] == shapes[2]
    assert {**vars(models["hybrid"]), "mixers": None} == {**vars(models["BERT"]), "mixers": None}


def test_the_order_of_fnet_s_mixers():
    def figures(**right: float) -> Results:
        rest = {"validation_masked_loss": 5.0, "unigram_entropy": 6.0}
        return made_up({name: {fnet.MASKED: of, **rest} for name, of in right.items()})

    paper = figures(BERT=0.4, hybrid=0.3, FNet=0.2, Linear=0.205, Random=0.1)
    assert holds(fnet.FNET, paper) == [True] * 4
    other = figures(BERT=0.4, hybrid=0.15, FNet=0.2, Linear=0.25, Random=0.22)
    assert holds(fnet.FNET, other) == [False, False, False, True]
    assert holds(fnet.FNET, figures(BERT=0.4, hybrid=0.3, FNet=0.2)) == [True, None, None, None]


@pytest.mark.slow
def test_a_step_costs_time_and_memory_in_a_process_of_its_own():
    short, long = (training_step("fourier()", "auto", length) for length in (128, 1024))
    assert 0 < short["seconds"] < long["seconds"] and 0 < short["bytes"] < long["bytes"] / 3
    pairs = training_step("dense()", "reference", 1024)
    assert pairs["bytes"] > 2 * 4 * 1024 * 1024 * 4 > long["bytes"]


@pytest.mark.slow
def test_a_step_that_fails_says_why():
    with pytest.raises(Exception, match=r"a step of nosuch\(\) with 64 tokens: .*unknown pattern 'nosuch'"):
        training_step("nosuch()", "auto", 64)


def cost(model: str, length: int, *, kept: bool = False) -> dict[str, float]:
    square = (length / 512) ** 2
    if model == fnet_length.FNET:
        return {"seconds": length / 1e4, "bytes": 3e4 * length}
    if model == fnet_length.HYBRID:
        return {"seconds": length / 1e4 + 0.005 * square, "bytes": 4e4 * length}
    if model == fnet_length.BERT:
        return {"seconds": length / 1e4 + 0.01 * square, "bytes": 5e4 * length}
    return {"seconds": 0.1 * square, "bytes": 3e4 * length if kept else 4e7 * square}


def test_claims_about_length():
    def results(**changes: bool) -> Results:
        names = [(model, length) for model in fnet_length.MODELS for length in fnet_length.LENGTHS]
        return made_up({f"{model}, {length:,} tokens": cost(model, length, **changes) for model, length in names}, 1)

    assert holds(fnet_length.FNET_LENGTH, results()) == [True] * 5
    assert holds(fnet_length.FNET_LENGTH, results(kept=True)) == [True, True, False, False, True]
    names = {trial.name for trial in fnet_length.trials("laptop")}
    assert len(names) == 19 and "BERT, all pairs in memory, 8,192 tokens" not in names


# --- recall and needles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", recall.GUESS)
def test_a_question_asks_for_an_earlier_place_that_has_the_answer(task):
    questions, told = recall.asked(task)
    held_out = make_task(task, recall.LENGTH, 0).held_out(64)
    rows = np.nonzero(held_out.targets.numpy() >= 0)[0]
    assert len(rows) == len(questions) == len(told) and (told < questions).all()
    ids = held_out.ids.numpy()
    answers = held_out.targets.numpy()[rows, questions]
    if task == "needles":
        assert (ids[rows, told] == answers).all() and len(rows) == 2 * 64
    else:
        assert (ids[rows, told] == 128 + 8 * (ids[rows, questions] - ord("@")) + answers - ord("0")).all()


@pytest.mark.parametrize("task", recall.GUESS)
def test_reach_is_that_of_the_rule(task):
    questions, told = recall.asked(task)
    assert recall.reach(task, "causal()", 1) == recall.reach(task, recall.PATTERNS["selected"], 1) == 1.0
    for layers in (1, 2, 3):
        expected = float(np.mean(questions - told <= 25 * layers))
        assert recall.reach(task, recall.PATTERNS["window"], layers) == expected


def test_claims_about_recall_and_needles():
    def results(changes: dict[str, float]) -> Results:
        cells = [(task, name, n) for task in recall.GUESS for name in recall.PATTERNS for n in recall.DEPTHS]
        found = {
            recall._name(*cell): {"accuracy": recall._most(cell[0], recall.PATTERNS[cell[1]], cell[2])}
            for cell in cells
        }
        return made_up(found | {name: {"accuracy": value} for name, value in changes.items()})

    fixed = {f"{name}, 2 layers": {"accuracy": 0.3} for name in ("window", "strided", "BigBird")}
    assert holds(recall.RECALL, results({})) == [True, True, True, False, True, True]
    low = results({name: of["accuracy"] for name, of in fixed.items()})
    assert holds(recall.RECALL, low) == [True, True, True, True, False, True]
    above = results({"window, 1 layer": 0.9, "needles: strided, 3 layers": 0.5, "dense, 1 layer": 0.5})
    assert holds(recall.RECALL, above) == [False, True, False, False, True, False]


# --- blocks -----------------------------------------------------------------------------------------------------------


def test_blocks_that_judge_reviews():
    trials = blocks_reviews.trials("laptop")
    assert [trial.name for trial in trials] == ["counted words", "dense", "R", "W", "R+W", "R+W+G"]
    assert len({trial.config.model for trial in trials[1:]}) == 5
    right = {"counted words": 0.8, "dense": 0.9, "R": 0.86, "W": 0.85, "R+W": 0.87, "R+W+G": 0.895}
    results = made_up({name: {blocks_reviews.SHORT: value} for name, value in right.items()})
    assert holds(blocks_reviews.BLOCKS_REVIEWS, results) == [True] * 5
    worse = made_up({name: {blocks_reviews.SHORT: 1 - value} for name, value in right.items()})
    assert holds(blocks_reviews.BLOCKS_REVIEWS, worse) == [False, False, False, True, False]
