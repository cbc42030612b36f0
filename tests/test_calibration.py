"""How fast the machine is: measured once, kept, renewed; and what happens where that is impossible."""

import json
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from asterism.compiler import cost
from asterism.kernels import calibration, figures
from asterism.kernels.figures import Figures

RATES = {"float32": 3e9, "bfloat16": 5e9}


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """A machine on which nothing was measured yet, with measuring on."""
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ASTERISM_CALIBRATE", raising=False)
    calibration._matrix_rates.cache_clear()
    yield
    calibration._matrix_rates.cache_clear()


@pytest.fixture
def counted(monkeypatch):
    """Products that are not timed: their rates are given, and who asked is counted."""
    asked = []

    def measured(threads):
        asked.append((threads, threading.current_thread().name, torch.is_autocast_enabled("cpu")))
        return RATES

    monkeypatch.setattr(calibration, "_time_products", measured)
    return asked


def the_file() -> Path:
    (path,) = Path(os.environ["ASTERISM_CACHE"]).glob("*.json")
    return path


def test_products_are_timed_for_real(monkeypatch):
    monkeypatch.setattr(calibration, "_MATRICES", ((32, 64, 64),))
    rates = calibration.matrix_rates()
    assert set(rates) == {"float32", "bfloat16"} and all(1e6 < rate < 1e15 for rate in rates.values())


def test_rates_are_all_operations_over_all_seconds(monkeypatch):
    """Products of 2 * 2 * 3 * 4 and 2 * 5 operations, in 2 and 3 seconds: 58 / 5."""
    monkeypatch.setattr(calibration, "_MATRICES", ((2, 3, 4), (1, 5, 1)))
    monkeypatch.setattr(calibration.Task, "warm_up", lambda task, patience: None)
    seconds = iter((2, 3, 20, 30))
    monkeypatch.setattr(calibration, "in_turns", lambda tasks, *_: [t.seconds.append(next(seconds)) for t in tasks])
    assert calibration._time_products(torch.get_num_threads()) == pytest.approx({"float32": 11.6, "bfloat16": 1.16})


def test_what_is_measured_once_is_kept(counted):
    """For this process, and for the next: the second finds the file."""
    assert calibration.matrix_rates() == calibration.matrix_rates() == RATES
    calibration._matrix_rates.cache_clear()
    assert calibration.matrix_rates() == RATES
    assert len(counted) == 1
    assert json.loads(the_file().read_text())["matrix_rates"] == RATES
    assert [path.name for path in the_file().parent.iterdir()] == [the_file().name]


def test_figures_are_of_a_number_of_threads(counted):
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            calibration.matrix_rates()
    finally:
        torch.set_num_threads(before)
    assert [threads for threads, *_ in counted] == [1, 2]


def test_figures_are_of_a_kernel_and_a_pytorch(monkeypatch):
    names = {figures.file_name(1), figures.file_name(2)}
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "0.0")
        names.add(figures.file_name(1))
    monkeypatch.setattr(figures, "identity", lambda: "another kernel")
    names.add(figures.file_name(1))
    assert len(names) == 4


def test_nothing_of_the_caller_is_on_while_measuring(counted):
    with torch.autocast("cpu", torch.bfloat16):
        calibration.matrix_rates()
    ((_, name, autocast),) = counted
    assert name.startswith("calibration") and not autocast


def test_switched_off_it_is_what_comes_with_the_library(counted, monkeypatch):
    monkeypatch.setenv("ASTERISM_CALIBRATE", "0")
    assert calibration.matrix_rates() == cost.shipped_matrix_rates()
    assert not counted and not Path(os.environ["ASTERISM_CACHE"]).exists()


def test_a_forked_child_does_not_measure(counted):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(calibration.matrix_rates) == cost.shipped_matrix_rates()


def test_threads_that_ask_at_once_share_one_measurement(counted, monkeypatch):
    waiting = threading.Barrier(4)

    def ask():
        waiting.wait()
        calibration.matrix_rates()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counted) == 1


SLOW = """
import time
from asterism.kernels import calibration
def measured(threads):
    print("measured", flush=True)
    time.sleep(1)
    return {"float32": 1.0, "bfloat16": 2.0}
calibration._time_products = measured
print(calibration.matrix_rates())
"""


def test_processes_that_ask_at_once_share_one_measurement():
    processes = [subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    lines = sorted("".join(process.communicate()[0] for process in processes).splitlines())
    assert lines == ["measured", *["{'float32': 1.0, 'bfloat16': 2.0}"] * 3]


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
    ],
)
def test_a_file_that_is_unfit_is_named_and_replaced(counted, caplog, text, said):
    calibration.matrix_rates()
    the_file().write_text(text)
    calibration._matrix_rates.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert calibration.matrix_rates() == RATES
    assert len(counted) == 2
    (line,) = {record.getMessage() for record in caplog.records}
    assert "not used" in line and str(the_file()) in line and said in line and "\n" not in line
    assert figures.kept(torch.get_num_threads()) == Figures(RATES)


def test_bytes_that_are_no_text(counted, caplog):
    calibration.matrix_rates()
    the_file().write_bytes(b"\xff\xfe\x00")
    assert figures.kept(torch.get_num_threads()) == Figures()
    assert "not used" in caplog.text


def test_where_nothing_can_be_kept_the_process_goes_on(counted, caplog, tmp_path, monkeypatch):
    """And says so in one line."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "file" / "cache"))
    assert calibration.matrix_rates() == calibration.matrix_rates() == RATES
    assert len(counted) == 1
    (record,) = caplog.records
    assert "cannot be kept" in record.getMessage() and str(tmp_path / "file") in record.getMessage()


def test_a_home_that_is_read_only_gives_way_to_the_temporary_folder(counted, tmp_path, monkeypatch):
    monkeypatch.delenv("ASTERISM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    calibration.matrix_rates()
    calibration._matrix_rates.cache_clear()
    assert calibration.matrix_rates() == RATES and len(counted) == 1
    assert len(list((tmp_path / "tmp").rglob("speed-*.json"))) == 1
