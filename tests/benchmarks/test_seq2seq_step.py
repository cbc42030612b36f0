"""benchmarks/seq2seq_step.py: its contenders are of one size, and what takes too much memory is said to be cut."""

from types import ModuleType

import pytest
import torch
from repository import ROOT


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import seq2seq_step

    return seq2seq_step


@pytest.mark.model
def test_ours_has_the_parameters_of_hugging_faces(benchmark: ModuleType) -> None:
    with torch.device("meta"):
        ours = benchmark.ours(4096)
        theirs = benchmark.bigbird_pegasus(4096)
    ours.tie_weights()
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == counts[1]
    patterns = ours.config.layer_patterns()
    keys = [pattern.allows([[2000]], range(4096), 4096, 0).sum() for pattern in patterns]
    blocks = 2 + 3 + theirs.config.num_random_blocks
    assert theirs.config.attention_type == "block_sparse" and keys == [blocks * benchmark.BLOCK] * len(patterns)


def test_what_would_take_too_much_is_cut(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that grow as the square: 1 GiB, 4 GiB, and then 16 GiB are not tried."""
    tried = []

    def alone(question: str, name: str, length: int, dtype: str) -> int:
        tried.append(length)
        return length**2 * 2**10

    monkeypatch.setattr(benchmark, "alone", alone)
    rows = benchmark.peaks("a", "float32", (1024, 2048, 4096))
    assert tried == [1024, 2048] and rows[2]["bytes"] is None
    assert rows[2]["cut_at_bytes"] == pytest.approx(16 * 2**30)
    assert benchmark._cell(rows[2]) == "(about 16 GiB)"
    rows[0]["seconds"] = [3.0, 1.0, 2.0, 4.0]
    assert benchmark._cell(rows[0]) == "2.50 s, 1,024 MiB"
