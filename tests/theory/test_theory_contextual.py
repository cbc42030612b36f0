"""Contextual mappings: whole grids enumerated, layer counts by formula, collisions where they must be."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("scipy")

from asterism import patterns
from asterism.errors import PatternError
from asterism.theory import certify, star_mapping, yun_mapping
from asterism.theory.approximation.contextual import Idle

GRIDS = [(2, 1, 2), (2, 1, 3), (2, 2, 2), (2, 3, 2), (3, 1, 2), (3, 1, 3), (3, 1, 4), (3, 2, 2), (4, 1, 2), (4, 1, 3)]
"""(n, d, 1 / delta)"""

CYCLES = {
    "star": "star_transformer()",
    "window": "yun_window(2)",
    "fixed": "interleave(blocks(2), columns(2, first=1) | window())",
    "strided": "interleave(window(1, 1), stride(2))",
    "dense": "dense()",
}


@pytest.mark.parametrize(("n", "d", "steps"), GRIDS)
@pytest.mark.parametrize(
    "text",
    [
        "star()",
        "star_transformer()",
        "dense()",
        "bigbird(block=1, random=0)",
        "bigbird(block=1, random=1, seed=3)",
        "yun_star()",
        "global_tokens((1,)) | window()",
        "global_tokens((2,)) | window()",
    ],
)
def test_star_mapping_on_whole_grids(n: int, d: int, steps: int, text: str):
    mapping = star_mapping(text, n, d, Fraction(1, steps))
    result = mapping.check()
    assert result.distinct, str(result)
    assert (result.inputs, result.codes) == (steps ** (n * d), n * steps ** (n * d))
    assert len(mapping.layers) == n * (steps**d + 1) + 1


@pytest.mark.parametrize(("n", "d", "steps"), GRIDS[:6])
def test_star_mapping_in_a_cycle(n: int, d: int, steps: int):
    """The star is in the second pattern, with its hub last; the layers of the other patterns are idle."""
    mapping = star_mapping("interleave(window(), yun_star(), stride(2))", n, d, Fraction(1, steps))
    assert mapping.check().distinct
    assert mapping.tokens == tuple(range(n))
    assert len(mapping.layers) == 3 * (n * (steps**d + 1) + 1)
    assert [layer.pattern for layer in mapping.layers] == [0, 1, 2] * (len(mapping.layers) // 3)
    assert all(isinstance(layer, Idle) == (layer.pattern != 1) for layer in mapping.layers)


@pytest.mark.parametrize(
    ("n", "d", "steps"), [*GRIDS, (5, 1, 2), (6, 1, 3), (4, 2, 2), (5, 2, 2), (1, 2, 3), (2, 1, 7)]
)
@pytest.mark.parametrize("name", CYCLES)
def test_yun_mapping_on_whole_grids(n: int, d: int, steps: int, name: str):
    certificate = certify(CYCLES[name], n)
    if not certificate.yun:
        assert name == "fixed"
        assert n % 2  # w does not divide n
        with pytest.raises(PatternError, match="is not certified for Assumption 1"):
            yun_mapping(CYCLES[name], n, d, Fraction(1, steps))
        return
    mapping = yun_mapping(CYCLES[name], n, d, f"1/{steps}")
    result = mapping.check()
    assert result.distinct, str(result)
    assert len(mapping.layers) == len(certificate.graphs) * (n - 1) * steps**d + certificate.hops


def test_the_path_need_not_be_the_natural_order():
    """A pattern whose only paths are far from 0, 1, 2, ...; and codes that follow gamma's recurrence."""
    order = [2, 0, 3, 1]
    dense = np.eye(4, dtype=bool)
    dense[order[1:], order[:-1]] = True
    dense[order[0], order[-1]] = True
    pattern = patterns.explicit(dense)
    assert certify(pattern, 4).path.path.tolist() in [order[i:] + order[:i] for i in range(4)]
    assert yun_mapping(pattern, 4, 1, "1/3").check().distinct


def test_shifts_follow_the_recurrence():
    """Before the global shifts: z_gamma(i) = delta^-d z_gamma(i-1) - (delta^-d - 1) l_gamma(i), from l_gamma(1)."""
    n, d, steps = 4, 1, 3
    mapping = yun_mapping("yun_window(2)", n, d, Fraction(1, steps))
    hops = certify("yun_window(2)", n).hops
    shifts = replace(mapping, layers=mapping.layers[:-hops])
    inputs = np.array([[[2], [0], [1], [2]]])
    codes = shifts.codes(inputs)[0]
    unit = 2 * steps
    start = [unit * offset + 2 * int(value) for offset, value in zip([n - 1, 0, 1, 2], inputs[0, :, 0], strict=True)]
    expected = [start[0]]
    for own in start[1:]:
        expected.append(steps * expected[-1] - (steps - 1) * own)
    assert codes.tolist() == expected


def test_numbers_outgrow_floating_point():
    """Codes of a small mapping need more than the 53 bits of a float64, and rounding makes them collide."""
    mapping = yun_mapping("yun_window(2)", 5, 2, "1/2")
    inputs = np.indices((2,) * 10).reshape(10, -1).T.reshape(-1, 5, 2)
    codes = mapping.codes(inputs)
    assert {type(code) for code in codes.ravel().tolist()} == {int}
    assert max(code.bit_length() for code in codes.ravel().tolist()) > 53
    assert len(set(codes.ravel().tolist())) == codes.size
    assert len(np.unique(codes.astype(np.float64))) < codes.size


# --- where it must fail -----------------------------------------------------------------------------------------------


def collides(result) -> str:
    assert not result.distinct
    collision = result.collision
    assert (collision.first_input, collision.first_token) != (collision.second_input, collision.second_token)
    assert "have the code" in str(result)
    return str(result)


def test_the_hub_alone_collides_when_delta_is_too_large():
    """Known from executing the construction: at (3, 1, 1/2) the hub's own code is not one to one; at 1/3 it is."""
    message = collides(star_mapping("star()", 3, 1, "1/2").check(positions=(0,)))
    assert (
        message
        == "8 inputs, 8 codes: collision: token 0 of [0; 1/2; 0] and token 0 of [1/2; 0; 1/2] have the code 32480"
    )
    assert star_mapping("star()", 3, 1, "1/3").check(positions=(0,)).distinct


@pytest.mark.parametrize("make", [star_mapping, yun_mapping])
def test_a_delta_larger_than_that_of_the_inputs(make):
    collides(make("dense()", 3, 1, "1/2").check(delta="1/4"))
    assert make("dense()", 3, 1, "1/4").check().distinct


@pytest.mark.parametrize(
    ("text", "hops"),
    [
        ("window(1)", 5),
        ("causal()", 5),
        ("window(1, 1)", 2),
        ("interleave(blocks(2), columns(2, first=1) | window())", 4),
    ],
)
def test_a_pattern_without_full_reach(text: str, hops: int):
    n = 5
    mapping = yun_mapping(text, n, 1, "1/2", path=range(n), hops=hops)
    collides(mapping.check())


def test_a_pattern_without_a_path():
    collides(yun_mapping("star()", 5, 1, "1/2", path=range(5), hops=2).check())


def test_a_pattern_without_self_loops():
    loopless = "dense() & ~window()"
    collides(yun_mapping(loopless, 4, 1, "1/2", path=range(4), hops=1).check())


@pytest.mark.parametrize(("make", "dropped"), [(star_mapping, 2), (yun_mapping, 4)])
def test_the_checker_sees_missing_shifts(make, dropped: int):
    """Without the shifts of a token, the codes do not hold it."""
    mapping = make("star_transformer()", 4, 1, "1/2")
    assert mapping.check().distinct
    collides(replace(mapping, layers=mapping.layers[dropped:]).check())


def test_a_float_is_the_fraction_that_is_written():
    assert yun_mapping("dense()", 2, 1, 0.1).delta == Fraction(1, 10)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: yun_mapping("dense()", 3, 1, "2/3"), "1 over a whole number of at least 2, got delta=2/3"),
        (lambda: yun_mapping("dense()", 3, 1, "1"), "at least 2, got delta=1"),
        (lambda: yun_mapping("dense()", 3, 1, "abc"), "delta must be a fraction such as '1/4', got 'abc'"),
        (lambda: star_mapping("dense()", 3, 1, "1/0"), "delta must be a fraction such as '1/4', got '1/0'"),
        (lambda: yun_mapping("dense()", 3, 1, "1/2").check(delta="x"), "delta must be a fraction such as '1/4', got"),
        (lambda: star_mapping("dense()", 3, 0, "1/2"), "at least one token with one feature, got n=3 and d=0"),
        (lambda: star_mapping("dense()", 0, 1, "1/2"), "at least one token with one feature, got n=0 and d=1"),
        (lambda: star_mapping("window(1, 1)", 3, 1, "1/2"), "not certified for Theorem 1 of Zaheer 2020"),
        (lambda: yun_mapping("star()", 4, 1, "1/2"), "not certified for Assumption 1 of Yun 2020, see explain"),
        (lambda: yun_mapping("dense()", 9, 3, "1/9").check(), r"the grid has 9\^27 inputs of 9 codes each"),
        (lambda: yun_mapping("dense()", 9, 9, "1/9"), r"once per value, 9\^9 of them, but at most 65,536 layers"),
        (
            lambda: yun_mapping("interleave(dense(), dense(), dense())", 3, 2, "1/128"),
            r"once per value, 128\^2 of them, in a cycle of 3 patterns, but at most 65,536 layers",
        ),
        (lambda: star_mapping("interleave(dense(), dense())", 2, 2, "1/150"), "in a cycle of 2 patterns, but at most"),
        (
            lambda: yun_mapping("dense()", 3, 1, "1/2").check(delta="1/3"),
            "must divide the construction's, 1/2, got 1/3",
        ),
        (lambda: yun_mapping("bigbird(block=1, heads=2)", 9, 1, "1/2"), "heads of the construction share one pattern"),
    ],
)
def test_refusals(call, message: str):
    with pytest.raises(PatternError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
