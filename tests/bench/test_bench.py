"""The benchmark: what it checks before it times, what its record holds, what the verb prints and refuses."""

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from asterism import patterns
from asterism.bench import PEERS, BenchSettings, measure, table
from asterism.bench.case import Case
from asterism.bench.check import check
from asterism.bench.clock import TimedCall, in_turns
from asterism.bench.contenders import DenseContender, Implementation
from asterism.bench.memory import peaks
from asterism.bench.native_mask import block_mask, mask_function
from asterism.cli.main import main

CASE = Case("window(left=20)", 96, "float32", 1, 2, 16, "cpu")
SMALL = BenchSettings(
    patterns=("window(left=20)",),
    lengths=(64, 96),
    dtypes=("float32",),
    implementations=("eager",),
    peers=False,
    heads=2,
    head_dim=16,
    memory=False,
    repeats=3,
)
FIGURES = {
    "seconds",
    "fastest",
    "slowest",
    "samples",
    "share_computed",
    "useful_flops_per_second",
    "matmul_share",
    "efficiency",
    "break_even_density",
    "extra_bytes",
}


def peer(name: str):
    return next(peer for peer in PEERS if peer.name == name)


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch):
    monkeypatch.setattr("asterism.bench.rate._SIDES", {"cpu": (64,)})


@pytest.fixture(scope="module")
def record():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asterism.bench.rate._SIDES", {"cpu": (64,)})
        return measure(SMALL)


# --- the record ------------------------------------------------------------------------------------------------------


def test_the_record_is_json_and_complete(record):
    assert json.loads(json.dumps(record, allow_nan=False)) == json.loads(json.dumps(record))
    assert set(record) == {"schema", "date", "machine", "settings", "definitions", "matmul_flops_per_second", "rows"}
    wanted = {"processor", "cores", "threads", "instructions", "capability", "kernel", "kernel_origin", "packages"}
    assert wanted <= set(record["machine"])
    assert record["machine"]["packages"]["torch"] == torch.__version__
    assert re.match(r"\d{4}-\d\d-\d\dT", record["date"])
    names = [(row["length"], row["contender"]) for row in record["rows"]]
    assert names == [(n, name) for n in (64, 96) for name in ("sdpa", "sdpa causal", "eager")]
    for row in record["rows"]:
        assert row["status"] == "timed" and row["checked_length"] == row["length"]
        for direction in ("forward", "forward_backward"):
            assert set(row[direction]) == FIGURES
            assert 0 < row[direction]["fastest"] <= row[direction]["seconds"] <= row[direction]["slowest"]
            assert row[direction]["samples"] == 3


def test_the_figures_follow_from_the_seconds(record):
    dense, causal, eager = record["rows"][3:]
    pairs = int(patterns.parse(CASE.pattern).dense(96).sum()) * 2
    assert eager["pairs"] == pairs and dense["pairs"] == 2 * 96**2 and causal["pairs"] == 2 * 96 * 97 // 2
    assert eager["density"] == pytest.approx(pairs / (2 * 96**2))
    for direction, factor in (("forward", 4), ("forward_backward", 14)):
        found, full, past = (row[direction] for row in (eager, dense, causal))
        assert found["useful_flops_per_second"] == pytest.approx(factor * pairs * 16 / found["seconds"])
        rate = factor * 2 * 96**2 * 16 / full["seconds"]
        assert found["efficiency"] == pytest.approx(found["useful_flops_per_second"] / rate)
        assert found["break_even_density"] == pytest.approx(eager["density"] * past["seconds"] / found["seconds"])
        assert full["efficiency"] == pytest.approx(1) and full["break_even_density"] is None
        matmul = record["matmul_flops_per_second"]["float32"]
        assert found["matmul_share"] == pytest.approx(found["useful_flops_per_second"] / matmul)


def test_causal_attention_stands_in_for_causal_patterns_only():
    rows = measure(replace(SMALL, patterns=("window(9, 9)",), lengths=(64,)))["rows"]
    assert [(row["contender"], row["status"]) for row in rows][1] == ("sdpa causal", "skipped")
    assert "future" in rows[1]["reason"]
    assert rows[2]["forward"]["break_even_density"] == pytest.approx(rows[2]["forward"]["efficiency"])


def test_the_table_shows_every_case_and_no_skipped_peer(record):
    text = table(record)
    assert text.count("window(left=20), ") == 2 and "96 tokens, float32, density 19.60%" in text
    assert "dense()" in text and "causal()" in text
    skipped = {**record["rows"][0], "contender": "absent", "status": "skipped", "reason": "not installed"}
    assert "absent" not in table(record | {"rows": [*record["rows"], skipped]})


# --- the check -------------------------------------------------------------------------------------------------------


def wrong(monkeypatch, damage: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Make the implementation eager give another result."""
    import asterism.bench.contenders as module

    real = module.attend
    monkeypatch.setattr(module, "attend", lambda *x, **keywords: damage(real(*x, **keywords)))


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 1.01 * grad


DAMAGES = {
    "scaled": lambda out: 1.001 * out,
    "one number": lambda out: out + torch.nn.functional.one_hot(torch.tensor(3), out.shape[-1]) * 1e-3,
    "nan": lambda out: out * math.nan,
    "shape": lambda out: out[:, :, 1:],
    "gradient": _WrongGradient.apply,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_kernel_is_not_timed(monkeypatch, damage):
    wrong(monkeypatch, DAMAGES[damage])
    result = measure(replace(SMALL, lengths=(64,)))
    row = result["rows"][2]
    assert (row["contender"], row["status"]) == ("eager", "failed")
    assert row["forward"] is None and row["forward_backward"] is None
    assert ("shape" if damage == "shape" else "off by") in row["reason"]
    assert "eager           failed, not timed: " in table(result)


def test_a_kernel_that_breaks_does_not_stop_the_others(monkeypatch):
    def broken(out):
        raise RuntimeError("no such instruction\nmore")

    wrong(monkeypatch, broken)
    rows = measure(replace(SMALL, lengths=(64,)))["rows"]
    assert [row["status"] for row in rows] == ["timed", "timed", "failed"]
    assert rows[2]["reason"] == "RuntimeError: no such instruction"


def test_a_refusal_is_told_with_its_reason():
    rows = measure(replace(SMALL, lengths=(64,), dtypes=("float16",), implementations=("cpu",)))["rows"]
    assert rows[2]["status"] == "refused" and "float16" in rows[2]["reason"]


def test_without_backward_only_forward_is_timed():
    rows = measure(replace(SMALL, lengths=(64,), backward=False))["rows"]
    assert all(row["forward"] and row["forward_backward"] is None for row in rows)


# --- time and memory -------------------------------------------------------------------------------------------------


def test_tasks_take_turns_and_slow_ones_leave():
    order = []
    tasks = [TimedCall(partial(order.append, name), "cpu") for name in "abc"]
    in_turns(tasks, 20, patience=60)
    rounds = ["".join(order[start : start + 3]) for start in range(0, 60, 3)]
    assert all(set(one) == set("abc") for one in rounds) and len(set(rounds)) == 6
    slow = TimedCall(lambda: None, "cpu", seconds=[40.0])
    in_turns([slow], 3, patience=60)
    assert slow.seconds == [40.0]


def test_a_slow_first_call_counts_where_nothing_compiles():
    calls = []
    task = TimedCall(lambda: calls.append(0), "cpu")
    task.warm_up(patience=0)
    in_turns([task], 3, patience=0)
    assert len(calls) == len(task.seconds) == 1


def test_dense_attention_that_would_take_long_is_computed_in_part():
    """At a rate of 1 FLOP/s everything takes long: one head and a few queries stand for all, and the row says so."""
    dense, causal = DenseContender(False), DenseContender(True)
    dense.rate = causal.rate = 4.0 * CASE.square * CASE.head_dim / 64
    prepared, past = dense.prepare(CASE), causal.prepare(CASE)
    assert prepared.note == "1 of 2 heads, 24 of 96 queries, scaled" and prepared.share == 1 / 8
    assert past.note == "1 of 2 heads, scaled" and past.share == 1 / 2
    q, k, v, _ = CASE.operands()
    cut = prepared.compute(*prepared.select(q, k, v))
    torch.testing.assert_close(cut[0], prepared.compute(q, k, v)[0, :1, :24])
    causal.rate /= 1000
    assert "would take" in causal.reason_against(CASE)
    dense.rate = 1e15
    assert dense.prepare(CASE).share == 1


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_peak_memory_is_that_of_the_call():
    """The reference holds several n x n arrays; two of them at 1,024 tokens and one head are 8 MiB."""
    case = Case("causal()", 1024, "float32", 1, 1, 16, "cpu")
    found = peaks(Implementation("reference"), case, True, 1, 120)
    assert found["forward"] > 2 * 4 * 1024**2
    assert found["forward_backward"] > found["forward"]


# --- FlexAttention's native masks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "bigbird(block=16)",
        "window(left=40)",
        "strided(stride=12)",
        "fixed(stride=16, summary=3)",
        "longformer(window=12)",
        "window(3, 5) & ~stride(4) | global_keys((0, -1))",
        "dense()",
    ],
)
@pytest.mark.parametrize("n", (300, 256))
def test_native_masks_are_the_patterns(text, n):
    pattern = patterns.parse(text)
    rule = mask_function(pattern, n, "cpu")
    places = torch.arange(n)
    nothing = torch.zeros((), dtype=torch.int64)
    allowed = rule(nothing, nothing, places[:, None], places[None]).expand(n, n)
    np.testing.assert_array_equal(allowed, pattern.dense(n)[0])
    found, expected = block_mask(rule, n, "cpu"), create_block_mask(rule, None, None, n, n, device="cpu")
    torch.testing.assert_close(found.to_dense(), expected.to_dense())
    if n == 256:  # it looks pairs up in a full block at the end of the sequence if that is shorter than others
        torch.testing.assert_close(found.full_kv_num_blocks, expected.full_kv_num_blocks)


@pytest.mark.parametrize("text", ("bigbird(heads=4)", "per_head((causal(), dense()))", "shifted(window(left=2), by=3)"))
def test_patterns_without_a_native_mask(text):
    assert mask_function(patterns.parse(text), 64, "cpu") is None


# --- peers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "length", "reason"),
    [
        ("HF BigBird", "window(left=20)", 1024, "bigbird"),
        ("HF BigBird", "bigbird(block=64)", 1000, "multiple of 64"),
        ("HF BigBird", "bigbird(block=64)", 2**20, "n x n array"),
        ("HF Longformer", "window(left=20)", 1024, "both sides"),
        ("HF Longformer", "window(20, 20)", 1000 + 1, "multiple of 40"),
        ("FlexAttention", "window(left=20)", 2**20, "n\\^2 pairs"),
        ("FlexAttention", "bigbird(heads=2)", 1024, "native mask function"),
        ("xformers", "window(left=20)", 1024, "not installed|no CPU"),
        ("NATTEN", "window(left=20)", 1024, "not installed|no CPU"),
        ("flash-attn", "window(left=20)", 1024, "not installed|no CPU"),
        ("local-attention", "strided(7)", 1024, "not installed|causal windows"),
    ],
)
def test_peers_say_why_they_cannot_be_compared(name, text, length, reason):
    if name.startswith("HF") and find_spec("transformers") is None:
        reason = "not installed"
    assert re.search(reason, peer(name).reason_against(replace(CASE, pattern=text, length=length)))


COMPARABLE = {
    "HF BigBird": ("transformers", Case("bigbird(block=64)", 832, "float32", 1, 2, 16, "cpu")),
    "HF Longformer": ("transformers", Case("window(left=32, right=32)", 256, "float32", 2, 2, 16, "cpu")),
    "local-attention": ("local_attention", Case("window(left=31)", 256, "float32", 2, 2, 16, "cpu")),
}


@pytest.mark.parametrize("name", COMPARABLE)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_peers_compute_what_they_say(name, dtype):
    package, case = COMPARABLE[name]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    case = replace(case, dtype=dtype)
    assert peer(name).reason_against(case) is None
    found = check(peer(name), case, True)
    assert found.passed and not found.no_backward, found.reason


def test_hugging_face_bigbird_counts_its_own_pairs_and_leaves_numpy_alone():
    pytest.importorskip("transformers")
    _, case = COMPARABLE["HF BigBird"]
    np.random.seed(5)
    prepared = peer("HF BigBird").prepare(case)
    assert int(prepared.mask().sum()) == prepared.pairs
    after = np.random.random()
    np.random.seed(5)
    assert np.random.random() == after


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_flex_attention():
    found = check(peer("FlexAttention"), replace(CASE, length=300), True)
    assert found.passed and "no backward" in found.no_backward, found.reason


# --- the verb --------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys) -> Callable[..., Result]:
    def call(command: str) -> Result:
        code = main(["bench", *shlex.split(command)])
        return Result(code, *capsys.readouterr())

    return call


TINY = (
    "'window(left=20)' --lengths 64 96 --dtypes float32 --implementations eager --heads 2 --head-dim 16 --repeats 2"
    " --no-memory --no-peers"
)


def test_the_verb_prints_a_table_and_writes_record_and_plot(run, tmp_path):
    pytest.importorskip("matplotlib")
    result = run(f"{TINY} --output {tmp_path}/times.json --plot {tmp_path}/times.png")
    assert result.code == 0
    assert "window(left=20), 96 tokens, float32" in result.out and "eager" in result.out
    assert "eager: timed" in result.err and "eager: timed" not in result.out
    record = json.loads((tmp_path / "times.json").read_text())
    assert len(record["rows"]) == 6 and record["settings"]["lengths"] == [64, 96]
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["times.json", "times.png"]


def test_json_is_the_record(run):
    result = run(f"{TINY} --no-backward --json")
    rows = json.loads(result.out)["rows"]
    assert result.code == 0 and all(row["forward_backward"] is None for row in rows)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("'bigbrid()'", r"unknown pattern 'bigbrid'\. Did you mean 'bigbird'\?"),
        ("'bigbird(heads=3)'", r"3 heads"),
        ("--implementations eagr", r"unknown implementation 'eagr': use .*eager.*Did you mean 'eager'\?"),
        ("--dtypes float8", r"--dtypes: invalid choice: 'float8'"),
        ("--lengths 0", r"-n/--lengths: must be a whole number from 1 to 16,777,216, got '0'"),
        ("--repeats none", r"--repeats: must be a whole number from 1 to 16,777,216, got 'none'"),
        ("--device tpu", r"--device: invalid choice: 'tpu'"),
        ("--length 5", r"unknown flag --length\. Did you mean '--lengths'\?"),
        ("--plot picture.gif", r"--plot: the file name must end in \.png or \.svg, got 'picture\.gif'"),
        ("--lengths 99999999999999999999", r"must be a whole number from 1 to 16,777,216, got '9{20}'"),
        ("--lengths 16777216 --batch 4000", r"take 512,000 GiB, and the machine has [\d,]+ GiB: ask for less"),
        ("--threads 99999999999", r"--threads: must be a whole number from 1 to 4,096"),
        ("--output missing/times.json", r"there is no folder 'missing' to write 'times\.json' into"),
    ],
)
def test_usage_errors(run, command, message):
    result = run(command)
    assert re.fullmatch(f"asterism: error: .*{message}.*\n", result.err), result.err
    assert (result.code, result.out) == (2, "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(run):
    result = run("--device cuda")
    assert result.code == 2 and "no GPU" in result.err
