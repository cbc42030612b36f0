"""The pages of reference are true of the code: verbs, settings, patterns, the run folder, errors."""

import re

import pytest
from error_codes import raised
from pattern_pictures import GROUPS
from repository import DOCS

import asterism
from asterism import errors
from asterism.cli.parser import UsageError
from asterism.patterns.text import VOCABULARY

REFERENCE = DOCS / "reference"


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    text = (REFERENCE / page).read_text().split(f"{heading}\n", 1)[1]
    table = re.search(r"^\|.*?(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[0].splitlines()[2:]]


@pytest.mark.model
def test_pages_that_the_code_dictates_are_written_anew():
    from reference_pages import pages  # needs the settings of runs

    every = pages()
    old = [path.name for path, text in every.items() if not path.exists() or path.read_text() != text]
    assert old == [], "run `make reference`, and commit what it writes"
    assert {*(REFERENCE / "pictures").iterdir()} <= every.keys()


def test_every_pattern_has_its_picture():
    named = [name for group in GROUPS.values() for name in group]
    drawn = VOCABULARY.keys() - {"merge", "split_heads", "selected"}  # what is selected depends on queries and keys
    assert sorted(named) == sorted(drawn)


@pytest.mark.model
def test_the_run_folder_is_described_whole():
    from asterism.training.run import folder  # takes seconds to import

    listed = [re.sub(r"[`/]", "", row[0]) for row in rows("run-folder.md", "# Run folder")]
    told = re.findall(r"^    (\S+?)/?(?: {2,}| )\S", folder.__doc__.split("Invariant")[0], re.MULTILINE)
    assert listed == [name for name in told if not name[0].isspace()]
    fields = [row[0].strip("`") for row in rows("run-folder.md", "## run.json")]
    assert sorted(fields) == sorted([*folder.RECORDED, "earlier", "machine", "model_files", "peak_memory", "sha256"])


def test_exit_codes_are_those_of_the_classes():
    told = {name: int(row[0]) for row in rows("errors.md", "## Exit codes") for name in re.findall(r"`(\w+)`", row[2])}
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.AsterismError)]
    assert told == {one.__name__: one.exit_code for one in (*classes, UsageError)}


def test_common_messages_are_raised_with_their_codes():
    made = list(raised(REFERENCE.parents[1] / "src" / "asterism"))
    for contains, code, _ in rows("errors.md", "## What common messages mean"):
        messages = [message for one in made if one.code == code.strip("`") for message in one.messages]
        assert any(contains.strip("`") in message for message in messages), (contains, code, messages)


def test_public_names_have_a_place():
    """What `asterism` exports is documented on a page of reference."""
    documented = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    missing = [name for name in asterism.__all__ if not re.search(rf"^::: asterism\.(\w+\.)*{name}$", documented, re.M)]
    assert missing == ["patterns"]  # a module, whose names are
