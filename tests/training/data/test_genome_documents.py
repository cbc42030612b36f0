"""Documents of genomes: sizes as the paper has them, each letter from where it should be, and none from elsewhere."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asterism.training.data.genomes import documents
from asterism.training.data.genomes.documents import joined, scored_documents, training_documents
from asterism.training.data.genomes.intervals import Interval

LENGTH = 400_000
MADE = np.random.default_rng(0).choice(np.frombuffer(b"ACGT", dtype=np.uint8), LENGTH)
TEXT = MADE.tobytes().decode()


class Made:
    """One sequence, "one"; remembers what was read of it."""

    def __init__(self):
        self.asked = []

    def read(self, name, start, stop):
        assert name == "one" and 0 <= start < stop <= LENGTH
        self.asked.append((start, stop))
        return MADE[start:stop]


def other_strand(text: str) -> str:
    return text[::-1].translate(str.maketrans("ACGT", "TGCA"))


def test_documents_have_the_sizes_of_the_paper():
    letters = Made()
    found = list(training_documents(letters, [Interval("one", 0, LENGTH)], seed=3))
    sentences = [one.split("\n") for one in found]
    starts = [start for start, _ in letters.asked]
    passes = [at for at, start in enumerate(starts) if not at or start < starts[at - 1]]
    assert len(passes) == 10
    assert len({starts[at] for at in passes}) == 10 and all(0 <= starts[at] <= 5_000 for at in passes)
    ends = {at - 1 for at in passes[1:]} | {len(sentences) - 1}
    for at, document in enumerate(sentences):
        lengths = [len(sentence) for sentence in document]
        assert all(500 <= length <= 1_000 for length in (lengths[:-1] if at in ends else lengths))
        assert len(lengths) <= 100 and (at in ends or len(lengths) >= 50)
        assert "".join(document) == TEXT[slice(*letters.asked[at])]
    every = {len(sentence) for at, document in enumerate(sentences) if at not in ends for sentence in document}
    assert min(every) < 510 and max(every) > 990
    for first, last in zip(passes, [*passes[1:], len(sentences)], strict=True):
        assert "".join("".join(one) for one in sentences[first:last]) == TEXT[starts[first] :]


@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, LENGTH), min_size=2, max_size=6, unique=True))
def test_what_is_scored_is_read_once_and_nothing_else_is(seed, cuts):
    stretches = [Interval("one", *sorted(cuts)[at : at + 2]) for at in range(0, len(cuts) - 1, 2)]
    letters = Made()
    found = "".join(scored_documents(letters, stretches, seed)).replace("\n", "")
    assert found == "".join(TEXT[one.start : one.end] for one in stretches)
    inside = np.zeros(LENGTH, dtype=bool)
    for one in stretches:
        inside[one.start : one.end] = True
    list(training_documents(letters, stretches, seed, passes=2))
    assert all(inside[start:stop].all() for start, stop in letters.asked)


def test_documents_are_a_function_of_the_seed():
    stretches = [Interval("one", 0, 90_000), Interval("one", 200_000, 290_000)]
    first, again, other = (list(training_documents(Made(), stretches, seed, passes=2)) for seed in (1, 1, 2))
    assert first == again and first != other
    assert list(scored_documents(Made(), stretches, 1)) != list(scored_documents(Made(), stretches, 2))


def test_the_other_strand_is_read_with_equal_probability():
    letters = Made()
    found = list(training_documents(letters, [Interval("one", 0, LENGTH)], seed=0, both_strands=True))
    turned = 0
    for document, (start, stop) in zip(found, letters.asked, strict=True):
        text, sentences = TEXT[start:stop], document.split("\n")
        is_turned = "".join(sentences) == other_strand(text)
        assert is_turned or "".join(sentences) == text
        turned += is_turned
        assert all(len(one) <= 1_000 for one in sentences)
    assert 0.25 < turned / len(found) < 0.75


def test_a_sentence_is_whole_on_either_strand():
    bounds = np.array([10, 13, 20, 21])
    text = documents._text(Made(), "one", bounds, turned=False)
    assert text == f"{TEXT[10:13]}\n{TEXT[13:20]}\n{TEXT[20:21]}"
    turned = documents._text(Made(), "one", bounds, turned=True)
    assert turned.split("\n") == [other_strand(sentence) for sentence in text.split("\n")][::-1]


def test_blocks_that_lie_next_to_each_other_are_one_stretch():
    blocks = [("a", 0, 5), ("a", 5, 9), ("a", 10, 12), ("b", 12, 20), ("b", 20, 21)]
    assert joined(Interval(*one) for one in blocks) == [
        Interval("a", 0, 9),
        Interval("a", 10, 12),
        Interval("b", 12, 21),
    ]
    assert joined([]) == []
