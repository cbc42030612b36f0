"""The Triton kernels against float64 formulas: on a GPU where there is one, else under Triton's interpreter.

Cases, oracle and tolerances are those of kernel_cases. The interpreter shows that the arithmetic, the tables and the
indexing are right; what the kernels compile to for a GPU is tested in test_triton_compiled.py, without one.
"""

import math
import os
import subprocess
import sys
from dataclasses import replace

import kernel_cases
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from kernel_cases import (
    MEMORIES,
    Case,
    assert_all_as_good,
    assert_equal_bits,
    attending,
    cases,
    check,
    cross_cases,
    differentiated,
    exact,
    inputs_of,
    laid_out,
    plain,
    unread_keys,
)
from oracle import rule
from strategies import build, hold, rules, tiers

from asterism import attend, clear_caches, compile_pattern, patterns
from asterism.errors import KernelError
from asterism.kernels.reference import reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytest.importorskip(
    "triton",
    minversion="3.7" if DEVICE.type == "cpu" else None,  # the interpreter of earlier ones cannot use today's numpy
    reason="needs the package triton, 3.7 or newer where there is no GPU; it is part of the dev extra on Linux",
)

from asterism.kernels.triton import kernel, tables  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("poison"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # numpy's, where a GPU would make inf or NaN
]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (1, 3, 8, 16, 17, 40)


class Moved(torch.autograd.Function):
    """The tensor on the device under test, with the same strides."""

    @staticmethod
    def forward(ctx, x):
        size = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
        return x.as_strided((size,), (1,)).to(DEVICE).as_strided(x.shape, x.stride())

    @staticmethod
    def backward(ctx, gradient):
        return gradient.cpu()


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch):
    """The cases of test_kernels are made and compared on the CPU, and computed on the device under test."""

    def attend_there(q, k, v, pattern, **keywords):
        keywords = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in keywords.items()}
        found = attend(Moved.apply(q), Moved.apply(k), Moved.apply(v), pattern, **keywords)
        return tuple(x.cpu() for x in found) if isinstance(found, tuple) else found.cpu()

    if DEVICE.type == "cuda":
        monkeypatch.setattr(kernel_cases, "attend", attend_there)


@pytest.fixture(autouse=True)
def whole_tiles(monkeypatch):
    """The interpreter takes its time per operation, whatever the size: it gets blocks as large as tiles."""
    if DEVICE.type == "cpu":
        blocks = {key: kernel._Blocks(128, 128, 4, 1) for key in kernel._BLOCKS}
        monkeypatch.setattr(kernel, "_BLOCKS", blocks)
        monkeypatch.setattr(kernel, "_IN_SHORT_TILES", {})


@pytest.fixture
def short_pieces(monkeypatch):
    """Rows and columns of more than two small tiles are cut."""
    clear_caches()
    monkeypatch.setattr(tables, "_SHORTEST_PIECE", 32)
    yield
    clear_caches()


@st.composite
def triton_cases(draw, kind=cases) -> Case:
    case = draw(kind(dtypes=DTYPES))
    return replace(
        case, batch=min(case.batch, 3), width=draw(st.sampled_from(WIDTHS)), value_width=draw(st.sampled_from(WIDTHS))
    )


# ---------------------------------------------------------------------------------------------------------------------
# The tables.


def dense_of_tables(plan, heads, kv_heads, of_rows) -> np.ndarray:
    """How often the tables of `tabulate` have each pair, [heads, n_queries, n_keys], read as the kernels read them."""
    program = tables.tabulate(plan, torch.device("cpu"), heads, kv_heads)
    tile, group = plan.tile, heads // kv_heads
    counts = np.zeros((heads, plan.n_queries, plan.n_keys), int)
    bits = np.unpackbits(program.masks.numpy().view(np.uint8), axis=-1, bitorder="little")[..., :tile]
    bits, by_key = bits[:, 0], bits[:, 1]
    assert np.array_equal(by_key, bits.swapaxes(1, 2))
    assert np.array_equal(
        bits.any(1), np.unpackbits(program.reads.numpy().view(np.uint8), axis=-1, bitorder="little")[..., :tile]
    )
    for part in program.parts:
        lists = part.rows if of_rows else part.columns
        order = [
            np.arange(n) if index is None else index.numpy()
            for n, index in ((part.n_queries, part.query_index), (part.n_keys, part.key_index))
        ]
        for piece in lists.pieces.tolist():
            which, own, first, full, count, _ = piece
            for number, (other, kind, member) in enumerate(lists.entries[first : first + count].tolist()):
                assert (kind == 0) == (number < full)
                row, column = (own, other) if of_rows else (other, own)
                queries, keys = (o[t * tile : (t + 1) * tile] for o, t in zip(order, (row, column), strict=True))
                cell = bits[kind, : len(queries), : len(keys)]
                if of_rows:
                    assert len(keys) == tile or kind, "a partial tile of keys must be masked"
                    assert member == 0
                for shared in range(lists.shared):
                    head = int(lists.heads[which + shared])
                    members = [head] if of_rows else [head * group + member + m for m in range(group)]
                    for one in members if of_rows or plan.heads == 1 else members[:1]:
                        counts[one][np.ix_(queries, keys)] += cell
    return counts


@pytest.mark.parametrize("of_rows", (True, False), ids=("rows", "columns"))
@pytest.mark.parametrize("count", tiers(20, 500))
def test_the_tables_hold_every_pair_once(count, of_rows, short_pieces):
    def law(drawn):
        heads, group, n, tile = drawn[1:]
        plan = compile_pattern(build(drawn[0]), n, tile=tile)
        found = dense_of_tables(plan, heads * group, heads, of_rows)
        np.testing.assert_array_equal(found, np.broadcast_to(plan.to_dense(), found.shape))

    heads_and_group = st.sampled_from(((1, 1), (1, 3), (2, 1), (2, 2)))
    drawn = heads_and_group.flatmap(
        lambda pair: st.tuples(
            rules(130, heads=pair[0] * pair[1], depth=4),
            st.just(pair[0]),
            st.just(pair[1]),
            st.sampled_from((1, 15, 33, 64, 97, 130)),
            st.sampled_from((16, 32, 64)),
        )
    )
    hold(law, drawn, count)


def pieces_of(text, n, tile, heads=1):
    return tables.tabulate(compile_pattern(text, n, tile=tile), torch.device("cpu"), heads, heads).parts


def test_long_rows_and_columns_are_cut_and_short_ones_are_not():
    """One global token among windows: its row and its column hold 4,096 tiles, the others a few."""
    (part,) = pieces_of("window(left=15) | global_tokens(0)", 2**16, 16)
    for lists in (part.rows, part.columns):
        pieces = lists.pieces.numpy()
        longest = tables._SHORTEST_PIECE // 16
        assert pieces[:, 4].max() <= longest
        assert lists.slots == len(pieces) - 2**12 + 1 == 4096 // longest
        assert (pieces[:, 5] >= 0).sum() == lists.slots
        assert list(pieces[:, 4]) == sorted(pieces[:, 4], reverse=True)


def test_equal_rows_are_not_cut():
    """Partial results of a dense pattern would take more memory than its output."""
    for text in ("dense()", "causal()", "window(left=20000)"):
        for part in pieces_of(text, 2**15, 64):
            assert part.rows.slots == part.columns.slots == 0


# ---------------------------------------------------------------------------------------------------------------------
# Against the oracle.


@pytest.mark.parametrize("count", tiers(10, 300))
def test_triton(count):
    hold(lambda case: check(case, "triton"), triton_cases(), count)


@pytest.mark.parametrize("count", tiers(2, 300))
def test_queries_of_another_sequence(count):
    hold(lambda case: check(case, "triton"), triton_cases(cross_cases), count)


@pytest.mark.parametrize("blocks", ((32, 16), (16, 32)))
def test_blocks_smaller_than_tiles(blocks, monkeypatch):
    """Two rows of tiles of 64, with grouped heads; full tiles, mixed ones, and a token order."""
    monkeypatch.setattr(kernel, "_BLOCKS", dict.fromkeys(kernel._BLOCKS, kernel._Blocks(*blocks, 4, 1)))
    for text in ("window(left=70, right=9)", "columns(2) | global_queries((5, 60))"):
        inputs = inputs_of(Case(rule("dense"), heads=2, n_queries=90, n_keys=90, batch=1, dtype=torch.float32))
        inputs.mask[:] = torch.from_numpy(patterns.parse(text).dense(90))
        assert compile_pattern(text, 90).tile >= 32
        found = differentiated(
            lambda *x, text=text: kernel_cases.attend(*x, text, return_lse=True, implementation="triton"), inputs
        )
        assert_all_as_good(found, exact(inputs, 0.5), plain(inputs, 0.5), torch.float32)


@pytest.mark.parametrize("count", tiers(2, 60))
def test_output_alone(count):
    hold(lambda case: check(case, "triton", return_lse=False), triton_cases(), count)


@pytest.mark.parametrize("count", tiers(3, 100))
def test_pieces(count, short_pieces):
    """Long rows and columns: every query reads the first keys, and the first queries read every key."""

    def law(case):
        wide = rule("global_tokens", positions=(0, 2))
        check(replace(case, rule=case.rule & rule("window", left=7) | wide), "triton")

    hold(law, triton_cases(), count)


@pytest.mark.slow
def test_pieces_are_merged_in_every_half(short_pieces):
    """Rows and columns of five tiles, in two passes, with grouped heads that have rules of their own."""
    text = "per_head([strided(8) | global_tokens(0), window(left=3) | global_tokens((1, 70))])"
    plan = compile_pattern(text, 90, tile=None)
    program = tables.tabulate(plan, torch.device("cpu"), 2, 1)
    assert any(part.rows.slots for part in program.parts) and any(part.columns.slots for part in program.parts)
    for dtype in DTYPES[:2]:
        inputs = inputs_of(Case(rule("dense"), heads=2, n_queries=90, n_keys=90, width=8, dtype=dtype))
        inputs.mask[:] = torch.from_numpy(patterns.parse(text).dense(90))
        found = differentiated(
            lambda *x: kernel_cases.attend(*x, text, return_lse=True, implementation="triton"), inputs
        )
        assert_all_as_good(found, exact(inputs, 8**-0.5), plain(inputs, 8**-0.5), dtype)


def assert_unread_keys_change_no_bit(case):
    inputs = inputs_of(case)
    unread = unread_keys(inputs)
    bad = torch.tensor([math.nan, math.inf, -math.inf], dtype=case.dtype)
    k, v = inputs.k.clone(), inputs.v.clone()
    for x in (k, v):
        x[unread] = bad[torch.arange(unread.sum() * x.shape[-1]) % 3].reshape(-1, x.shape[-1])
    clean = replace(inputs, k=inputs.k.clone(), v=inputs.v.clone())
    before, after = (differentiated(attending(case, x, "triton"), x) for x in (clean, replace(inputs, k=k, v=v)))
    assert_equal_bits(before, after)


@pytest.mark.parametrize("count", tiers(2, 100))
def test_what_nobody_reads_changes_no_bit(count):
    sparse = triton_cases().map(lambda case: replace(case, rule=case.rule & rule("columns", period=3, count=2)))
    hold(assert_unread_keys_change_no_bit, sparse.filter(lambda case: unread_keys(inputs_of(case)).any()), count)


@pytest.mark.parametrize("why", ("pattern", "key_mask", "segments"))
def test_whatever_the_reason_that_nobody_reads_a_key(why):
    shape = rule("columns", period=3, count=2) if why == "pattern" else rule("dense")
    case = Case(shape, n_queries=1, n_keys=40, dtype=torch.float32, padding=why == "key_mask")
    case = replace(case, segments=why == "segments")
    assert unread_keys(inputs_of(case)).any()
    assert_unread_keys_change_no_bit(case)


@pytest.mark.parametrize("width", (7, 64, 80, 128, 256))
def test_widths(width):
    dtype = DTYPES[width % 3]
    check(
        Case(
            rule("strided", stride=5),
            n_queries=35,
            n_keys=35,
            batch=1,
            width=width,
            value_width=257 - width,
            dtype=dtype,
        ),
        "triton",
    )


@pytest.mark.parametrize(
    "text",
    (
        "fixed(8, summary=2)",
        "bigbird_causal(block=4)",
        "longformer(window=6)",
        "tree('60:40;100:40', size=200, pattern=sinks(2, 60))",
    ),
)
def test_published_patterns(text):
    """Longer than a tile, with grouped queries."""
    n, heads = 140, {"heads": 2, "kv_heads": 1, "batch": 1}
    inputs = inputs_of(Case(rule("dense"), **heads, n_queries=n, n_keys=n, width=16, dtype=torch.float32))
    inputs.mask[:] = torch.from_numpy(patterns.parse(text).dense(n))
    found = differentiated(lambda *x: (kernel_cases.attend(*x, text, implementation="triton"), None), inputs)
    assert_all_as_good(found, exact(inputs, 0.25, False), plain(inputs, 0.25, False), torch.float32)


@pytest.mark.parametrize("shape", ((2, 0, 0), (2, 0, 5), (2, 1, 1), (0, 4, 4)))
def test_none_and_one(shape):
    batch, n_queries, n_keys = shape
    for text in ("causal()", "fixed(4)", "~dense()", "bigbird(block=4)"):
        q, k, v = (torch.randn(batch, 2, n, 3, device=DEVICE, requires_grad=True) for n in (n_queries, n_keys, n_keys))
        out, lse = attend(q, k, v, text, return_lse=True, implementation="triton")
        assert out.shape == (batch, 2, n_queries, 3) and lse.shape == (batch, 2, n_queries)
        out.sum().backward()
        assert not any(x.isnan().any() for x in (out, q.grad, k.grad, v.grad))
        if n_keys == 1:
            assert torch.equal(out, torch.zeros_like(v) if text == "~dense()" else v.detach())


def test_huge_scores():
    """float32 scores of 1e4 and -1e4 overflow a naive exponential."""
    q = torch.full((1, 1, 40, 1), 100.0, device=DEVICE)
    k = torch.linspace(-100, 100, 40, device=DEVICE).reshape(1, 1, 40, 1)
    v = torch.arange(40.0, device=DEVICE).reshape(1, 1, 40, 1)
    out, lse = attend(q, k, v, "strided(4)", scale=1.0, return_lse=True, implementation="triton")
    torch.testing.assert_close(out, v)
    torch.testing.assert_close(lse[0, 0], 100 * k[0, 0, :, 0])


def test_the_gradient_of_an_empty_row_is_zero_whatever_comes_from_above():
    case = Case(rule("fixed", stride=4) & ~rule("global_queries", positions=(3, 4)), n_queries=9, n_keys=9)
    case = replace(case, dtype=torch.float32)
    inputs = inputs_of(case)
    for d_empty in (0.0, math.nan, math.inf):
        d_lse = inputs.d_lse.masked_fill(~inputs.mask.any(-1), d_empty)
        found = differentiated(attending(case, inputs, "triton"), replace(inputs, d_lse=d_lse))
        assert_all_as_good(found, exact(inputs, case.factor), plain(inputs, case.factor), case.dtype)


@pytest.mark.parametrize("repeats", (pytest.param(2, id="few"), pytest.param(20, id="many", marks=pytest.mark.slow)))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_equal_bits(dtype, repeats, short_pieces):
    case = Case(rule("strided", stride=8) | rule("global_tokens", positions=(0, 50)), n_queries=70, n_keys=70)
    inputs = inputs_of(case := replace(case, batch=1, heads=2, dtype=dtype, width=16))
    first = differentiated(attending(case, inputs, "triton"), inputs)
    for _ in range(repeats - 1):
        assert_equal_bits(first, differentiated(attending(case, inputs, "triton"), inputs))


def test_inputs_and_gradients_given_are_left_alone():
    case = Case(rule("strided", stride=4), n_queries=30, n_keys=30, padding=True, segments=True, dtype=torch.float32)
    inputs = inputs_of(case)
    tensors = [*inputs.tensors, inputs.d_out, inputs.d_lse, inputs.keywords["key_mask"], inputs.keywords["segments"]]
    before = [x.clone() for x in tensors]
    differentiated(attending(case, inputs, "triton"), inputs)
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# Offsets beyond 32 bits.

FAR = '''
import mmap, tempfile
import torch
from asterism import attend
from asterism.kernels.triton.kernel import triton_decode

STEP = 2**30  # as int32, STEP * 8 is 0: an offset in 32 bits comes out at another token or outside

def far(shape, far_axis, generator):
    """Numbers 2**30 elements apart, in a file of which nobody touches the rest, so that it takes no space."""
    file = tempfile.TemporaryFile()
    file.truncate(2 * (2**33 + 2**20))
    stride = [STEP if axis == far_axis else step for axis, step in enumerate((400, 100, 10, 1))]
    view = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.float16).as_strided(shape, stride)
    return view.copy_(torch.randn(shape, generator=generator)).requires_grad_()

def check(shape, far_axis):
    generator = torch.Generator().manual_seed(0)
    there = [far(shape, far_axis, generator) for _ in range(3)]
    here = [x.detach().clone().contiguous().requires_grad_() for x in there]
    assert all(x.stride(far_axis) * (shape[far_axis] - 1) == 2**33 for x in there)
    results = []
    for inputs in (there, here):
        out, lse = attend(*inputs, "causal()", return_lse=True, implementation="triton")
        results.append([out, lse, *torch.autograd.grad([out.sum() + lse.sum()], inputs)])
        allowed = torch.ones(1, 1, shape[2], shape[2], dtype=torch.bool)
        results[-1] += triton_decode(*(x.detach() for x in inputs), allowed, 1.0)
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True)), (shape, far_axis)
    assert all(x.any() for x in results[0])

check((9, 1, 2, 4), 0)
check((1, 9, 2, 4), 1)
check((1, 1, 9, 4), 2)
check((1, 1, 2, 9), 3)
print("equal")
'''


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or DEVICE.type != "cpu", reason="needs memory that is reserved, not used")
def test_offsets_reach_2_to_the_33_elements():
    """In a process of its own, because an offset cut to 32 bits reads where nothing is."""
    command = [sys.executable, "-W", "ignore", "-c", FAR]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.stdout == "equal\n", ended.stderr[-2000:]


# ---------------------------------------------------------------------------------------------------------------------
# Decoding.


@pytest.mark.parametrize(
    ("n_queries", "n_keys", "heads", "kv_heads", "memory"),
    list(zip((1, 3, 20, 1, 2), (70, 270, 33, 1, 129), (4, 2, 4, 1, 6), (1, 2, 2, 1, 2), MEMORIES[:5], strict=True)),
)
def test_decode(n_queries, n_keys, heads, kv_heads, memory, monkeypatch):
    """Against the reference, with slots that nobody reads and that hold NaN; over several chunks of keys."""
    monkeypatch.setattr(kernel, "_DECODED_KEYS", 128)
    for number, dtype in enumerate(DTYPES):
        generator = torch.Generator().manual_seed(number)
        q, k, v = (
            laid_out(shape, memory, dtype, generator).clone(memory_format=torch.preserve_format)
            for shape in ((2, heads, n_queries, 24), (2, kv_heads, n_keys, 24), (2, kv_heads, n_keys, 9))
        )
        shape = [(2, heads), (1, heads), (2, 1)][number]
        allowed = torch.rand((*shape, n_queries, n_keys), generator=generator) < 0.6
        allowed[..., n_keys // 2 :: 3] = False
        allowed[:, :, 0] &= n_queries == 1
        k[:, :, n_keys // 2 :: 3] = math.nan
        v[:, :, n_keys // 2 :: 3] = math.inf
        expected, lse = reference(q.double(), k.double(), v.double(), allowed, 0.3)
        compared, compared_lse = reference(q, k, v, allowed, 0.3)
        found, found_lse = (x.cpu() for x in kernel.triton_decode(*(x.to(DEVICE) for x in (q, k, v, allowed)), 0.3))
        assert found.dtype == dtype and found_lse.dtype == torch.float32
        kernel_cases.assert_as_good(
            "out", found, expected.numpy(), compared, dtype, torch.finfo(dtype).eps / 2 * float(expected.abs().max())
        )
        kernel_cases.assert_as_good("lse", found_lse, lse.numpy(), compared_lse, dtype, 1e-6)


def test_decode_of_nothing_is_zero():
    q, k, v = (torch.randn(1, 2, n, 8, device=DEVICE) for n in (1, 0, 0))
    allowed = torch.zeros(1, 1, 1, 0, dtype=torch.bool, device=DEVICE)
    out, lse = kernel.triton_decode(q, k, v, allowed, 1.0)
    assert torch.equal(out, torch.zeros_like(q)) and (lse == -math.inf).all()


# ---------------------------------------------------------------------------------------------------------------------
# The operator and the door.


def test_opcheck():
    case = Case(rule("fixed", stride=4), heads=2, n_queries=20, n_keys=20, dtype=torch.float32, padding=True)
    inputs = inputs_of(replace(case, segments=True))
    arguments = [*inputs.tensors, inputs.keywords["key_mask"], inputs.keywords["segments"]]
    arguments = [x.to(DEVICE) for x in arguments]
    leaves = [x.requires_grad_() for x in arguments[:3]]
    torch.library.opcheck(
        torch.ops.asterism.triton.default,
        (*leaves, *arguments[3:], *[None] * 3, build(case.rule).text, 0, 0.5, 0, 0.0, 0.0, 0),
    )


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # PyTorch 2.11's own
def test_fullgraph():
    q, k, v = (torch.randn(1, 2, 40, 8, device=DEVICE) for _ in range(3))

    def compute(q, k, v):
        return attend(2 * q, k, v, "fixed(5)", implementation="triton") + 0

    torch.compiler.reset()
    compiled = torch.compile(compute, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), compute(q, k, v))
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("scale", "ascends"), [(0.3, True), (1e-37, True), (1e-40, False), (0.0, False), (-0.3, False)]
)
def test_products_are_compared_before_their_scale_only_where_it_is_positive_in_float32(scale, ascends, monkeypatch):
    """A GPU may take 1e-40 for 0, and 0 times the -inf of a pair that is not allowed is no number."""
    found, really_launch = [], kernel.launch

    def launch(function, programs, arguments):
        found.append(arguments.get("ASCENDING"))
        really_launch(function, programs, arguments)

    monkeypatch.setattr(kernel, "launch", launch)
    q, k, v = (torch.randn(1, 1, 20, 8, device=DEVICE) for _ in range(3))
    out = attend(q, k, v, "causal()", scale=scale, implementation="triton")
    assert found[0] is ascends
    torch.testing.assert_close(out, attend(q, k, v, "causal()", scale=scale, implementation="reference"))


def zeros(dtype=torch.float32, width=8, device=None):
    return [torch.zeros(1, 1, 4, width, dtype=dtype, device=device) for _ in range(3)]


@pytest.mark.parametrize(
    ("tensors", "parts"),
    [
        (zeros(dtype=torch.float64), ("float64", "float32", "eager")),
        (zeros(width=257), ("257", "256", "eager")),
    ],
    ids=("float64", "width"),
)
def test_refusals(tensors, parts):
    with pytest.raises(KernelError) as refused:
        attend(*tensors, "causal()", implementation="triton")
    assert all(part in str(refused.value) for part in parts)


def test_refused_without_triton(monkeypatch):
    monkeypatch.setattr(kernel, "_INSTALLED", False)
    with pytest.raises(KernelError, match="triton.*not installed"):
        attend(*zeros(device=DEVICE), "causal()", implementation="triton")


def test_refused_on_a_cpu_without_the_interpreter():
    code = "import torch\nfrom asterism import attend\nq = torch.zeros(1, 1, 4, 8)\n"
    code += "attend(q, q, q, 'causal()', implementation='triton')"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    last = ended.stderr.strip().splitlines()[-1]
    assert "KernelError" in last and "GPU" in last and "cpu" in last and "TRITON_INTERPRET" in last


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_auto_is_triton_on_a_gpu():
    q = torch.randn(1, 1, 4096, 16, device=DEVICE, dtype=torch.bfloat16)
    found, expected = (attend(q, q, q, "window(left=63)", implementation=name) for name in ("auto", "triton"))
    assert torch.equal(found, expected)
