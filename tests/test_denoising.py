"""Span corruption and gap sentences: examples worked out by hand from the papers, and what always holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.training.objectives.gap_sentences import gaps, importance, sentences_of
from asterism.training.objectives.span_corruption import SpanSizes, corrupt_spans


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


# --- span corruption ------------------------------------------------------------------------------------------------


def test_the_example_of_t5():
    """Raffel 2020, figure 2: of all draws of two spans and three tokens, one gives the figure's."""
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]
    names = [*words, "<X>", "<Y>", "<Z>"]
    sizes = SpanSizes(tokens=11, noise=3, spans=2)
    found = set()
    for seed in range(2_000):
        pair = corrupt_spans(np.arange(11), sizes, np.array([11, 12, 13]), generator(seed))
        found.add(tuple(" ".join(names[token] for token in part) for part in pair))
    figure = ("Thank you <X> me to your party <Y> week .", "<X> for inviting <Y> last <Z>")
    assert figure in found
    assert ("<X> inviting me to <Y> party last week .", "<X> Thank you for <Y> your <Z>") not in found  # 4 tokens
    # 2 ways to part 3 tokens into 2 spans; 8 tokens stay, around and between: 8 + 2 choose 2 less those that touch
    assert len(found) == 2 * (9 * 8 // 2)


def test_the_sizes_of_t5():
    """Raffel 2020, section 3.1.4: 512 tokens of input; its code finds 568 of text, 85 of them in 28 spans.

    The code counts an end of the input, so 511 are ours; of the target it counts 114 with an end, ours has the last
    sentinel of the paper instead.
    """
    assert SpanSizes.of(568) == SpanSizes(568, 85, 28)
    sizes = SpanSizes.fitting(511)
    assert sizes == SpanSizes(568, 85, 28) and (sizes.input_tokens, sizes.target_tokens) == (511, 114)


@given(tokens=st.integers(2, 300), seed=st.integers(0, 2**32))
def test_every_token_is_in_the_input_or_in_the_target(tokens, seed):
    sizes = SpanSizes.of(tokens)
    text = np.arange(1_000, 1_000 + tokens)
    before = text.copy()
    sentinels = np.arange(sizes.spans + 3)
    inputs, targets = corrupt_spans(text, sizes, sentinels, generator(seed))
    assert (text == before).all() and inputs.dtype == targets.dtype == np.int64
    assert (len(inputs), len(targets)) == (sizes.input_tokens, sizes.target_tokens)
    # sentinels come in order, as many in the input as there are spans, one more in the target, which is its last
    assert inputs[inputs < 1_000].tolist() == list(range(sizes.spans))
    assert targets[targets < 1_000].tolist() == list(range(sizes.spans + 1)) and targets[-1] == sizes.spans
    # what is behind a sentinel in the target is what it stands for in the input
    places = np.flatnonzero(targets < 1_000)
    spans = [targets[at + 1 : end].tolist() for at, end in zip(places, places[1:], strict=False)]
    assert all(spans)
    restored = [token for one in inputs.tolist() for token in (spans[one] if one < 1_000 else [one])]
    assert restored == text.tolist()
    # no two spans touch
    at = np.flatnonzero(inputs < 1_000)
    assert (np.diff(at) > 1).all()


@given(room=st.integers(2, 600))
def test_the_longest_text_that_fits(room):
    sizes = SpanSizes.fitting(room)
    assert sizes == SpanSizes.of(sizes.tokens) and sizes.input_tokens <= room
    assert SpanSizes.of(sizes.tokens + 1).input_tokens > room


def test_each_place_is_left_out_as_often():
    """In 15 of 100 of 2,000 draws, but near the ends, which fewer spans can cover."""
    sizes = SpanSizes.of(100)
    left_out = np.zeros(100)
    for seed in range(2_000):
        inputs, _ = corrupt_spans(np.arange(100), sizes, np.arange(100, 120), generator(seed))
        left_out[np.setdiff1d(np.arange(100), inputs)] += 1
    assert left_out.sum() == 2_000 * sizes.noise
    assert np.abs(left_out[10:-10] / 2_000 - 0.15).max() < 0.04
    assert left_out[0] > 0 and left_out[-1] > 0


def test_spans_are_a_function_of_the_generator():
    def drawn(seed):
        return corrupt_spans(np.arange(90), SpanSizes.of(90), np.arange(90, 99), generator(seed))

    assert all((one == other).all() for one, other in zip(drawn(3), drawn(3), strict=True))
    assert any(len(one) != len(other) or (one != other).any() for one, other in zip(drawn(3), drawn(4), strict=True))


# --- gap sentences --------------------------------------------------------------------------------------------------


def test_sentences():
    text = " One is here. Two is 3.5 long! Is it?\nfour has no end\n\n  five. "
    assert sentences_of(text) == ["One is here.", "Two is 3.5 long!", "Is it?", "four has no end", "five."]
    assert sentences_of(" \n ") == []


def test_importance_by_hand():
    """ROUGE-1 of the first: 2 words of 3 (the, cat) are in the rest, of 7 words: P 2/3, R 2/7, F1 = 4/10."""
    sentences = ["The cat sat.", "The cat and the dog ran.", "Stop!"]
    assert importance(sentences) == pytest.approx([4 / 10, 4 / 10, 0])
    # "the" comes twice in the second and once in the rest: it counts once; cat, too
    assert importance(["a a a b", "a a c"]) == pytest.approx([2 * 2 / 7, 2 * 2 / 7])
    assert importance(["...", "!"]) == [0, 0]


def test_gaps_by_hand():
    text = [
        "Rain fell.",
        "The mill by the river burned.",
        "Nobody by the river saw the mill.",
        "It was late.",
        "Ann left.",
    ]
    # only the second and the third share words with the rest; 3 of 10 of 5 sentences are 2 (1.5 rounds to even)
    assert gaps(text) == [1, 2]
    assert gaps(text[:3]) == [1]
    assert gaps(["a b", "a c"]) == [0]


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1).map(" ".join), min_size=2, max_size=20))
def test_gaps_are_the_most_important(sentences):
    chosen, scores = gaps(sentences), importance(sentences)
    assert chosen == sorted(set(chosen)) and len(chosen) == max(1, round(0.3 * len(sentences))) < len(sentences)
    others = [scores[number] for number in range(len(sentences)) if number not in chosen]
    assert min(scores[number] for number in chosen) >= max(others)
    assert all(0 <= score <= 1 for score in scores)
