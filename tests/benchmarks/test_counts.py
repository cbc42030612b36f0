"""benchmarks/counts.py: each count finds what it is about, and nothing else."""

import importlib

import pytest
from repository import BENCHMARKS


@pytest.fixture
def counts(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("counts")


CASES = {
    "names_given_twice": (
        {"a.py": "class One: ...\nclass Two: ...", "b.py": "class One: ..."},
        ["One: a.py, b.py"],
    ),
    "merges": (
        {
            "ring.py": "def into(a, lse, b, other): return (lse - torch.logaddexp(lse, other)).exp() * a",
            "softmax.py": "def weights(scores, lse): return (scores - lse).exp()",
            "sink.py": "def with_sinks(lse, sinks): return torch.logaddexp(lse, sinks)",
            "memory.py": "def part(lse, memory_lse): return torch.sigmoid(lse - memory_lse)",
            "decay.py": "def rate(steps): return torch.exp(-steps)",
        },
        ["memory.py: part", "ring.py: into"],
    ),
    "sinks": ({"sink.py": "def with_sinks(lse, sinks): return torch.logaddexp(lse, sinks)"}, ["sink.py: with_sinks"]),
    "parsers_of_borders": (
        {
            "borders.py": "def lengths(bounds, tokens):\n    if bounds[0] or bounds[-1] != tokens: raise ValueError",
            "text.py": "def ends(line):\n    return line[-1] != 'x'",
        },
        ["borders.py: lengths"],
    ),
    "shifts": (
        {
            "labels.py": "def shifted(labels): return labels[:, 1:]\ndef shape(labels): return labels.shape[1:]",
            "other.py": "def later(x): return x[:, 1:]",
        },
        ["labels.py: shifted"],
    ),
    "own_caches": (
        {"a.py": "@lru_cache(maxsize=3)\ndef f(): ...\n@remembering\ndef g(): ...\nx = WeakKeyDictionary[str, int]()"},
        ["a.py: f", "a.py: line 5"],
    ),
    "kept_in_one_store": (
        {"a.py": "@remembering\ndef g(): ...\n@remembering_few(8)\ndef h(): ..."},
        ["a.py: g", "a.py: h"],
    ),
    "cached_properties": ({"a.py": "class A:\n    @cached_property\n    def p(self): ..."}, ["a.py: p"]),
    "names_of_ranks": (
        {
            "parallel/ring.py": "import torch.distributed",
            "layers/a.py": "def f(context): return context.rank",
            "layers/b.py": "'A rank, a mesh.'\nfrom scipy.stats import rankdata\nranked = rankdata",
            "training/c.py": "from torch.distributed.fsdp import fully_shard",
        },
        ["layers/a.py: rank", "training/c.py: torch.distributed.fsdp"],
    ),
    "circles": (
        {
            "training/run/a.py": "from asterism.training.tasks.task import Task",
            "training/tasks/task.py": "def f():\n    from asterism.training.run.a import b",
            "training/data/d.py": "from asterism.training.run.a import b",
        },
        ["run and tasks"],
    ),
    "without_shapes": (
        {"a.py": "def f(x: Tensor):\n    'float32 [B, N]'\ndef g(x: Tensor):\n    'Nothing.'"},
        ["a.py:3 g: shape and dtype"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_count_finds_what_it_is_about(name, counts, tmp_path):
    files, expected = CASES[name]
    for file, text in files.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert getattr(counts, name)(counts.Source.read(tmp_path)) == expected


def test_two_sources_are_two_columns(counts, tmp_path, capsys):
    for name, text in (("before", "class A: ..."), ("after", "x = 1\ny = 2")):
        (tmp_path / name / "src" / "package").mkdir(parents=True)
        (tmp_path / name / "tests").mkdir()
        (tmp_path / name / "src" / "package" / "a.py").write_text(text)
    (tmp_path / "before" / "tests" / "test_a.py").write_text("\n" * 601)
    counts.main([tmp_path / name / "src" / "package" for name in ("before", "after")])
    shown = capsys.readouterr().out
    assert "      1      2  lines of Python\n" in shown
    assert "      1      0 test files above 600 lines\n" in shown
