"""The model of order k against its definition, counted in dictionaries, and against a source whose entropy is known."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusing

from asterism.errors import ConfigurationError, DataError
from asterism.training.data.genomes import ngram
from asterism.training.data.genomes.ngram import count, yardsticks

LETTERS = "ACGTN"
ALL = st.text(alphabet=LETTERS, max_size=60)


def values(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def other_strand(text: str) -> str:
    return "".join({"A": "T", "C": "G", "G": "C", "T": "A", "N": "N"}[one] for one in reversed(text))


def defined(texts: list[str], text: str, trusts: np.ndarray) -> np.ndarray:
    """float64 [bases, 5]: the module's equation, place by place, from counted strings."""
    counts = Counter(
        (one[at - length : at], one[at])
        for one in texts
        for at in range(len(one))
        for length in range(min(at + 1, len(trusts)))
    )
    rows = []
    for at in range(len(text)):
        row = [1 / 5] * 5
        for length in range(min(at + 1, len(trusts))):
            came = [counts[text[at - length : at], letter] for letter in LETTERS]
            trust = trusts[length]
            row = [(one + trust * shorter) / (sum(came) + trust) for one, shorter in zip(came, row, strict=True)]
        rows.append(row)
    return np.array(rows).reshape(-1, 5)


@given(texts=st.lists(ALL.filter(len), min_size=1, max_size=4), text=ALL, order=st.integers(0, 20), both=st.booleans())
def test_probabilities_are_those_of_the_definition(texts, text, order, both):
    model = count(map(values, texts), order, both_strands=both)
    found = model.probabilities(values(text))
    strands = [*texts, *(map(other_strand, texts) if both else ())]
    np.testing.assert_allclose(found, defined(strands, text, model.trusts), rtol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    of_bases = [found[at, LETTERS.index(one)] for at, one in enumerate(text)]
    np.testing.assert_allclose(model.bits(values(text))[-1], -np.log2(of_bases), rtol=1e-12)


def test_a_lower_order_is_a_row_of_a_higher_one():
    texts, text = ["ACGTTGCATTACGGA" * 9, "GGGATTACAGATTACA"], "GATTACAACGTTGCA"
    high, low = (count(map(values, texts), order) for order in (7, 3))
    np.testing.assert_array_equal(high.bits(values(text))[:4], low.bits(values(text)))


def test_trust_is_what_makes_left_out_bases_likeliest():
    """By the definition: of each base of the training pieces, under the counts of all others."""
    text = "ACGTTGCATTACGGATTACAGG" * 6 + "TTAGACCAGGATAC"
    model = count([values(text)], 2, both_strands=False)
    for order in range(3):
        likelihood = {}
        at = int(np.flatnonzero(model.trusts[order] == ngram._TRUSTS)[0])
        for trust in ngram._TRUSTS[max(0, at - 1) : at + 2]:
            trusts = np.array([*model.trusts[:order], trust])
            likelihood[trust] = sum(np.log(left_out(text, place, trusts)) for place in range(len(text)))
        assert max(likelihood, key=likelihood.get) == model.trusts[order], order


def left_out(text: str, at: int, trusts: np.ndarray) -> float:
    """The probability of one base of a text, counted without it."""
    probability = 1 / 5
    for length in range(min(at + 1, len(trusts))):
        context = text[at - length : at]
        came = Counter(
            text[other] for other in range(length, len(text)) if other != at and text[other - length : other] == context
        )
        probability = (came[text[at]] + trusts[length] * probability) / (came.total() + trusts[length])
    return probability


def test_a_source_of_order_two_is_learned_to_its_entropy_and_high_orders_cost_little():
    random = np.random.default_rng(0)
    table = random.dirichlet([0.4] * 4, 16)
    draws, state, drawn = random.random(60_000), 0, []
    limits = table.cumsum(axis=1)
    for draw in draws.tolist():
        base = min(int(np.searchsorted(limits[state], draw)), 3)
        drawn.append((state, base))
        state = (state * 4 + base) % 16
    text = np.frombuffer(b"ACGT", dtype=np.uint8)[[base for _, base in drawn]]
    held = 10_000
    entropy = -np.mean([np.log2(table[state, base]) for state, base in drawn[-held:]])
    bits = count([text[:-held]], 12, both_strands=False).bits_per_base([text[-held:]])
    assert bits[2] == pytest.approx(entropy, abs=0.01)
    assert bits[1] > entropy + 0.05
    assert bits[12] == pytest.approx(entropy, abs=0.02)


def test_both_strands_know_what_stands_on_the_other():
    random = np.random.default_rng(1)
    text = "".join(random.choice(list("ACGT"), 3_000))
    piece, other = values(text * 2), values(other_strand(text))  # twice: what is nowhere repeated teaches no trust
    one, both = (count([piece], 12, both_strands=strands).bits_per_base([other])[-1] for strands in (False, True))
    assert both < 0.5 < 1.9 < one


def test_yardsticks_are_named_by_their_order():
    piece = values("ACGTTGCATTACGGATTACA" * 20)
    bits = count([piece], 5).bits_per_base([piece])
    assert yardsticks([piece], [piece], orders=(5, 0)) == {"order 5": bits[5], "order 0": bits[0]}


def test_batches_change_nothing(monkeypatch):
    model, piece = count([values("ACGTTGCATTACGGATTACA" * 20)], 6), values("GATTACANNACGTTGCA" * 5)
    whole = model.bits(piece)
    monkeypatch.setattr(ngram, "_AT_ONCE", 7)
    np.testing.assert_array_equal(model.bits(piece), whole)


def test_refusals(monkeypatch):
    with refusing(ConfigurationError, "order-range", "21", "20"):
        count([values("ACGT")], 21)
    with refusing(DataError, "bad-letter", "3", "b'R'"):
        count([values("ACRT")], 2)
    with refusing(DataError, "no-bases"):
        count([values("")], 2)
    with refusing(DataError, "no-bases"):
        count([values("A")], 2).bits_per_base([values("")])
    monkeypatch.setattr(ngram, "MOST_BASES", 7)
    with refusing(DataError, "too-many-bases", "7", ", on both strands"):
        count([values("ACGT")], 2)
    count([values("ACGT")], 2, both_strands=False)
