"""Prices, which choose between dense attention and tiles: those of the library, and those measured here."""

import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch._dynamo.testing
from forked import in_a_fork
from priced import CHEAP, DEAR, RATES, named, shipped_rates, start_again, taken, the_file
from refusals import refusing

from asterism import attend
from asterism.compiler import cost
from asterism.errors import PatternError
from asterism.kernels.choice import choice, figures, measure, prices
from asterism.kernels.choice.figures import Figures
from asterism.shape import Implementation

pytest_plugins = ("priced",)
pytestmark = pytest.mark.usefixtures("unmeasured")


def test_models_take_the_implementations_that_there_are():
    assert get_args(Implementation) == choice.IMPLEMENTATIONS


def test_products_are_timed_for_real(monkeypatch):
    monkeypatch.setattr(measure, "_MATRICES", ((32, 64, 64),))
    rates = prices.matrix_rates()
    assert set(rates) == {"float32", "bfloat16"} and all(1e6 < rate < 1e15 for rate in rates.values())


def test_rates_are_all_operations_over_all_seconds(monkeypatch):
    """Products of 2 * 2 * 3 * 4 and 2 * 5 operations, in at least 2 and 3 seconds: 58 / 5."""
    monkeypatch.setattr(measure, "_MATRICES", ((2, 3, 4), (1, 5, 1)))
    monkeypatch.setattr(measure, "_SLOW", 1e9)  # else a machine that is slow in bfloat16 is not asked for more
    monkeypatch.setattr(measure.Trial, "warm_up", lambda trial: trial)
    seconds = iter((2, 3, 20, 30))

    def take_turns(trials, until):
        for trial in trials:
            trial.seconds = next(seconds)

    monkeypatch.setattr(measure, "_take_turns", take_turns)
    assert measure.time_products(torch.get_num_threads()) == pytest.approx({"float32": 11.6, "bfloat16": 1.16})


def test_what_is_measured_once_is_kept(counted, monkeypatch):
    """For this process, and for the next: the second finds the file."""
    assert prices.matrix_rates() == prices.matrix_rates() == RATES
    start_again(monkeypatch)
    assert prices.matrix_rates() == RATES
    assert len(counted) == 1
    assert json.loads(the_file().read_text())["matrix_rates"] == RATES
    assert [path.name for path in the_file().parent.iterdir()] == [the_file().name]


def test_a_machine_that_the_library_has_figures_for_is_not_measured(counted, monkeypatch):
    monkeypatch.setattr(prices, "has_figures", lambda processor: True)
    assert prices.matrix_rates() == shipped_rates() and not counted
    assert not list(Path(os.environ["ASTERISM_CACHE"]).iterdir())


@pytest.mark.parametrize(("kind", "threads", "known"), [("avx2", 2, True), ("avx2", 3, False), ("amx", 1, False)])
def test_the_library_has_figures_for_a_class_and_a_number_of_threads(kind, threads, known):
    assert cost.has_figures(cost.Processor(kind, threads)) == known


def test_how_long_it_will_take_is_measured_by_two_small_products(counted, monkeypatch):
    """They are not kept, and no processor is so well known that they were not worth it."""
    monkeypatch.setattr(prices, "has_figures", lambda processor: True)
    monkeypatch.setattr(measure, "_TRIED", (16, 16, 16))
    rates, measured = prices.expected_rates()
    assert measured and rates != shipped_rates() and all(1e5 < rate < 1e15 for rate in rates.values())
    assert not counted and not list(Path(os.environ["ASTERISM_CACHE"]).glob("*.json"))
    figures.keep(torch.get_num_threads(), Figures(RATES))
    start_again(monkeypatch)
    assert prices.expected_rates() == (RATES, True)
    monkeypatch.setenv("ASTERISM_CALIBRATE", "0")
    start_again(monkeypatch)
    assert prices.expected_rates() == (shipped_rates(), False)


def test_a_dtype_without_instructions_is_not_measured_for_long(monkeypatch):
    """The small product says enough; the large ones would take seconds."""
    asked = []

    def sample(trial):
        left, _ = trial.call.args
        asked.append((left.dtype, left.shape))
        trial.seconds = 1e-3 if left.dtype == torch.float32 else 0.5
        return trial.seconds

    monkeypatch.setattr(measure.Trial, "sample", sample)
    rates = measure.time_products(1)
    assert rates["bfloat16"] == 2 * 512**3 / 0.5 and rates["float32"] > 1e11
    assert [shape for dtype, shape in asked if dtype == torch.bfloat16] == [(512, 512)]


def test_a_run_keeps_the_prices_that_the_library_gave_it(monkeypatch):
    """Pinned, they are the same lines, also on a processor of another class."""
    monkeypatch.setenv("ASTERISM_CALIBRATE", "0")
    cell = prices.Cell("float32", True, "cpu")
    kept, before = prices.prices_for("float32"), prices.known_prices(cell).prices
    monkeypatch.setattr(prices, "price_class", lambda: "avx512")
    start_again(monkeypatch)
    after = prices.known_prices(cell).prices
    with prices.pinned(json.loads(json.dumps(kept))):
        again = prices.known_prices(cell).prices
    for way, curve in before.items():
        for pairs in (10, 1e4, 1e8):
            assert again[way].at(pairs) == pytest.approx(curve.at(pairs)) != pytest.approx(after[way].at(pairs))


def test_nothing_of_the_caller_is_on_while_measuring(counted):
    with torch.autocast("cpu", torch.bfloat16):
        prices.matrix_rates()
    ((_, name, autocast),) = counted
    assert name.startswith("calibration") and not autocast


def test_switched_off_it_is_what_comes_with_the_library(counted, monkeypatch):
    monkeypatch.setenv("ASTERISM_CALIBRATE", "0")
    assert prices.matrix_rates() == shipped_rates()
    assert not counted and not Path(os.environ["ASTERISM_CACHE"]).exists()


def test_a_forked_child_does_not_measure(counted):
    assert in_a_fork(prices.matrix_rates) == shipped_rates()


def test_threads_that_ask_at_once_share_one_measurement(counted, monkeypatch):
    waiting = threading.Barrier(4)

    def ask():
        waiting.wait()
        prices.matrix_rates()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counted) == 1


SLOW = """
import time
from asterism.kernels.choice import prices
def measured(threads):
    print("measured", flush=True)
    time.sleep(1)
    return {"float32": 1.0, "bfloat16": 2.0}
prices.time_products, prices.has_figures = measured, lambda processor: False
print(prices.matrix_rates())
"""


def test_processes_that_ask_at_once_share_one_measurement():
    processes = [subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    lines = sorted("".join(process.communicate()[0] for process in processes).splitlines())
    assert lines == ["measured", *["{'float32': 1.0, 'bfloat16': 2.0}"] * 3]


# --- prices of attention ---------------------------------------------------------------------------------------------


def test_a_machine_of_an_unknown_kind_is_measured_where_it_may_say_otherwise(priced):
    """Shipped prices prefer our tiles for causal(); where a call takes long, this machine is asked."""
    assert taken("causal()", 256) == "cpu" and not priced.asked, "a call of a millisecond is not worth it"
    assert taken("window(left=3)", 8192) == "cpu" and not priced.asked, "no mask could be built"
    assert taken("causal()", 8192) == "causal"
    assert priced.asked == [("float32", False, torch.get_num_threads(), "cpu")]
    assert taken("dense()", 8192) == "full" and taken("causal()", 8191) == "causal"
    assert len(priced.asked) == 1


def test_figures_of_the_library_answer_first(priced, monkeypatch):
    monkeypatch.setattr(prices, "has_figures", lambda processor: True)
    start_again(monkeypatch)
    assert taken("causal()", 8192) == taken("dense()", 8192) == "cpu" and not priced.asked
    assert prices.prices_for("float32").keys() == {"float32"} and not priced.asked


def test_a_machine_that_was_calibrated_uses_its_own_figures(priced, monkeypatch):
    """Now, and in later processes, also where the library has some."""
    monkeypatch.setattr(prices, "has_figures", lambda processor: True)
    figures.keep(torch.get_num_threads(), prices.calibrate())
    for _ in range(2):
        assert taken("causal()", 8192) == taken("causal()", 256) == "causal"
        start_again(monkeypatch)
    assert len(priced.asked) == 4


def test_each_dtype_and_direction_has_its_own_measurement(priced):
    for dtype, training in itertools.product((torch.float32, torch.bfloat16), (False, True)):
        assert taken("causal()", 8192, training, dtype) == "causal"
    assert len(set(priced.asked)) == 4


def test_tiles_are_taken_where_they_are_cheaper(priced):
    priced.tiles_are_cheap = True
    assert taken("dense()", 8192) == taken("causal()", 8192) == "cpu" and len(priced.asked) == 1


def test_what_is_measured_at_need_changes_no_other_answer_of_the_process(priced, monkeypatch):
    """A checkpoint that is computed again must find the same kernel, whatever was measured meanwhile."""
    assert taken("dense()", 256) == "cpu"
    assert taken("causal()", 8192) == "causal"
    assert taken("dense()", 256) == taken("dense()", 257) == "cpu"
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
    kept = prices.prices_for("float32")
    assert [asked[:2] for asked in priced.asked] == [("float32", False), ("float32", True)]
    assert json.loads(json.dumps(kept)) == kept and set(kept) == {"float32"}
    cheap = {"float32": {"forward": {way: DEAR for way in measure.WAYS} | {"cpu": CHEAP}}}
    with prices.pinned(cheap):
        assert taken("causal()", 8192) == "cpu" and taken("causal()", 8192, training=True) == "cpu"
    with prices.pinned({}):
        assert taken("causal()", 8192) == "cpu"
    assert taken("causal()", 8192) == "causal" and len(priced.asked) == 2
    with pytest.raises(ValueError, match="no points"), prices.pinned({"float32": {"forward": {"cpu": []}}}):
        pass


def test_renewed_prices_are_followed_at_once(priced):
    assert taken("causal()", 8192) == "causal"
    priced.tiles_are_cheap = True
    renewed = prices.calibrate()
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


# --- nothing but the question counts ---------------------------------------------------------------------------------

QUESTIONS = [(text, tokens, dtype) for text in ("causal()", "window(left=7)", "dense()")
             for tokens in (4, 16, 32, 48, 64, 96, 8192) for dtype in (torch.float32, torch.bfloat16)]  # fmt: skip


def all_taken(training=False):
    return [taken(text, tokens, training, dtype) for text, tokens, dtype in QUESTIONS]


@pytest.fixture(params=("known", "measured"))
def kind(request, priced, monkeypatch):
    """A machine that the library has figures for, and one that is measured when it must be."""
    monkeypatch.setattr(prices, "has_figures", lambda processor: request.param == "known")
    start_again(monkeypatch)
    return request.param


def test_one_answer_in_every_thread(kind):
    """Also in one that computes with another number of threads."""
    answers = []

    def ask():
        torch.set_num_threads(1 + before)
        answers.append(all_taken())

    before, expected = torch.get_num_threads(), all_taken()
    try:
        (thread := threading.Thread(target=ask)).start()
        thread.join()
    finally:
        torch.set_num_threads(before)
    assert answers == [expected] and len(set(expected)) > 1


def test_one_answer_in_a_forked_child(kind):
    expected = all_taken()
    assert in_a_fork(all_taken) == expected


def test_one_answer_however_busy_the_machine(kind, monkeypatch):
    expected = all_taken()
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    assert all_taken() == expected
    start_again(monkeypatch)
    assert kind == "measured" or all_taken() == expected


@pytest.mark.parametrize("training", (False, True))
def test_one_answer_in_every_grad_mode(kind, training):
    expected = all_taken(training)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            assert all_taken(training) == expected or training and mode is torch.inference_mode


@pytest.mark.parametrize("reentrant", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_a_checkpoint_is_computed_twice_by_the_same_kernels(priced, monkeypatch, reentrant, dtype):
    """Reentrant ones have no gradients at first, and the operands do not tell that they will."""
    seen, choose = [], choice.choose

    def watched(operands, implementation):
        seen.append(named(choose(operands, implementation)))
        return choose(operands, implementation)

    monkeypatch.setattr(sys.modules["asterism.kernels.attend"], "choose", watched)
    cells = [(text, tokens) for text in ("causal()", "window(left=7)", "dense()") for tokens in (4, 16, 32, 48, 64)]
    for text, tokens in cells:

        def compute(x, text=text):
            x = x * 1  # made without a gradient
            return attend(x, x, x, text)

        q = torch.randn(1, 8, tokens, 64, dtype=dtype, requires_grad=True)
        torch.utils.checkpoint.checkpoint(compute, q, use_reentrant=reentrant).sum().backward()
    forward, both = ([taken(text, tokens, training, dtype) for text, tokens in cells] for training in (False, True))
    assert seen[::2] == seen[1::2] == both != forward, "where forward and training are the same, nothing is shown"


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
        with prices.pinned({"float32": {"forward": ways}}):
            assert computed_by(text, 96, dynamic) == expected
    assert not priced.asked


def test_a_graph_of_known_lengths_looks_at_the_plan(priced):
    """A wide window is causal attention, and one that is not asks for a mask where it is cheap; symbols cannot tell."""
    ways = {way: CHEAP if way.startswith("dense") else DEAR for way in measure.WAYS}
    with prices.pinned({"float32": {"forward": ways}}):
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
    with refusing(PatternError, "pattern-heads", "3"):
        compiled(torch.randn(1, 2, 48, 16))
