"""How fast the machine is: measured once, kept, renewed; and what happens where that is impossible."""

import itertools
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
import torch._dynamo.testing

from asterism import attend
from asterism.bench.calibration import break_even
from asterism.cli.main import main
from asterism.compiler import cost
from asterism.compiler.cost import Curve
from asterism.errors import PatternError
from asterism.kernels.choice import calibration, choice, figures, measure
from asterism.kernels.choice.figures import Figures
from asterism.kernels.cpu import instruction_set, library

RATES = {"float32": 3e9, "bfloat16": 5e9}

PINNED = {"float32": {"forward": {"cpu": [[1, 2]], "dense full": [[1, 3]]}}}
"""Prices of one dtype and direction."""


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """A machine on which nothing was measured yet, with measuring on; the fused kernel is there."""
    library()
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ASTERISM_CALIBRATE", "1")  # also while other tests run
    start_again(monkeypatch)
    yield
    choice._answer.cache_clear()


def shipped_rates() -> dict[str, float]:
    """What comes with the library for this class of processor and number of threads."""
    return cost.shipped_matrix_rates(calibration._processor(torch.get_num_threads()))


def start_again(monkeypatch):
    """As a new process begins: nothing is known but what is kept."""
    monkeypatch.setattr(calibration, "_MACHINE", calibration._Machine())
    choice._answer.cache_clear()


@pytest.fixture
def counted(monkeypatch):
    """Products that are not timed: their rates are given, and who asked is counted."""
    asked = []

    def measured(threads):
        asked.append((threads, threading.current_thread().name, torch.is_autocast_enabled("cpu")))
        return RATES

    monkeypatch.setattr(calibration, "time_products", measured)
    return asked


def the_file() -> Path:
    (path,) = Path(os.environ["ASTERISM_CACHE"]).glob("*.json")
    return path


def test_products_are_timed_for_real(monkeypatch):
    monkeypatch.setattr(measure, "_MATRICES", ((32, 64, 64),))
    rates = calibration.matrix_rates()
    assert set(rates) == {"float32", "bfloat16"} and all(1e6 < rate < 1e15 for rate in rates.values())


def test_rates_are_all_operations_over_all_seconds(monkeypatch):
    """Products of 2 * 2 * 3 * 4 and 2 * 5 operations, in at least 2 and 3 seconds: 58 / 5."""
    monkeypatch.setattr(measure, "_MATRICES", ((2, 3, 4), (1, 5, 1)))
    monkeypatch.setattr(measure, "_warm", lambda trials: None)
    seconds = itertools.chain((2, 3, 20, 30), itertools.repeat(99))
    monkeypatch.setattr(
        measure, "_take_turns", lambda trials, until: [t.task.seconds.extend((next(seconds), 99)) for t in trials]
    )
    assert measure.time_products(torch.get_num_threads()) == pytest.approx({"float32": 11.6, "bfloat16": 1.16})


def test_what_is_measured_once_is_kept(counted, monkeypatch):
    """For this process, and for the next: the second finds the file."""
    assert calibration.matrix_rates() == calibration.matrix_rates() == RATES
    start_again(monkeypatch)
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


def test_another_number_of_threads_says_more_than_another_machine(counted, monkeypatch):
    """Where nothing may be measured: rates grow with the threads, and the nearest number of threads counts."""
    for threads, rate in ((2, 2e9), (64, 1e9)):
        figures.keep(threads, lambda one, rate=rate: Figures({"float32": rate, "bfloat16": 2 * rate}))
    monkeypatch.delenv("ASTERISM_CALIBRATE")
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0, 0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert calibration.matrix_rates() == {"float32": 1e9, "bfloat16": 2e9}
    assert calibration.expected_rates() == ({"float32": 1e9, "bfloat16": 2e9}, True)
    figures.keep(2, lambda one: Figures(nanoseconds=PINNED))
    start_again(monkeypatch)
    cell = calibration.Cell("float32", False, 1)
    assert calibration.known_prices(cell, "cpu")["cpu"].points == ((1, 2),)
    with calibration.pinned({}):
        assert calibration.known_prices(cell, "cpu")["cpu"].points != ((1, 2),)
    monkeypatch.setenv("ASTERISM_CALIBRATE", "0")
    assert calibration.matrix_rates() == shipped_rates()
    assert calibration.expected_rates() == (shipped_rates(), False) and not counted


def test_how_long_it_will_take_is_measured_on_a_busy_machine_too(counted, monkeypatch):
    """By two small products, which are not kept."""
    monkeypatch.delenv("ASTERISM_CALIBRATE")
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0, 0))
    monkeypatch.setattr(measure, "_TRIED", (16, 16, 16))
    rates, measured = calibration.expected_rates()
    assert measured and rates != shipped_rates() and all(1e5 < rate < 1e15 for rate in rates.values())
    assert not counted and not list(Path(os.environ["ASTERISM_CACHE"]).glob("*.json"))


def test_a_dtype_without_instructions_is_not_measured_for_long(monkeypatch):
    """The small product says enough; the large ones would take seconds."""
    asked = []

    def sample(task):
        left, _ = task.call.args
        asked.append((left.dtype, left.shape))
        task.seconds.append(1e-3 if left.dtype == torch.float32 else 0.5)
        return task.seconds[-1]

    monkeypatch.setattr(measure.TimedCall, "sample", sample)
    rates = measure.time_products(1)
    assert rates["bfloat16"] == 2 * 512**3 / 0.5 and rates["float32"] > 1e11
    assert [shape for dtype, shape in asked if dtype == torch.bfloat16] == [(512, 512)]


def test_a_run_keeps_the_prices_that_the_library_gave_it(monkeypatch):
    """Pinned, they are the same lines, also on a processor of another class."""
    monkeypatch.setenv("ASTERISM_CALIBRATE", "0")
    cell = calibration.Cell("float32", True, torch.get_num_threads())
    prices, before = calibration.prices_for("float32"), calibration.known_prices(cell, "cpu")
    monkeypatch.setattr(calibration, "_processor", lambda threads: cost.Processor("avx2", 1))
    after = calibration.known_prices(cell, "cpu")
    with calibration.pinned(json.loads(json.dumps(prices))):
        again = calibration.known_prices(cell, "cpu")
    for way, curve in before.items():
        for pairs in (10, 1e4, 1e8):
            assert again[way].at(pairs) == pytest.approx(curve.at(pairs)) != pytest.approx(after[way].at(pairs))


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
    assert calibration.matrix_rates() == shipped_rates()
    assert not counted and not Path(os.environ["ASTERISM_CACHE"]).exists()


def test_a_busy_machine_is_not_measured(counted, monkeypatch):
    """Figures taken there were thirty times too dear; what comes with the library is nearer."""
    monkeypatch.delenv("ASTERISM_CALIBRATE")
    monkeypatch.setattr(os, "getloadavg", lambda: (os.cpu_count() + 1.5, 0, 0))
    assert calibration.matrix_rates() == shipped_rates() and not counted
    monkeypatch.setattr(os, "getloadavg", lambda: (os.cpu_count() + 0.5, 0, 0))
    assert calibration.matrix_rates() == RATES and len(counted) == 1


def test_a_forked_child_does_not_measure(counted):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(calibration.matrix_rates) == shipped_rates()


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
from asterism.kernels.choice import calibration
def measured(threads):
    print("measured", flush=True)
    time.sleep(1)
    return {"float32": 1.0, "bfloat16": 2.0}
calibration.time_products = measured
print(calibration.matrix_rates())
"""


def test_processes_that_ask_at_once_share_one_measurement():
    processes = [subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    lines = sorted("".join(process.communicate()[0] for process in processes).splitlines())
    assert lines == ["measured", *["{'float32': 1.0, 'bfloat16': 2.0}"] * 3]


def test_a_folder_that_knows_no_locks_is_no_obstacle(counted, monkeypatch):
    """Some file systems of networks lock nothing, and some folders cannot be listed."""

    def refuse(*arguments):
        raise OSError("no locks available")

    monkeypatch.setattr(figures, "lock", refuse)
    assert calibration.matrix_rates() == RATES
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
    calibration.matrix_rates()
    the_file().write_text(text)
    start_again(monkeypatch)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert calibration.matrix_rates() == RATES
    assert len(counted) == 2
    line, *others = [record.getMessage() for record in caplog.records]
    assert len(others) == 1 and "measuring" in others[0]
    assert "not used" in line and str(the_file()) in line and said in line and "\n" not in line
    assert figures.stored(torch.get_num_threads()) == (Figures(RATES), "")


def test_bytes_that_are_no_text(counted):
    calibration.matrix_rates()
    the_file().write_bytes(b"\xff\xfe\x00")
    found, complaint = figures.stored(torch.get_num_threads())
    assert found == Figures() and str(the_file()) in complaint


@pytest.mark.parametrize("kind", ("pipe", "endless", "huge"))
def test_what_is_no_file_of_ours_is_not_read(counted, forked, kind):
    """A pipe would keep us waiting for ever, the others would fill the memory."""
    calibration.matrix_rates()
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
    assert calibration.matrix_rates() == calibration.matrix_rates() == RATES
    assert len(counted) == 1
    _, record = caplog.records
    assert "cannot be kept" in record.getMessage() and str(tmp_path / "file") in record.getMessage()


def test_a_home_that_is_read_only_gives_way_to_the_temporary_folder(counted, tmp_path, monkeypatch):
    monkeypatch.delenv("ASTERISM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    calibration.matrix_rates()
    start_again(monkeypatch)
    assert calibration.matrix_rates() == RATES and len(counted) == 1
    assert len(list((tmp_path / "tmp").rglob("speed-*.json"))) == 1


# --- prices of attention ---------------------------------------------------------------------------------------------

CHEAP, DEAR = [[1000, 10.0], [1e6, 1e4]], [[1000, 40.0], [1e6, 4e4]]


@pytest.fixture
def priced(monkeypatch):
    """A machine where dense attention has the cheaper pairs, or tiles if `tiles_are_cheap`; what it was asked."""
    asked = []

    def measured(dtype, training, threads, tiles, seconds):
        asked.append((dtype, training, threads, *tiles))
        cheap, dear = (DEAR, CHEAP) if measured.tiles_are_cheap else (CHEAP, DEAR)
        dense = dict.fromkeys(("dense full", "dense causal", "dense sparse"), cheap)
        return dense | dict.fromkeys(tiles, dear)

    measured.tiles_are_cheap, measured.asked = False, asked
    monkeypatch.setattr(calibration, "time_attention", measured)
    return measured


def taken(text, tokens, training=False, dtype=torch.float32, heads=8, **options):
    """What "auto" takes, without computing it."""
    q = torch.empty(1, heads, tokens, 64, dtype=dtype).requires_grad_(training)
    operands = choice.Operands(q, q, q, None, None, None, text, 0, 1.0, with_lse=False)
    kernel = choice.choose(operands, "auto")
    return getattr(kernel, "kind", None) or kernel.name


def test_the_machine_is_measured_where_it_may_say_otherwise(priced):
    """Shipped prices prefer our tiles for causal(); where a call takes long, this machine is asked."""
    assert taken("causal()", 256) == "cpu" and not priced.asked, "a call of a millisecond is not worth it"
    assert taken("window(left=3)", 8192) == "cpu" and not priced.asked, "no mask could be built"
    assert taken("causal()", 8192) == "causal"
    assert priced.asked == [("float32", False, torch.get_num_threads(), "cpu")]
    assert taken("dense()", 8192) == "full" and taken("window(left=1023)", 2048) == "sparse"
    assert taken("window(left=63)", 2048) == "cpu"
    assert len(priced.asked) == 1


def test_each_dtype_and_direction_has_its_own_measurement(priced):
    for dtype, training in itertools.product((torch.float32, torch.bfloat16), (False, True)):
        assert taken("causal()", 8192, training, dtype) == "causal"
    assert len(set(priced.asked)) == 4


def test_tiles_are_taken_where_they_are_cheaper(priced):
    priced.tiles_are_cheap = True
    assert taken("dense()", 8192) == taken("causal()", 8192) == "cpu" and len(priced.asked) == 1


def test_what_was_answered_stays_in_the_process_and_not_in_the_next(priced, monkeypatch):
    """A checkpoint that is computed again must find the same kernel, whatever was measured meanwhile."""
    assert taken("dense()", 256) == "cpu"
    assert taken("causal()", 8192) == "causal"
    assert taken("dense()", 256) == "cpu" and taken("dense()", 257) == "full"
    start_again(monkeypatch)
    assert taken("dense()", 256) == "full" and len(priced.asked) == 1


def test_prices_are_measured_for_dtypes_of_the_fused_kernel_only(priced):
    for dtype in (torch.float64, torch.float16):
        taken("window(left=511)", 2048, dtype=dtype)
    assert not priced.asked


def test_switched_off_prices_are_those_of_the_library(priced, monkeypatch):
    assert taken("causal()", 8192) == "causal"
    start_again(monkeypatch)
    monkeypatch.setenv("ASTERISM_CALIBRATE", "0")
    assert taken("causal()", 8192) == "cpu" and len(priced.asked) == 1


def test_pinned_prices_go_before_all_others_and_are_not_measured(priced):
    prices = calibration.prices_for("float32")
    assert [asked[:2] for asked in priced.asked] == [("float32", False), ("float32", True)]
    assert json.loads(json.dumps(prices)) == prices and set(prices) == {"float32"}
    cheap = {"float32": {"forward": {way: DEAR for way in measure.WAYS} | {"cpu": CHEAP}}}
    with calibration.pinned(cheap):
        assert taken("causal()", 8192) == "cpu" and taken("causal()", 8192, training=True) == "cpu"
    with calibration.pinned({}):
        assert taken("causal()", 8192) == "cpu"
    assert taken("causal()", 8192) == "causal" and len(priced.asked) == 2
    with pytest.raises(ValueError, match="no points"), calibration.pinned({"float32": {"forward": {"cpu": []}}}):
        pass


def test_renewed_prices_are_followed_at_once(priced):
    assert taken("causal()", 8192) == "causal"
    priced.tiles_are_cheap = True
    renewed = calibration.calibrate(torch.get_num_threads())
    assert taken("causal()", 8192) == "cpu"
    assert set(renewed.nanoseconds) == {"float32", "bfloat16"} and len(renewed.matrix_rates) == 2
    assert set(renewed.prices("bfloat16", "training")) == set(measure.WAYS)


def test_attention_is_timed_for_real(monkeypatch):
    monkeypatch.setattr(measure, "_SHORT", (16,))
    monkeypatch.setattr(measure, "_LONG", (64,))
    monkeypatch.setattr(measure, "_MOST_TURNS", 1)
    for training in (False, True):
        points = measure.time_attention("bfloat16", training, torch.get_num_threads(), ["cpu", "eager"], 60)
        assert set(points) == set(measure.WAYS)
        lanes = torch.get_num_threads()
        assert [pairs for pairs, _ in points["dense full"]] == [8 * 16**2, lanes * 64**2]
        Figures(nanoseconds={"bfloat16": {"forward": points}})


def test_measuring_disturbs_no_checkpoint(monkeypatch):
    """What is saved for gradients while measuring is not the caller's: neither counted nor computed again."""
    monkeypatch.setattr(measure, "_SHORT", (16,))
    monkeypatch.setattr(measure, "_LONG", ())
    monkeypatch.setattr(choice, "_WORTH_MEASURING", 0)
    q = torch.randn(1, 2, 64, 8, requires_grad=True)
    state = torch.get_rng_state()
    out = torch.utils.checkpoint.checkpoint(lambda x: attend(x, x, x, "causal()"), q, use_reentrant=False)
    assert json.loads(the_file().read_text())["nanoseconds"]["float32"].keys() == {"training"}
    out.sum().backward()
    assert q.grad is not None and torch.equal(state, torch.get_rng_state())


# --- inside torch.compile --------------------------------------------------------------------------------------------


def computed_by(text, tokens, dynamic, batch=1):
    """The operators of a compiled graph that compute attention."""
    torch._dynamo.reset()
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x: attend(x, x, x, text), fullgraph=True, dynamic=dynamic, backend=keep)
    compiled(torch.randn(batch, 2, tokens, 16))
    (graph,) = graphs
    targets = {str(node.target) for node in graph.graph.nodes}
    return {name for name in ("asterism.cpu", "scaled_dot_product_attention") if any(name in one for one in targets)}


@pytest.mark.parametrize("text", ("causal()", "dense()"))
@pytest.mark.parametrize("dynamic", (False, True))
def test_a_graph_follows_the_prices_and_measures_nothing(priced, text, dynamic):
    for cheap, expected in (("cpu", {"asterism.cpu"}), ("dense", {"scaled_dot_product_attention"})):
        ways = {way: CHEAP if way.startswith(cheap) else DEAR for way in measure.WAYS}
        with calibration.pinned({"float32": {"forward": ways}}):
            assert computed_by(text, 96, dynamic) == expected
    assert not priced.asked


def test_a_graph_of_known_lengths_looks_at_the_plan(priced):
    """A wide window is causal attention, and one that is not asks for a mask where it is cheap; symbols cannot tell."""
    ways = {way: CHEAP if way.startswith("dense") else DEAR for way in measure.WAYS}
    with calibration.pinned({"float32": {"forward": ways}}):
        for text in ("window(left=95)", "window(left=40)"):
            assert computed_by(text, 96, dynamic=False) == {"scaled_dot_product_attention"}
            assert computed_by(text, 96, dynamic=True) == {"asterism.cpu"}


def test_a_graph_for_any_batch_has_one_answer(priced):
    """With lengths known and the batch a symbol, nothing is compiled anew for another batch."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda x: attend(x, x, x, "causal()"), fullgraph=True, backend=counter)
    for batch in (2, 3, 4, 5):
        x = torch.randn(batch, 2, 48, 16)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), attend(x, x, x, "causal()", implementation="reference"))
    assert counter.frame_count == 1


def test_a_graph_leaves_a_wrong_pattern_to_the_operator(priced):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: attend(x, x, x, "per_head((causal(), dense(), dense()))"), backend="eager")
    with pytest.raises(PatternError, match="3 heads"):
        compiled(torch.randn(1, 2, 48, 16))


# --- asterism bench --calibrate --------------------------------------------------------------------------------------


@pytest.fixture
def bench(capsys, priced, counted):
    def call(*words):
        code = main(["bench", *words])
        return code, *capsys.readouterr()

    return call


def test_the_verb_renews_and_keeps_and_says_what_it_chose(bench, priced, monkeypatch):
    assert taken("causal()", 8192) == "causal"
    priced.tiles_are_cheap = True
    code, out, err = bench("--calibrate")
    assert code == 0 and f"kept in {the_file()}" in err
    assert taken("causal()", 8192) == "cpu"
    start_again(monkeypatch)
    assert taken("causal()", 8192) == "cpu" and json.loads(the_file().read_text())["matrix_rates"] == RATES
    lines = {line[:33].strip(): line[33:].split() for line in out.splitlines()}
    assert lines["auto for causal() at 1024 tokens"] == lines["auto for dense() at 8192 tokens"] == ["cpu"] * 4
    assert lines["tiles beat a mask at 1024 tokens"] == ["always"] * 4
    assert f"float32 3, bfloat16 5; CPU kernel: {instruction_set()}, built on this machine" in out


def test_the_record_of_the_verb(bench, priced, monkeypatch, tmp_path):
    """Also where what is kept would be ignored: who asks for it sees what was measured."""
    monkeypatch.setenv("ASTERISM_CALIBRATE", "0")
    code, out, _ = bench("--calibrate", "--json", "--output", str(tmp_path / "record.json"))
    record = json.loads(out)
    assert code == 0 and record == json.loads((tmp_path / "record.json").read_text())
    assert record["kept"] == str(the_file()) and record["matrix_rates"] == RATES
    assert [(one["dtype"], one["direction"]) for one in record["choices"]] == [
        (dtype, direction) for dtype in ("float32", "bfloat16") for direction in ("forward", "training")
    ]
    for one in record["choices"]:
        assert set(one["auto"].values()) == {"dense"} and set(one["ways"]) == set(measure.WAYS)
        assert one["ways"]["cpu"] == {"launch_nanoseconds": 40, "pair_nanoseconds": 0.04}


def test_what_cannot_be_kept_is_shown_and_a_failure(bench, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "file" / "cache"))
    code, out, err = bench("--calibrate")
    assert code == 1 and "auto for causal()" in out
    (line,) = [line for line in err.splitlines() if line.startswith("asterism: error: ")]
    assert "cannot be kept" in line and str(tmp_path / "file") in line and "ASTERISM_CACHE" in line


@pytest.mark.parametrize(
    ("words", "named"),
    [(("causal()",), "patterns"), (("-n", "64"), "--lengths"), (("--no-peers",), "--no-peers")],
)
def test_it_does_only_that(bench, priced, words, named):
    code, out, err = bench("--calibrate", *words)
    assert (code, out) == (2, "") and f"leave out {named}\n" in err and not priced.asked


def test_the_density_at_which_tiles_and_dense_attention_break_even():
    """By hand: 40 nanoseconds a pair in tiles, weighted 0.95, and 10 in dense attention."""
    prices = {"cpu": Curve(((0, 0),), 40), "dense full": Curve(((0, 0),), 10)}
    assert break_even(prices, "cpu", "dense full", 8192) == pytest.approx(10 / 40 / 0.95, abs=1e-4)
    assert break_even(prices | {"cpu": prices["dense full"]}, "cpu", "dense full", 8192) == 1
