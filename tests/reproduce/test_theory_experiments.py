"""The experiments on theory: trained finders of the furthest vector, and the price of universality."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest
from repository import docs_page

from asterism.randomness import isolated
from asterism.reproduce import EXPERIMENTS
from asterism.reproduce.experiment import Results
from asterism.reproduce.experiments import furthest, price
from asterism.reproduce.kept import kept
from asterism.theory.approximation.functions import EXAMPLES
from asterism.theory.approximation.limits import interactions


@pytest.fixture(scope="module")
def prices():
    record = kept(EXPERIMENTS["price"])
    assert record is not None
    return Results(record["rows"])


def test_a_trained_finder_is_a_function_of_the_seed():
    figures = []
    for ambient, seed in ((1, 0), (2, 0), (1, 1)):
        with isolated(ambient):
            figures.append(furthest.train(furthest.PATTERNS["BigBird"], 2, 8, steps=4, seed=seed, tested=64))
    assert figures[0] == figures[1] != figures[2]


def test_kept_finders():
    """One full layer solves the task at every n; reach is what theory says of the pattern."""
    record = kept(EXPERIMENTS["furthest"])
    assert record is not None
    results = Results(record["rows"])
    for trial in furthest.trials("laptop"):
        of = trial.arguments
        assert results.mean(trial.name, "reach") == interactions(of["pattern"], of["tokens"], of["layers"])[-1]
    assert all(results.mean(f"full, 1 layer, {n} tokens", "accuracy") > 0.99 for n in furthest.TOKENS)


def test_prices_of_the_record_are_those_of_today(prices):
    for trial in price.trials("laptop"):
        if "epsilon" in trial.arguments and trial.arguments["function"] != "root":
            steps = prices.mean(trial.name, "steps")
            built = price._build(trial.arguments["function"], delta=Fraction(1, int(steps)))
            assert [prices.mean(trial.name, one) for one in price.PRICE] == [
                getattr(built.price, one) for one in price.PRICE
            ]


def test_one_that_is_built_anew_has_the_figures_of_the_record(prices, tmp_path):
    for trial in price.trials("laptop"):
        if trial.name in ("far, epsilon 0.2", "root, delta 1/4"):
            assert trial.run(tmp_path) == {name: prices.mean(trial.name, name) for name in trial.run(tmp_path)}


def test_functions_are_those_of_theory():
    assert {name: (one.n, one.d) for name, one in EXAMPLES.items()} == price.FUNCTIONS


def test_a_construction_that_is_further_than_epsilon_fails_the_claim(prices):
    rows = [dict(row) for row in prices.rows]
    assert EXPERIMENTS["price"].findings(Results(rows))[0].holds
    rows[0] = rows[0] | {"figures": rows[0]["figures"] | {"distance": 0.201}}
    assert not EXPERIMENTS["price"].findings(replace(prices, rows=rows))[0].holds


def test_the_prices_on_the_page_are_the_kept_ones(prices):
    page = docs_page("theory.md").read_text()
    rows = [row.split(" | ") for row in re.findall(r"^\| (\w+ \| \d .*) \|$", page, re.MULTILINE)]
    assert len(rows) == 6
    for function, tokens, features, epsilon, delta, attention, feed_forward in rows:
        name = f"{function}, epsilon {epsilon}"
        assert (int(tokens), int(features)) == price.FUNCTIONS[function]
        assert Fraction(delta) == Fraction(1, int(prices.mean(name, "steps")))
        assert attention == prices.shown(name, "attention_layers", ",.0f")
        assert feed_forward == prices.shown(name, "feed_forward_layers", ",.0f")
