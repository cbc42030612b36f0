"""Every block of code and commands, on every page: it runs, and prints what the page shows, or says why it does not."""

import re
from pathlib import Path

import pytest
from page_blocks import PAGES, Block, Reader, blocks, check, commands
from repository import DOCS, ROOT

RUN_ELSEWHERE = {
    "README.md": "test_readme.py",
    "howto/finetuning.md": "test_finetuning_docs.py",
    "howto/genomes.md": "test_genome_docs.py",
    "howto/report.md": "test_report_docs.py",
    "tutorial.md": "test_tutorial.py",
}
"""Pages that another test runs from top to bottom, because it also looks at what has been made."""

NEED_MODELS = (
    "howto/embed.md",
    "howto/huggingface.md",
    "howto/reproduce.md",
    "howto/search.md",
    "howto/trees.md",
    "howto/trainer.md",
    "reference/models.md",
    "reference/promises.md",
    "reference/verbs.md",
)
"""Pages that build models or read configurations of runs."""

SLOW = (
    "howto/evaluation.md",
    "howto/export.md",
    "howto/instruct.md",
    "howto/long-documents.md",
    "howto/predict.md",
    "howto/runs.md",
    "howto/sparsify.md",
)
"""Pages that train, or start processes that load PyTorch: `make pages` runs them."""


def name(page: Path) -> str:
    return str(page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT))


def runnable() -> list[object]:
    marks = {page: pytest.mark.model for page in NEED_MODELS} | {page: pytest.mark.slow for page in SLOW}
    return [
        pytest.param(page, id=name(page), marks=marks.get(name(page), ()))
        for page in PAGES
        if name(page) not in RUN_ELSEWHERE and any(block.reason is None for block in blocks(page))
    ]


@pytest.mark.parametrize("page", runnable())
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary):
    monkeypatch.chdir(tmp_path)
    Reader(page, monkeypatch, capsysbinary).run()


@pytest.mark.parametrize("page", [pytest.param(page, id=name(page)) for page in PAGES])
def test_blocks_that_are_not_run_could_be(page: Path):
    for block in blocks(page):
        if block.kind == "python":
            compile(block.text, name(page), "exec")
        elif block.kind in ("sh", "console"):
            for command, _ in commands(block):
                check(command)


def test_reasons_stand_above_blocks():
    """A reason with a line between it and its block would excuse nothing."""
    for page in PAGES:
        given = len(re.findall(r"^<!-- not run: ", page.read_text(), re.MULTILINE))
        assert given == sum(block.reason is not None for block in blocks(page)), name(page)


def test_pages_named_here_exist():
    assert {*RUN_ELSEWHERE, *NEED_MODELS, *SLOW} <= {name(page) for page in PAGES}
    assert all((Path(__file__).parent / test).exists() for test in RUN_ELSEWHERE.values())


def reader(tmp_path, monkeypatch, capsysbinary) -> Reader:
    monkeypatch.chdir(tmp_path)
    return Reader(tmp_path / "page.md", monkeypatch, capsysbinary)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("python", "assert 1 + 1 == 3\n"),
        ("sh", "asterism show 'window(1' -n 4\n"),
        ("console", "$ asterism show 'causal()' -n 2\nsomething else\n"),
        ("sh", "make everything\n"),
        ("sh", "pip install '.[everything]'\n"),
        ("sh", "python benchmarks/everything.py\n"),
        ("sh", "cat missing.txt\n"),
        ("sh", "curl http://127.0.0.1\n"),
        ("ruby", "puts 1\n"),
    ],
)
def test_a_block_that_is_wrong_is_noticed(kind, text, tmp_path, monkeypatch, capsysbinary):
    with pytest.raises(AssertionError):
        reader(tmp_path, monkeypatch, capsysbinary).one(Block(kind, text, 1, None))


def test_commands_are_read_as_a_shell_reads_them(tmp_path, monkeypatch, capsysbinary):
    shell = reader(tmp_path, monkeypatch, capsysbinary)
    shell.one(Block("sh", "printf 'a|b\\n' | cat > out.txt  # a comment\nprintf c \\\n  | cat > more.txt\n", 1, None))
    assert Path("out.txt").read_text() == "a|b\n" and Path("more.txt").read_text() == "c"
    shell.one(Block("console", "$ cat out.txt\na|b\n$ asterism show 'causal() | dense()' -n 1 > drawn.txt\n", 1, None))
    assert Path("drawn.txt").read_text().startswith("causal() | dense(), 1 token")
