"""docs/reference/zoo.md: what a pattern does to the families of transformers. Works or refused, never wrong."""

import pytest
import transformers
import zoo
from slow_cases import slow_except

pytestmark = pytest.mark.model

FEW = [
    "albert",
    "bert",
    "clip",
    "clip_text_model",
    "distilbert",
    "doge",
    "falcon",
    "gemma3_text",
    "gpt2",
    "gpt_neo",
    "gpt_oss",
    "llama",
    "layoutlm",
    "mistral",
    "t5",
    "vit",
]
VERSION, TABLE = zoo.read_table()


def check(family: str) -> None:
    verdict = zoo.tell(family)
    if transformers.__version__ == VERSION:
        assert TABLE.get(family) == (None if verdict is None else zoo.row(verdict))


@pytest.mark.parametrize("family", slow_except(FEW, *FEW[1::2], "t5"))
def test_a_family_does_what_the_table_says(family: str) -> None:
    check(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in zoo.families() if family not in FEW])
def test_every_family_does_what_the_table_says(family: str) -> None:
    check(family)


def test_the_table_is_of_many_families() -> None:
    assert set(FEW) <= set(TABLE)
    assert sum(row.endswith("| works |") for row in TABLE.values()) >= 40
    assert len(TABLE) >= 100
