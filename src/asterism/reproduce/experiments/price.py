"""Yun 2020, Theorem 1: how large is the transformer of the proof, and how far from the function does it stay?"""

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from asterism.reproduce.experiment import Experiment, Figures, Finding, Results, Scale, Table, decided
from asterism.reproduce.trials import Computation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from asterism.theory.approximation.construction import Approximation

EPSILONS = (0.2, 0.1, 0.05)
FUNCTIONS = {"far": (3, 1), "greatest": (3, 1), "crossed": (2, 2), "root": (2, 1)}
"""Examples of `asterism.theory.approximation.functions`, with their tokens and features."""
MOST_CODES, MOST_STEPS = 10_000, 32
"""Up to so many codes, and steps of a feature, grids are made finer and finer."""
SAMPLES, COMPARED = 4096, 512
PRICE = ("attention_layers", "feed_forward_layers", "heads", "hidden_size", "width", "parameters")


def trials(scale: Scale) -> Sequence[Computation]:
    """The grid that each epsilon needs, and grids that are finer and finer."""
    wanted = [
        Computation(
            name=f"{name}, epsilon {epsilon}",
            seed=1,
            compute=_within,
            arguments={"function": name, "epsilon": epsilon},
        )
        for name in FUNCTIONS
        for epsilon in EPSILONS
    ]
    grids = [
        Computation(name=_grid(name, steps), seed=1, compute=_on_grid, arguments={"function": name, "steps": steps})
        for name in FUNCTIONS
        for steps in _finer(name)
    ]
    return [*wanted, *grids]


def _grid(name: str, steps: int) -> str:
    return f"{name}, delta 1/{steps}"


def _finer(name: str) -> list[int]:
    tokens, features = FUNCTIONS[name]
    return [steps for steps in range(2, MOST_STEPS + 1) if tokens * steps ** (tokens * features) <= MOST_CODES]


def _build(function: str, **how: Any) -> "Approximation":
    from asterism.theory.approximation.construction import approximate
    from asterism.theory.approximation.functions import EXAMPLES

    one = EXAMPLES[function]
    return approximate(one.function, one.n, one.d, one.pattern, construction=one.construction, **how)


def _on_grid(function: str, steps: int, seed: int) -> Figures:
    return _measured(_build(function, delta=Fraction(1, steps)), seed)


def _within(function: str, epsilon: float, seed: int) -> Figures:
    """Also of the float64 torch model, unless the codes are too long for one."""
    from asterism.errors import ConfigurationError
    from asterism.theory.approximation.construction import as_function

    built = _build(function, epsilon=epsilon)
    figures = _measured(built, seed)
    try:
        model = built.model()
    except ConfigurationError as refusal:
        if refusal.code != "codes-too-long":
            raise
        return figures
    found = built.measure(model, samples=SAMPLES, seed=seed)
    inputs = np.random.Generator(np.random.Philox(seed + 1)).random((COMPARED, built.n, built.mapping.d))
    equal = (as_function(model)(inputs) == built.exact(inputs)).all((1, 2)).mean()
    return {**figures, "distance of the model": found.value, "model's error": found.error, "equal": float(equal)}


def _measured(built: "Approximation", seed: int) -> Figures:
    found = built.measure(seed=seed)
    price = {name: float(getattr(built.price, name)) for name in PRICE}
    return {"steps": float(built.steps), "distance": found.value, "error": found.error, **price}


def table(results: Results) -> Table:
    """What each epsilon costs."""
    rows = []
    for function, (tokens, features) in FUNCTIONS.items():
        for epsilon in EPSILONS:
            name = f"{function}, epsilon {epsilon}"
            steps, layers = results.mean(name, "steps"), results.mean(name, "attention_layers")
            model = results.shown(name, "distance of the model")
            rows.append(
                (
                    function,
                    f"{tokens} x {features}",
                    str(epsilon),
                    "-" if steps is None else f"1/{steps:.0f}",
                    results.shown(name, "distance"),
                    "refused" if model == "-" and layers else model,
                    *(results.shown(name, one, ",.0f") for one in PRICE),
                )
            )
    counts = (name.replace("_", " ").replace("feed forward", "feed-forward") for name in PRICE)
    return Table(("function", "tokens x features", "epsilon", "delta", "d_2", "d_2 of the model", *counts), rows)


def findings(results: Results) -> Sequence[Finding]:
    """The theorem's promise, the count of layers, and the exponent of the price."""
    wanted = [f"{function}, epsilon {epsilon}" for function in FUNCTIONS for epsilon in EPSILONS]
    over = {name: _over(results, name) for name in wanted}
    slopes = {function: _slope(results, function) for function in FUNCTIONS}
    equal = {name: value for name in wanted if (value := results.mean(name, "equal")) is not None}
    return [
        decided(
            "for every epsilon there is a sparse transformer whose distance from the function is at most epsilon",
            over,
            lambda of: max(of.values()) <= 0,
            f"{len(over)} constructions in exact arithmetic: distance and three standard errors stay below epsilon.",
        ),
        decided(
            "a torch model of attention and feed-forward layers computes the same function",
            equal or {"models": None},
            lambda of: min(of.values()) == 1,
            f"{len(equal)} of {len(wanted)} models are equal to the exact construction, to the last bit, on {COMPARED}"
            " inputs each. Where a model is refused, its codes do not fit into float64.",
        ),
        decided(
            "ours: attention and feed-forward layers together grow as the power n d of the fineness of the grid",
            slopes,
            lambda of: all(abs(of[name] - tokens * d) < 0.35 for name, (tokens, d) in FUNCTIONS.items()),
            "Exponents between the two finest grids that were counted (the table has coarser ones): "
            + ", ".join(f"{name} {{{name}:.2f}} (n d = {n * d})" for name, (n, d) in FUNCTIONS.items())
            + ".",
        ),
    ]


def _over(results: Results, name: str) -> float | None:
    """By how much the distance, with three standard errors, is above epsilon."""
    distance, error = results.mean(name, "distance"), results.mean(name, "error")
    if distance is None or error is None:
        return None
    return distance + 3 * error - float(name.split()[-1])


def _layers(results: Results, name: str) -> float | None:
    some = [results.mean(name, one) for one in PRICE[:2]]
    return None if None in some else sum(one for one in some if one is not None)


def _slope(results: Results, function: str) -> float | None:
    """The exponent of the layers in the fineness, between the two finest grids."""
    coarse, fine = _finer(function)[-2:]
    few, many = (_layers(results, _grid(function, steps)) for steps in (coarse, fine))
    return None if few is None or many is None else float(np.log(many / few) / np.log(fine / coarse))


def draw(results: Results) -> "Figure":
    """Distance against the grid's step, and layers against the distance, on logarithmic axes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for function, (tokens, features) in FUNCTIONS.items():
        known = [
            (1 / steps, distance, layers)
            for steps in _finer(function)
            if (distance := results.mean(_grid(function, steps), "distance")) is not None
            and (layers := _layers(results, _grid(function, steps))) is not None
        ]
        if not known:
            continue
        steps_of, distances, layers_of = ([row[at] for row in known] for at in range(3))
        left.plot(steps_of, distances, "o-", markersize=3)
        right.plot(distances, layers_of, "o-", markersize=3, label=f"{function}: n = {tokens}, d = {features}")
    left.set(xlabel="delta", ylabel="d_2(f, g)")
    right.set(xlabel="d_2(f, g)", ylabel="layers")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.lines:  # without any, a logarithmic axis cannot be drawn
            axes.set(xscale="log", yscale="log")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
                axis.set_minor_locator(NullLocator())
    if right.lines:
        right.legend(fontsize=8)
    return figure


PRICE_OF_UNIVERSALITY = Experiment(
    name="price",
    paper="yun-2020",
    place="Theorem 1",
    question="How large is the transformer of the proof, and how far from the function does it stay?",
    setting={"laptop": "Constructions for four functions, in exact arithmetic and as torch models."},
    trials=trials,
    table=table,
    findings=findings,
    draw=draw,
    published=dict,
    caveats=(
        "The distance d_2 is the root of the mean squared error over uniform inputs; delta is the step of the grid to"
        " which inputs are rounded. Each token gets, by `far`, the token at the other end; by `greatest`, the greatest;"
        " by `crossed`, a feature of the other token times one of its own; by `root`, the root of their distance.",
        "Both d_2 are estimates from random inputs: 4,096 of the model, more of the construction. So they differ,"
        " though model and construction answer alike.",
        "From memory, the paper counts p (n - 1) / delta^d + s attention layers, and no feed-forward layers; the claim"
        " about both is ours. `root` uses the construction of Zaheer 2020 with a star.",
    ),
)
