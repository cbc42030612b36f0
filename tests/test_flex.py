"""FlexAttention: its block masks against the patterns, the calls around it against the oracle, and what is refused.

Compiling takes seconds per case, so generated cases run with FlexAttention itself replaced by the reference on the mask
that its BlockMask describes; a few cases compile it.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_cases import (
    Case,
    assert_all_as_good,
    assert_as_good,
    assert_equal_bits,
    attending,
    cases,
    check,
    cross_cases,
    differentiated,
    exact,
    inputs_of,
    plain,
    unread_keys,
)
from oracle import rule
from strategies import hold, tiers
from term_cases import check_terms, term_cases
from test_part import part_cases
from torch._dynamo.exc import BackendCompilerFailed

from asterism import Alibi, Dropout, SoftSpan, Terms, attend, compile_pattern, patterns
from asterism.errors import KernelError
from asterism.kernels import decode_slots, flex
from asterism.kernels.reference import reference

pytestmark = pytest.mark.usefixtures("poison")

HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
PATTERNS = (
    "window(left=9, right=3)",
    "fixed(16, summary=3)",
    "fixed(16, summary=3, heads=3)",
    "strided(7)",
    "bigbird(block=16, heads=3)",
    "longformer(window=12)",
    "yun_star()",
    "per_head((causal(), strided(5), ~dense()))",
)
on_x86_linux = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="FlexAttention needs AVX2 on CPUs"
)


def described(blocks, heads: int, batch: int) -> torch.Tensor:
    """The mask that a BlockMask means, bool [batch, heads, queries, keys]."""
    n_queries, n_keys = blocks.seq_lengths
    tile = blocks.BLOCK_SIZE[0]

    def spread(counts, columns):
        chosen = torch.arange(columns.shape[-1]) < counts[..., None]
        tiles = torch.zeros(columns.shape, dtype=torch.bool).scatter(-1, columns.long(), chosen)
        return tiles.repeat_interleave(tile, -2).repeat_interleave(tile, -1)[..., :n_queries, :n_keys]

    axes = (batch, heads, n_queries, n_keys)
    where = [
        torch.arange(size).reshape([-1 if own == axis else 1 for own in range(4)]) for axis, size in enumerate(axes)
    ]
    mask = spread(blocks.kv_num_blocks, blocks.kv_indices) & blocks.mask_mod(*where)
    if blocks.full_kv_num_blocks is not None:
        mask = mask | spread(blocks.full_kv_num_blocks, blocks.full_kv_indices)
    return mask.expand(axes)


@pytest.mark.parametrize("tile", (16, 64, 128))
@pytest.mark.parametrize("n_queries", (150, 64, 37))
@pytest.mark.parametrize("text", PATTERNS)
def test_the_block_masks_hold_every_pair_once(text, n_queries, tile):
    pattern, n_keys = patterns.parse(text), 150
    plan = compile_pattern(pattern, n_queries, n_keys, tile=tile)
    counts = np.zeros((pattern.heads, n_queries, n_keys), int)
    for call in flex._calls(plan, torch.device("cpu")):
        heads = range(pattern.heads) if call.heads is None else call.heads
        mask = described(call.blocks, len(heads), 1)[0].numpy()
        queries = np.arange(n_queries) if call.query_index is None else call.query_index.numpy()
        keys = np.arange(n_keys) if call.key_index is None else call.key_index.numpy()
        for number, head in enumerate(heads):
            query, key = np.nonzero(mask[number])
            np.add.at(counts[head], (queries[query], keys[key]), 1)
    np.testing.assert_array_equal(counts, pattern.dense(n_queries, n_keys).astype(int))


def test_full_tiles_need_no_look():
    """In BigBird's tiles every pair is allowed, so that no mask function runs."""
    plan = compile_pattern("bigbird(block=64)", 1024, tile=64)
    (call,) = flex._calls(plan, torch.device("cpu"))
    assert not call.blocks.kv_num_blocks.any()
    assert call.blocks.full_kv_num_blocks.sum() == plan.tiles


@pytest.fixture
def interpreted(monkeypatch):
    """FlexAttention replaced by the reference on the mask that it is given; nothing is refused."""

    def compute(q, k, v, blocks, score, scale, with_lse):
        mask = described(blocks, q.shape[1], q.shape[0])
        out, lse = reference(q, k, v, mask, scale) if score is None else scored(q, k, v, mask, score, scale)
        return out, lse if with_lse else None

    def scored(q, k, v, mask, score, scale):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        places = torch.meshgrid(*map(torch.arange, mask.shape), indexing="ij")
        scores = score(scale * (q @ k.mT), *places).masked_fill(~mask, -math.inf)
        empty = (scores == -math.inf).all(-1)
        lse = scores.masked_fill(empty[..., None], 0).logsumexp(-1)  # has no gradient where all scores are -inf
        weights = (scores - lse[..., None]).exp()
        return weights @ v, lse.masked_fill(empty, -math.inf)

    monkeypatch.setattr(flex, "_compiled", compute)
    monkeypatch.setattr(flex, "refusal", lambda operands: None)
    monkeypatch.setattr(flex, "_refuse_several", lambda: None)


@pytest.mark.usefixtures("interpreted")
class TestAroundTheKernel:
    """Orders, joined passes, heads, batch masks and merging, with gradients."""

    @pytest.mark.parametrize("count", tiers(40, 500))
    def test_generated_cases(self, count, monkeypatch):
        """In half precision with a few queries at least: the error of plain arithmetic on one number is luck."""
        monkeypatch.setattr(flex, "_CPU_TILE", 16)
        measurable = cases(HALF_AND_SINGLE).filter(lambda case: case.dtype == torch.float32 or case.n_queries > 8)
        hold(lambda case: check(case, "flex"), measurable, count)

    @pytest.mark.parametrize("count", tiers(20, 500))
    def test_queries_of_another_sequence(self, count, monkeypatch):
        monkeypatch.setattr(flex, "_CPU_TILE", 16)
        measurable = cross_cases(HALF_AND_SINGLE).filter(lambda case: case.dtype == torch.float32 or case.n_queries > 8)
        hold(lambda case: check(case, "flex"), measurable, count)

    @pytest.mark.parametrize("count", tiers(20, 500))
    def test_parts_of_sequences(self, count, monkeypatch):
        monkeypatch.setattr(flex, "_CPU_TILE", 16)
        hold(lambda case: check(case, "flex"), part_cases((torch.float32,)), count)

    @pytest.mark.parametrize("count", tiers(25, 500))
    def test_generated_terms(self, count, monkeypatch):
        monkeypatch.setattr(flex, "_CPU_TILE", 16)
        hold(lambda chosen: check_terms(chosen, "flex"), term_cases("flex"), count)

    @pytest.mark.parametrize("count", tiers(15, 200))
    def test_what_nobody_reads_changes_no_bit(self, count, monkeypatch):
        monkeypatch.setattr(flex, "_CPU_TILE", 16)

        def law(case):
            inputs = inputs_of(case)
            unread = unread_keys(inputs)
            k, v = inputs.k.clone(), inputs.v.clone()
            for x in (k, v):
                x[unread] = torch.nan
            before, after = (differentiated_with(case, x) for x in (inputs, replace(inputs, k=k, v=v)))
            assert_equal_bits(before, after)

        sparse = cases(HALF_AND_SINGLE).map(
            lambda case: replace(case, rule=case.rule & rule("columns", period=3, count=2))
        )
        hold(law, sparse, count)

    @pytest.mark.parametrize("text", PATTERNS)
    def test_published_patterns(self, text, monkeypatch):
        monkeypatch.setattr(flex, "_CPU_TILE", 16)
        pattern, n = patterns.parse(text), 150
        inputs = inputs_of(Case(rule("dense"), heads=3, n_queries=n, n_keys=n, width=16, dtype=torch.float32, batch=1))
        inputs.mask[:] = torch.from_numpy(pattern.dense(n))
        found = differentiated(lambda *x: attend(*x, text, return_lse=True, implementation="flex"), inputs)
        assert_all_as_good(found, exact(inputs, 0.25), plain(inputs, 0.25), torch.float32)


def differentiated_with(case, inputs):
    return differentiated(attending(case, inputs, "flex"), inputs)


# --- compiled --------------------------------------------------------------------------------------------------------

COMPILED = {
    "joined passes, grouped queries, batch masks": Case(
        rule("fixed", stride=16, summary=3),
        heads=4,
        kv_heads=2,
        n_queries=150,
        n_keys=150,
        value_width=8,
        width=16,
        dtype=torch.float32,
        padding=True,
        segments=True,
    ),
    "bfloat16": Case(
        rule("window", left=20),
        heads=2,
        kv_heads=2,
        n_queries=130,
        n_keys=130,
        width=16,
        value_width=16,
        dtype=torch.bfloat16,
        batch=4,
    ),
    "full tiles": Case(rule("bigbird", block=16), n_queries=150, n_keys=150, width=8, dtype=torch.float32),
    "half precision": Case(rule("causal"), heads=2, n_queries=70, n_keys=70, width=8, dtype=torch.float16, batch=4),
    "a list per head": Case(
        rule("fixed", stride=16, summary=3, heads=4),
        heads=4,
        kv_heads=2,
        n_queries=70,
        n_keys=70,
        width=16,
        dtype=torch.float32,
    ),
    "random blocks per head": Case(
        rule("bigbird", block=16, heads=4),
        heads=4,
        kv_heads=1,
        n_queries=100,
        n_keys=100,
        dtype=torch.float32,
    ),
    "cross lengths": Case(rule("window", left=9, right=2), n_queries=37, n_keys=90, offset=20, dtype=torch.float32),
    "queries that read nothing": Case(
        rule("fixed", stride=4) & ~rule("global_queries", positions=(3, 4)),
        n_queries=40,
        n_keys=40,
        dtype=torch.float32,
    ),
    "a scale of zero": Case(rule("causal"), n_queries=33, n_keys=33, dtype=torch.float32, scale=0.0),
    "one token": Case(rule("causal"), n_queries=1, n_keys=1, dtype=torch.float32),
    "tokens first": Case(
        rule("blocks", size=7), heads=2, n_queries=50, n_keys=50, dtype=torch.float32, memory="tokens first"
    ),
}
IN_EVERY_RUN = ("joined passes, grouped queries, batch masks",)


@on_x86_linux
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
class TestCompiled:
    """FlexAttention itself, forward only: CPUs have no more."""

    @pytest.fixture(autouse=True)
    def poison(self):
        """The compiler's own buffers are left alone."""

    @pytest.mark.parametrize(
        "name", [name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.slow) for name in COMPILED]
    )
    def test_against_the_oracle(self, name):
        case = COMPILED[name]
        inputs = inputs_of(case)
        unread = unread_keys(inputs)
        inputs.k[unread], inputs.v[unread] = torch.nan, torch.inf
        out, _ = attending(case, inputs, "flex", return_lse=False)(*inputs.tensors)
        inputs.k[unread], inputs.v[unread] = 0, 0
        expected, compared = ({"out": x["out"]} for x in (exact(inputs, case.factor), plain(inputs, case.factor)))
        assert out.dtype == case.dtype
        compare_outputs(out, expected, compared, case.dtype)
        assert not out[~inputs.mask.any(-1)].any()

    @pytest.mark.slow
    @pytest.mark.parametrize("text", ("window(left=9)", "per_head([causal(), window(left=3), causal(), ~dense()])"))
    def test_terms(self, text):
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(2, heads, 37, 16, generator=generator) for heads in (4, 2, 2))
        terms = Terms(bias=Alibi(torch.rand(4, generator=generator)), softcap=2.0)
        found = attend(q, k, v, text, terms=terms, implementation="flex")
        torch.testing.assert_close(found, attend(q, k, v, text, terms=terms, implementation="reference"))

    @pytest.mark.slow
    def test_slots_of_a_cache(self):
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(2, heads, n, 8, generator=generator) for heads, n in ((4, 3), (2, 37), (2, 37)))
        allowed = torch.rand(2, 4, 3, 37, generator=generator) < 0.5
        out = decode_slots(q, k, v, allowed, implementation="flex")
        torch.testing.assert_close(out, reference(q, k, v, allowed)[0])

    @pytest.mark.slow
    def test_many_shapes_stay_compiled(self):
        """Beyond PyTorch's limit of eight compilations per function."""
        for n in range(20, 32):
            q = torch.randn(1, 1, n, 8)
            expected = attend(q, q, q, "window(left=3)", implementation="reference")
            torch.testing.assert_close(attend(q, q, q, "window(left=3)", implementation="flex"), expected)


def compare_outputs(out, expected, compared, dtype):
    rounding = torch.finfo(dtype).eps / 2 * np.abs(expected["out"]).max()
    assert_as_good("out", out, expected["out"], compared["out"], dtype, rounding)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("causal()", {"dtype": torch.float64}, "float64.*use .*eager"),
        ("causal()", {"requires_grad": True}, "no backward on CPU: use"),
        ("causal()", {"return_lse": True}, "log-sum-exp on CPU: use"),
        ("causal()", {"terms": Terms(dropout=Dropout(0.1, 0))}, "cannot compute dropout of terms: use"),
        ("causal()", {"terms": Terms(relative=torch.zeros(50, 8))}, "cannot compute relative of terms: use"),
        ("causal()", {"terms": Terms(bias=SoftSpan(torch.zeros(2), 2))}, "reads keys whose bias is -inf .*: use"),
        (
            "causal()",
            {"terms": Terms(bias=Alibi(torch.ones(2, requires_grad=True)))},
            "no gradient of a bias: use .*no_grad",
        ),
        ("strided(7)", {}, "cannot merge the passes.*use"),
    ],
)
def test_refused_on_cpu(text, changes, message):
    keywords = {name: value for name, value in changes.items() if name in ("return_lse", "terms")}
    q = torch.zeros(1, 2, 600, 8, **{name: value for name, value in changes.items() if name not in keywords})
    with pytest.raises(KernelError, match=message):
        attend(q, q, q, text, implementation="flex", **keywords)


def test_where_nothing_can_be_compiled(monkeypatch):
    def broken(*_, **__):
        raise BackendCompilerFailed(broken, RuntimeError("no C++ compiler found"), None)

    monkeypatch.setattr(flex, "_compiler", lambda: broken)
    q = torch.zeros(1, 1, 8, 8)
    with pytest.raises(KernelError, match="could not be compiled: .*no C.. compiler found.*use"):
        attend(q, q, q, "window(left=3)", implementation="flex")


def test_no_part_of_a_graph():
    """It compiles itself, so a compiled function breaks there, and one that must not break says why."""

    def double(q):
        return attend(2 * q, q, q, "~dense()", implementation="flex")

    q = torch.ones(1, 1, 8, 8)
    assert torch.equal(torch.compile(double, backend="eager")(q), torch.zeros_like(q))
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="compiles itself"):
        torch.compile(double, backend="eager", fullgraph=True)(q)
