"""Universal approximation: the distance is what was asked for, the torch model is the exact construction."""

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch
from refusals import refusing

from asterism.errors import ConfigurationError, PatternError
from asterism.layers import FeedForward, SparseAttention
from asterism.patterns import explicit
from asterism.theory import approximate, certify
from asterism.theory.approximation.construction import Distance, as_function, distance
from asterism.theory.approximation.functions import EXAMPLES, crossed, far
from asterism.theory.approximation.torch_model import RAMP


def build(name, **how):
    example = EXAMPLES[name]
    return approximate(
        example.function, example.n, example.d, example.pattern, construction=example.construction, **how
    )


def grid(approximation):
    """All grid inputs, float64 [inputs, n, d]: the least point of every cell."""
    steps, n, d = approximation.steps, approximation.n, approximation.mapping.d
    return np.indices((steps,) * (n * d)).reshape(n * d, -1).T.reshape(-1, n, d) / steps


def uniform(approximation, count, seed=1):
    shape = (count, approximation.n, approximation.mapping.d)
    return np.random.Generator(np.random.Philox(seed)).random(shape)


@pytest.mark.parametrize("epsilon", [0.2, 0.1, 0.05])
@pytest.mark.parametrize("name", ["far", "greatest", "crossed"])
def test_the_distance_is_at_most_epsilon(name, epsilon):
    """Three standard errors included, on other samples than those that chose delta; a coarser grid is not enough."""
    approximation = build(name, epsilon=epsilon)
    assert approximation.measure(seed=1).upper <= epsilon
    coarser = build(name, delta=Fraction(1, approximation.steps - 1)) if approximation.steps > 2 else None
    assert coarser is None or coarser.measure().upper > epsilon


@pytest.mark.parametrize(("name", "delta"), [(name, "1/3") for name in EXAMPLES] + [("far", "1/6"), ("root", "1/8")])
def test_the_torch_model_is_the_exact_construction(name, delta):
    """To the last bit, on random inputs and the whole grid: outputs, and the codes that attention computes."""
    approximation = build(name, delta=delta)
    model = approximation.model()
    for inputs in (uniform(approximation, 500), grid(approximation)):
        assert (as_function(model)(inputs) == approximation.exact(inputs)).all()
        assert (model.codes(torch.from_numpy(inputs)).numpy() == approximation.codes(inputs)).all()
        assert (approximation.exact(inputs) == approximation.quantised(inputs)).all()
    assert approximation.measure(model, samples=500) == approximation.measure(samples=500)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["far", "greatest", "crossed"])
def test_the_torch_model_of_the_smallest_epsilon(name):
    approximation = build(name, epsilon=0.05)
    model = approximation.model()
    inputs = uniform(approximation, 1000)
    assert (as_function(model)(inputs) == approximation.exact(inputs)).all()
    assert approximation.measure(model, samples=4096).upper <= 0.05


def test_it_is_made_of_this_librarys_layers():
    approximation = build("far", delta="1/3")
    model = approximation.model()
    layers = [residual.layer for stack in (model.quantise, model.map, model.look_up) for residual in stack]
    attention = [layer for layer in layers if isinstance(layer, SparseAttention)]
    feed_forward = [layer for layer in layers if isinstance(layer, FeedForward)]
    assert len(attention) + len(feed_forward) == len(layers)
    assert {str(layer.pattern) for layer in attention} == {"window(left=1, right=1)"}
    assert {layer.num_heads for layer in attention} == {2}
    assert {layer.query.out_features for layer in attention} == {2}
    assert {layer.up_proj.out_features for layer in feed_forward} == {4}


@pytest.mark.parametrize("name", list(EXAMPLES))
@pytest.mark.parametrize("steps", [2, 3])
def test_the_price_is_known_before(name, steps):
    approximation = build(name, delta=Fraction(1, steps))
    price, n, d = approximation.price, approximation.n, approximation.mapping.d
    model = approximation.model()
    assert price.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert price.attention_layers == len(model.map)
    assert price.feed_forward_layers == len(model.quantise) + len(model.look_up)
    assert price.hidden_size == model.features.hidden_size
    assert price.codes == n * steps ** (n * d) == len(model.look_up) - 1
    hops = certify(EXAMPLES[name].pattern, n).hops
    yun, star = (n - 1) * steps**d + (hops or 0), n * (steps**d + 1) + 1
    assert price.attention_layers == (yun if EXAMPLES[name].construction == "yun" else star)


def test_a_cycle_of_patterns_waits_for_its_turns():
    pattern = "interleave(window(1), window(0, 1))"
    approximation = approximate(far, 3, 1, pattern, delta="1/2")
    certificate = certify(pattern, 3)
    assert approximation.price.attention_layers == 2 * 2 * 2 + certificate.hops
    assert approximation.price.idle == 4
    inputs = grid(approximation)
    assert (as_function(approximation.model())(inputs) == far((np.floor(inputs * 2) + 0.5) / 2)).all()


def test_tokens_keep_their_places_on_a_path_out_of_order():
    """The only Hamiltonian path of the pattern visits 0, 2, 1 or back; the function tells all tokens apart."""

    def weighted(inputs):
        return inputs * np.array([1.0, 2.0, 4.0])[:, None] + inputs[:, [1, 2, 0]] / 8

    pattern = explicit(np.array([[1, 0, 1], [0, 1, 1], [1, 1, 1]], bool))
    assert certify(pattern, 3).path.path.tolist() in ([0, 2, 1], [1, 2, 0])
    approximation = approximate(weighted, 3, 1, pattern, delta="1/3", construction="yun")
    inputs = uniform(approximation, 200)
    expected = weighted((np.floor(inputs * 3) + 0.5) / 3)
    assert (approximation.exact(inputs) == expected).all()
    assert (as_function(approximation.model())(inputs) == expected).all()


def test_the_certificate_chooses_the_construction():
    """`star()` has no Hamiltonian path at 3 tokens and more: the hub is a token of its own, then."""
    assert approximate(far, 4, 1, "star()", delta="1/2").mapping.length == 5
    assert approximate(far, 4, 1, "window(1, 1)", delta="1/2").mapping.length == 4
    assert approximate(far, 2, 1, "star()", delta="1/2", construction="star").mapping.length == 3


def test_between_cells_the_model_is_continuous_and_bounded():
    """Before a threshold the model goes up a ramp, where codes are in no table; it never leaves the values' range."""
    approximation = build("far", delta="1/3")
    model = as_function(approximation.model())
    ramp = np.linspace(1 / 3 - 1.5 * RAMP, 1 / 3 + RAMP / 2, 2001)
    inputs = np.stack([ramp, np.full_like(ramp, 0.9), np.full_like(ramp, 0.4)], axis=1)[..., None]
    found = model(inputs)
    outside = (ramp < 1 / 3 - RAMP) | (ramp >= 1 / 3)
    assert (found[outside] == approximation.exact(inputs[outside])).all()
    assert not (found[~outside] == approximation.exact(inputs[~outside])).all()
    assert found.min() >= 0 and found.max() <= 5 / 6


def test_a_warm_softmax_is_no_hard_attention():
    approximation = build("far", delta="1/3")
    inputs = uniform(approximation, 200)
    expected = approximation.exact(inputs)
    wrong = [
        (as_function(approximation.model(temperature))(inputs) != expected).any(axis=(1, 2)).mean()
        for temperature in (1.0, 1 / 16, 2.0**-10)
    ]
    assert wrong[0] > 0.9 and wrong[2] == 0
    assert wrong == sorted(wrong, reverse=True)


def test_a_distance_next_to_an_integral():
    def line(inputs):
        return inputs

    def zero(inputs):
        return 0 * inputs

    for p, integral in ((1, 2 / 2), (2, (2 / 3) ** 0.5), (3, (2 / 4) ** (1 / 3))):
        found = distance(line, zero, 2, 1, p=p)
        assert abs(found.value - integral) <= 3 * found.error and found.error < 0.01
    assert distance(line, zero, 2, 1) == distance(line, zero, 2, 1) != distance(line, zero, 2, 1, seed=1)
    assert distance(line, line, 2, 1) == Distance(0, 0)
    assert Distance(0.5, 0.01).upper == pytest.approx(0.53)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"epsilon": 1e-6}, r"epsilon 1e-06 needs delta of about 1/\d+ or less: n=3 tokens of d=1 features on a grid"),
        ({"epsilon": 0.05, "memory": 10**7}, r"are left$"),
        (
            {"delta": "1/40", "memory": 10**9},
            r"1/40 have 192,000 codes, a layer each, which take about 2\.\d GiB",
        ),
        ({}, "either epsilon or delta"),
        ({"epsilon": 0.1, "delta": "1/2"}, "either epsilon or delta"),
        ({"epsilon": 0.0}, "epsilon must be above 0, got 0"),
        ({"delta": "1/2", "construction": "moon"}, "auto, yun or star, got 'moon'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_built(how, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        approximate(far, 3, 1, "window(1, 1)", **how)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("n", "codes", "size"),
    [
        (30, "32,212,254,720", r"38\d,\d{3}\.\d"),
        (400, r"about 10\^123", r"10\^118"),
        (2000, r"about 10\^605", r"10\^600"),
    ],
)
def test_a_grid_of_any_size_is_refused_in_one_line(n, codes, size):
    message = f"have {codes} codes, a layer each, which take about {size} GiB"
    with pytest.raises(ConfigurationError, match=message) as caught:
        approximate(far, n, 1, "dense()", delta="1/2")
    assert len(str(caught.value)) < 200 and "\n" not in str(caught.value)


def test_the_memory_of_attention_layers_counts():
    """Of two tokens on a grid of 1/3, all but 18 codes' layers are attention, where most of a cycle is idle."""
    cycle = f"interleave({', '.join(['dense()'] * 300)})"
    price = approximate(far, 2, 1, cycle, delta="1/3").price
    assert (price.attention_layers, price.codes) == (901, 18)
    with refusing(ConfigurationError, "construction-too-large", "GiB"):
        approximate(far, 2, 1, cycle, delta="1/3", memory=price.memory - 1)


@pytest.mark.parametrize(("name", "delta"), [("far", "1/6"), ("root", "1/8")])
def test_the_memory_is_known_before(name, delta):
    """Within a factor of two of the bytes of all numbers and Python objects of a model and its table."""
    approximation = build(name, delta=delta)
    tracemalloc.start()
    model = approximation.model()
    objects, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    tensors = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    assert tensors == 8 * (approximation.price.parameters + approximation.n)
    assert (objects + tensors) / 2 <= approximation.price.memory <= 2 * (objects + tensors)


def test_a_star_in_one_pattern_of_a_cycle():
    """The cycle is run as it is: the layers of the other patterns wait."""
    approximation = approximate(far, 2, 1, "interleave(window(), star(), stride(2))", delta="1/3", construction="star")
    model = approximation.model()
    price = approximation.price
    assert (price.attention_layers, price.idle) == (3 * (2 * (3 + 1) + 1), 2 * (2 * (3 + 1) + 1))
    assert [str(layer.layer.pattern) for layer in model.map][:4] == [
        "window()",
        "star()",
        "stride(period=2)",
        "window()",
    ]
    inputs = grid(approximation)
    assert (as_function(model)(inputs) == approximation.exact(inputs)).all()
    assert (approximation.exact(inputs) == approximation.quantised(inputs)).all()


@pytest.mark.parametrize("delta", ["abc", "1/0", "", float("nan")])
def test_a_delta_that_is_no_fraction_is_refused(delta):
    with refusing(PatternError, "delta-form") as caught:
        approximate(far, 2, 1, "dense()", delta=delta)
    assert "\n" not in str(caught.value)


def test_a_float_is_the_fraction_that_is_written():
    assert approximate(far, 2, 1, "dense()", delta=0.1).price.delta == Fraction(1, 10)


def test_codes_beyond_float64_are_refused_by_the_model_only():
    approximation = approximate(crossed, 2, 2, "star()", delta="1/6", construction="star")
    with refusing(ConfigurationError, "codes-too-long", "65", "50"):
        approximation.model()
    inputs = uniform(approximation, 20)
    assert (approximation.exact(inputs) == approximation.quantised(inputs)).all()


@pytest.mark.parametrize("pattern", ["causal()", "window()", "interleave(window(), blocks(2))"])
def test_a_pattern_without_a_theorem_is_refused(pattern):
    with pytest.raises(PatternError, match=r"no theorem certifies .* at length 3 and there is no star at length 4"):
        approximate(far, 3, 1, pattern, delta="1/2")


def test_a_function_that_does_not_fit_is_refused():
    with refusing(ConfigurationError, "function-form", "[1, 3, 1]", "[1, 3]"):
        approximate(lambda inputs: inputs[..., 0], 3, 1, "dense()", delta="1/2")
    with refusing(ConfigurationError, "function-form", "with NaN or Inf"):
        approximate(lambda inputs: inputs * np.nan, 3, 1, "dense()", delta="1/2")
    with refusing(ConfigurationError, "sequence-too-small"):
        approximate(far, 1, 1, "dense()", delta="1/2")
    with refusing(ConfigurationError, "inputs-form", "3", "1"):
        build("far", delta="1/2").exact(np.full((1, 3, 1), 1.5))
    with refusing(ConfigurationError, "distance-arguments", "0.5"):
        build("far", delta="1/2").measure(p=0.5)
