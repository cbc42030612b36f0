"""The papers whose experiments are made again."""

from typing import NamedTuple


class Paper(NamedTuple):
    """A paper: a short name for people, its authors, title, and address without the scheme."""

    short: str
    authors: str
    title: str
    link: str


PAPERS = {
    "child-2019": Paper(
        "Sparse Transformers",
        "Child, Gray, Radford, Sutskever 2019",
        "Generating Long Sequences with Sparse Transformers",
        "arxiv.org/abs/1904.10509",
    ),
    "yun-2020": Paper(
        "O(n) connections",
        "Yun, Chang, Bhojanapalli, Rawat, Reddi, Kumar 2020",
        "O(n) Connections are Expressive Enough: Universal Approximability of Sparse Transformers",
        "arxiv.org/abs/2006.04862",
    ),
    "zaheer-2020": Paper(
        "BigBird", "Zaheer et al. 2020", "Big Bird: Transformers for Longer Sequences", "arxiv.org/abs/2007.14062"
    ),
    "lee-thorp-2021": Paper(
        "FNet",
        "Lee-Thorp, Ainslie, Eckstein, Ontañón 2021",
        "FNet: Mixing Tokens with Fourier Transforms",
        "arxiv.org/abs/2105.03824",
    ),
    "tay-2020": Paper(
        "Long Range Arena",
        "Tay et al. 2020",
        "Long Range Arena: A Benchmark for Efficient Transformers",
        "arxiv.org/abs/2011.04006",
    ),
    "sukhbaatar-2019": Paper(
        "Persistent memory",
        "Sukhbaatar, Grave, Lample, Jégou, Joulin 2019",
        "Augmenting Self-attention with Persistent Memory",
        "arxiv.org/abs/1907.01470",
    ),
    "arora-2023": Paper(
        "Recall",
        "Arora et al. 2023",
        "Zoology: Measuring and Improving Recall in Efficient Language Models",
        "arxiv.org/abs/2312.04927",
    ),
}
