"""Figures that were measured, and the file that keeps them, which anybody may have damaged."""

import logging
import os

import pytest
import torch
import torch._dynamo.testing
from priced import RATES, start_again, the_file

from asterism.kernels.choice import figures, prices
from asterism.kernels.choice.figures import Figures

pytest_plugins = ("priced",)
pytestmark = pytest.mark.usefixtures("unmeasured")


def test_figures_are_of_a_kernel_and_a_pytorch(monkeypatch):
    names = {figures.file_name(1), figures.file_name(2)}
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "0.0")
        names.add(figures.file_name(1))
    monkeypatch.setattr(figures, "identity", lambda: "another kernel")
    names.add(figures.file_name(1))
    assert len(names) == 4


def test_a_folder_that_knows_no_locks_is_no_obstacle(counted, monkeypatch):
    """Some file systems of networks lock nothing, and some folders cannot be listed."""

    def refuse(*arguments, **named):
        raise OSError("no locks available")

    monkeypatch.setattr(figures, "lock", refuse)
    assert prices.matrix_rates() == RATES
    start_again(monkeypatch)
    the_file().unlink()
    monkeypatch.setattr(figures.os, "open", refuse)
    with figures.alone():
        pass


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("[]", "damaged"),
        ("{}", "damaged"),
        ("\0" * 99, "Expecting value"),
        ("[" * 100_000, "recursion"),
        ('{"version": 2}', "of version 2"),
        ('{"version": "1"}', "damaged"),
        ('{"version": 1, "matrix_rates": 3}', "int"),
        ('{"version": 1, "matrix_rates": {"float32": 1.0}}', "holds float32"),
        ('{"version": 1, "matrix_rates": {"float32": NaN, "bfloat16": 1.0}}', "nan"),
        ('{"version": 1, "matrix_rates": {"float32": 1.0, "bfloat16": -1.0}}', "-1.0"),
        ('{"version": 1, "matrix_rates": {"float32": 1.0, "bfloat16": Infinity}}', "inf"),
        ('{"version": 1, "matrix_rates": {"float32": "fast", "bfloat16": true}}', "'fast'"),
        ('{"version": 1, "matrix_rates": {"float32": 1' + 400 * "0" + ', "bfloat16": 1.0}}', "not a positive number"),
        ('{"version": 1, "nanoseconds": [1]}', "list"),
        ('{"version": 1, "nanoseconds": {"float32": {"forward": {"cpu": []}}}}', "no points for cpu, float32, forward"),
        ('{"version": 1, "nanoseconds": {"float32": {"forward": {"cpu": [[1, 2, 3]]}}}}', "no point"),
        ('{"version": 1, "nanoseconds": {"float32": {"forward": {"cpu": [[1, -2]]}}}}', "-2"),
        ('{"version": 1, "nanoseconds": {"float32": {"forward": {"cpu": [[1, NaN]]}}}}', "nan"),
        ('{"version": 1, "nanoseconds": {"float32": {"forward": {"cpu": [[2, 1], [2, 3]]}}}}', "do not ascend"),
        ('{"version": 1, "nanoseconds": {"float32": 7}}', "int"),
    ],
)
def test_a_file_that_is_unfit_is_named_and_replaced(counted, caplog, monkeypatch, text, said):
    prices.matrix_rates()
    the_file().write_text(text)
    start_again(monkeypatch)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert prices.matrix_rates() == RATES
    assert len(counted) == 2
    line, *others = [record.getMessage() for record in caplog.records]
    assert len(others) == 1 and "measuring" in others[0]
    assert "not used" in line and str(the_file()) in line and said in line and "\n" not in line
    assert figures.stored(torch.get_num_threads()) == (Figures(RATES), "")


def test_bytes_that_are_no_text(counted):
    prices.matrix_rates()
    the_file().write_bytes(b"\xff\xfe\x00")
    found, complaint = figures.stored(torch.get_num_threads())
    assert found == Figures() and str(the_file()) in complaint


@pytest.mark.parametrize("kind", ("pipe", "endless", "huge"))
def test_what_is_no_file_of_ours_is_not_read(counted, forked, kind):
    """A pipe would keep us waiting for ever, the others would fill the memory."""
    prices.matrix_rates()
    path = the_file()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 2**40)
    code = "import sys, resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30));"
    code += "from asterism.kernels.choice import figures; print(figures.stored(int(sys.argv[1])).complaint)"
    done = forked.run(code, dict(os.environ), str(torch.get_num_threads()))
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout and "no file of figures" in done.stdout, done.stdout


def test_where_nothing_can_be_kept_the_process_goes_on(counted, caplog, tmp_path, monkeypatch):
    """And says so in one line."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "file" / "cache"))
    assert prices.matrix_rates() == prices.matrix_rates() == RATES
    assert len(counted) == 1
    _, record = caplog.records
    assert "cannot be kept" in record.getMessage() and str(tmp_path / "file") in record.getMessage()


def test_a_home_that_is_read_only_gives_way_to_the_temporary_folder(counted, tmp_path, monkeypatch):
    monkeypatch.delenv("ASTERISM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    prices.matrix_rates()
    start_again(monkeypatch)
    assert prices.matrix_rates() == RATES and len(counted) == 1
    assert len(list((tmp_path / "tmp").rglob("speed-*.json"))) == 1
