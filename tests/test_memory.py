"""What would need more memory than there is, is refused before it is built; what is kept stays within its bound."""

from pathlib import Path

import pytest

from asterism import memory

BERT = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "vocab_size": 30_522}


def test_the_memory_of_this_machine_is_that_of_its_files():
    lines = Path("/proc/meminfo").read_text().splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    assert 0 < memory.machine_memory() <= 1024 * (kilobytes["MemTotal"] + kilobytes["SwapTotal"])


def test_a_control_group_limits_it(monkeypatch):
    monkeypatch.setattr(memory, "_installed", lambda: (1000, 100))
    for limits, there in (([], 1100), ([2**63], 1100), ([500, 700], 600)):
        monkeypatch.setattr(memory, "_group_limits", lambda limits=limits: iter(limits))
        assert memory.machine_memory() == there


def test_what_does_not_fit_is_said_with_both_figures(monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: 24_600_000_000)
    assert memory.shortage(24_600_000_000, "it") is None
    assert memory.shortage(2_730_000_000_000_000, "the batch") == (
        "the batch needs at least 2.73 PB of memory, and this machine has 24.6 GB"
    )


def test_a_published_model_is_not_overrated():
    assert 0.1 * 4 * 110e6 < memory.least_model_memory(BERT) < 4 * 110e6
    albert = {"num_hidden_layers": 12, "hidden_size": 4096, "intermediate_size": 16384, "embedding_size": 128}
    albert |= {"vocab_size": 30_000, "num_hidden_groups": 1}  # whose layers are one
    assert memory.least_model_memory(albert) < 1.3 * 4 * 223e6


@pytest.mark.parametrize(
    "changed",
    [{"num_hidden_layers": 10**7}, {"hidden_size": 10**7}, {"num_labels": 10**9}, {"vocab_size": 10**9}],
    ids=str,
)
def test_sizes_that_no_machine_holds_are_known_by_arithmetic(changed):
    assert memory.least_model_memory(BERT | changed) > 1e11
    assert memory.least_model_memory({"text_config": BERT | changed}) > 1e11


def test_any_document_can_be_asked_about():
    odd = {"hidden_size": "wide", "num_labels": None, "vocab_size": -1, "n_layer": 1.5, "d_model": {"a": [1]}}
    assert memory.least_model_memory(odd) == 0
