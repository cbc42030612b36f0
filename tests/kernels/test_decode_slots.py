"""Attention of a few queries against slots of a cache, with who may read what given as a mask."""

import math
from dataclasses import dataclass

import numpy as np
import oracle
import pytest
import torch
from kernel_cases import DTYPES, assert_as_good, has_compiler, implementations
from refusals import refusing

from asterism import Alibi, Buckets, DistanceTable, Dropout, SoftSpan, Terms, attend
from asterism.errors import KernelError
from asterism.kernels import cpu, decode, decode_slots, readable
from asterism.kernels.choice.choice import choose_for_cache
from asterism.kernels.dense import MASKED
from asterism.kernels.operands import Operands
from asterism.kernels.slots import of_slots
from asterism.patterns import parse

pytestmark = pytest.mark.usefixtures("poison")


@dataclass(frozen=True)
class Slots:
    """What is decoded. `lent`: keys and values are views of larger buffers; `sparse`: how many slots are allowed."""

    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    queries: int = 1
    slots: int = 37
    width: int = 8
    value_width: int = 8
    dtype: torch.dtype = torch.float32
    rows_of_mask: int = 1
    heads_of_mask: int = 1
    sparse: float = 0.7
    lent: bool = False
    scale: float | None = None
    seed: int = 0


SLOTS = (
    Slots(),
    Slots(slots=0),
    Slots(slots=1, sparse=1.0),
    Slots(batch=1, heads=1, kv_heads=1, slots=700, width=64, value_width=64, sparse=1.0),
    Slots(batch=1, heads=8, kv_heads=2, slots=530, width=64, value_width=64, lent=True),
    Slots(queries=3, rows_of_mask=2, heads_of_mask=4, lent=True),
    Slots(queries=17, slots=300, heads=6, kv_heads=2, rows_of_mask=2, width=16, value_width=32),
    Slots(queries=300, slots=41, batch=1, heads_of_mask=4, width=5, value_width=3),
    Slots(queries=2, heads=12, kv_heads=1, slots=65, sparse=0.05, width=33, value_width=65, scale=0.3),
    Slots(queries=5, slots=257, heads=2, kv_heads=2, sparse=0.5, heads_of_mask=2, width=1, value_width=1, scale=-1.0),
    Slots(slots=2100, heads=8, kv_heads=4, width=64, value_width=64, sparse=0.4, rows_of_mask=2, lent=True),
    Slots(queries=4, heads=8, kv_heads=1, slots=90, width=256, value_width=256, scale=0.0),
)


@dataclass(frozen=True)
class Given:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    allowed: torch.Tensor

    @property
    def tensors(self):
        return self.q, self.k, self.v

    @property
    def mask(self):
        """bool [B, H, M, L]."""
        return self.allowed.expand(*self.q.shape[:2], -1, -1)

    def unread(self):
        """bool [B, Hkv, L]: slots that no query of the group may read."""
        read = self.mask.any(2).unflatten(1, (self.k.shape[1], -1)).any(2)
        return ~read


def given(case: Slots, poisoned: bool = True) -> Given:
    """Tensors of a case; with `poisoned`, what nobody may read holds NaN, and so does what surrounds a view."""
    generator = torch.Generator().manual_seed(case.seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(case.dtype)

    def kept(width):
        shape = case.batch, case.kv_heads, case.slots, width
        if not case.lent:
            return randn(*shape)
        whole = torch.full((case.batch + 1, case.slots + 9, case.kv_heads + 1, width + 3), math.nan, dtype=case.dtype)
        view = whole[1:, 4 : 4 + case.slots, :-1, 2 : 2 + width].transpose(1, 2)
        view.copy_(randn(*shape))
        return view

    q, k, v = randn(case.batch, case.heads, case.queries, case.width), kept(case.width), kept(case.value_width)
    shape = min(case.rows_of_mask, case.batch), case.heads_of_mask, case.queries, case.slots
    allowed = torch.rand(shape, generator=generator) < case.sparse
    if case.queries > 1:
        allowed[0, 0, -1] = False  # a query that may read nothing
    made = Given(q, k, v, allowed)
    if poisoned:
        k[made.unread()] = math.nan
        v[made.unread()] = math.nan
    return made


def exact(made: Given, scale: float):
    arrays = [x.double().nan_to_num().numpy() for x in made.tensors]
    return oracle.attention(*arrays, made.mask.numpy(), scale)


def plain(made: Given, scale: float):
    """Textbook attention in the dtype of the tensors."""
    k, v = (x.nan_to_num().repeat_interleave(made.q.shape[1] // x.shape[1], dim=1) for x in (made.k, made.v))
    some = made.mask.any(-1, keepdim=True)
    scores = (made.q @ k.transpose(-1, -2) * scale).masked_fill(~made.mask & some, -math.inf)
    lse = scores.logsumexp(-1) if scores.shape[-1] else scores.sum(-1)
    return scores.softmax(-1) @ v * some, lse.masked_fill(~some[..., 0], -math.inf)


def assert_right(made: Given, scale: float | None, out, lse=None):
    scale = 1 / math.sqrt(made.q.shape[3]) if scale is None else scale
    wide = torch.float64 if made.q.dtype == torch.float64 else torch.float32
    assert out.dtype == made.q.dtype and (lse is None or lse.dtype == wide)
    found = {"out": out} if lse is None else {"out": out, "lse": lse}
    for name, expected, compared in zip(found, exact(made, scale), plain(made, scale), strict=False):
        rounding = torch.finfo(found[name].dtype).eps * np.abs(expected[np.isfinite(expected)]).max(initial=0)
        assert_as_good(name, found[name], expected, compared, made.q.dtype, rounding)
    empty = ~made.mask.any(-1)
    assert not out[empty].any() and (lse is None or (lse[empty] == -math.inf).all())


@pytest.mark.parametrize("case", SLOTS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slots_against_the_oracle(case, dtype):
    made = given(Slots(**vars(case) | {"dtype": dtype}))
    for implementation in implementations(dtype):
        options = {"implementation": implementation, "scale": case.scale}
        if implementation != "dense":
            assert_right(made, case.scale, *decode_slots(*made.tensors, made.allowed, return_lse=True, **options))
        assert_right(made, case.scale, decode_slots(*made.tensors, made.allowed, **options))


def test_gradients_of_slots():
    """Where gradients are asked for, an implementation that has them computes."""
    made = given(Slots(queries=3, dtype=torch.float64), poisoned=False)
    leaves = [x.clone().requires_grad_() for x in made.tensors]

    def compute(*x):
        out, lse = decode_slots(*x, made.allowed, return_lse=True)
        return out, lse.masked_fill(lse == -math.inf, 0)

    assert torch.autograd.gradcheck(compute, leaves)
    for implementation in ("auto", *implementations(torch.float32)):
        leaves = [x.float().requires_grad_() for x in made.tensors]
        out = decode_slots(*leaves, made.allowed, implementation=implementation)
        found = torch.autograd.grad(out.sum(), leaves)
        arrays = [x.double().numpy() for x in made.tensors]
        scale, mask, ones = 1 / math.sqrt(8), made.mask.numpy(), np.ones(out.shape)
        expected = oracle.attention_gradients(*arrays, mask, scale, ones, np.zeros(out.shape[:3]))
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), torch.from_numpy(two), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=str)
@pytest.mark.parametrize("with_lse", (False, True))
def test_slots_in_a_compiled_graph(dtype, with_lse):
    """One graph for every number of slots, with the same results."""
    torch.compiler.reset()
    step = torch.compile(
        lambda *x: decode_slots(*x, return_lse=with_lse), fullgraph=True, backend="aot_eager", dynamic=True
    )
    with torch.no_grad():
        for slots in (37, 300):
            made = given(Slots(slots=slots, dtype=dtype))
            found = step(*made.tensors, made.allowed)
            assert_right(made, None, *(found if with_lse else (found,)))


def test_decode_is_slots_of_what_is_readable():
    made = given(Slots(batch=2, slots=40), poisoned=False)
    asked, kept = torch.tensor([[50], [44]]), torch.arange(10, 50)[None]
    expected = decode_slots(*made.tensors, readable(parse("window(left=9)"), asked, kept))
    assert torch.equal(decode(*made.tensors, "window(left=9)", asked, kept), expected)


@pytest.mark.parametrize(
    "wrong",
    (
        lambda x: x[:, :, :, 1:],
        lambda x: x[:, :, :0],
        lambda x: x[0],
        lambda x: x.float(),
        lambda x: x.expand(3, -1, -1, -1),
        lambda x: x.expand(-1, 2, -1, -1),
        lambda x: x.to("meta"),
    ),
    ids=("slots", "queries", "three dimensions", "floats", "batch", "heads", "device"),
)
def test_refuses_masks_that_do_not_fit(wrong):
    made = given(Slots())
    with pytest.raises(KernelError, match="^allowed must be .*$"):
        decode_slots(*made.tensors, wrong(made.allowed))


def test_refuses_what_is_no_mask():
    made = given(Slots())
    with refusing(KernelError, "not-a-tensor", "allowed", "NoneType"):
        decode_slots(*made.tensors, None)
    with refusing(KernelError, "unknown-implementation", "Did you mean 'eager'"):
        decode_slots(*made.tensors, made.allowed, implementation="eagre")


# --- the fused kernel on CPUs ----------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine")
FUSED = (torch.float32, torch.bfloat16)


def chosen(made: Given, implementation: str = "auto"):
    operands = Operands(*made.tensors, None, None, made.allowed, "", 0, 1.0, with_lse=False)
    return choose_for_cache(operands, implementation)


@needs_compiler
def test_who_decodes():
    for dtype in DTYPES:
        made = given(Slots(dtype=dtype))
        assert chosen(made) is (cpu.DECODING if dtype in FUSED else MASKED)
        if dtype in FUSED:
            assert chosen(made, "cpu") is cpu.DECODING
        made.q.requires_grad_()
        assert chosen(made) is MASKED
        with torch.no_grad():
            assert chosen(made) is (cpu.DECODING if dtype in FUSED else MASKED)
    for dtype, message in (
        (torch.float64, "takes float32 and bfloat16, got torch.float64"),
        (torch.float16, "float16"),
    ):
        with pytest.raises(KernelError, match=message):
            chosen(given(Slots(dtype=dtype)), "cpu")


@needs_compiler
@pytest.mark.parametrize("dtype", FUSED, ids=str)
@pytest.mark.parametrize("case", (Slots(slots=5000, batch=1), Slots(queries=40, slots=700, width=64, value_width=48)))
def test_equal_bits_on_every_run_and_for_any_number_of_threads(case, dtype):
    made = given(Slots(**vars(case) | {"dtype": dtype}))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 2, 5):
            torch.set_num_threads(threads)
            results += [decode_slots(*made.tensors, made.allowed, return_lse=True, implementation="cpu")]
    finally:
        torch.set_num_threads(before)
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(lse, results[0][1])


@needs_compiler
@pytest.mark.parametrize("dtype", FUSED, ids=str)
def test_each_query_reads_its_own_slots_only(dtype):
    """NaN in a slot that one query of a group may read changes no bit of the others."""
    made = given(Slots(heads=6, kv_heads=1, queries=2, slots=70, heads_of_mask=6, dtype=dtype, batch=1), poisoned=False)
    made.allowed[0, :, :, 69] = False
    made.allowed[0, 4, 0, 69] = True
    made.allowed[0, :, :, 0] = True
    clean = decode_slots(*made.tensors, made.allowed, implementation="cpu")
    made.k[0, 0, 69], made.v[0, 0, 69] = math.nan, math.inf
    found = decode_slots(*made.tensors, made.allowed, implementation="cpu")
    assert found[0, 4, 0].isnan().all()
    others = torch.ones(6, 2, dtype=torch.bool)
    others[4, 0] = False
    assert torch.equal(found[0][others], clean[0][others]) and not clean.isnan().any()


@needs_compiler
def test_the_operator_passes_opcheck():
    made = given(Slots(queries=2, lent=True))
    arguments = (*made.tensors, made.allowed, [None, None, None], 0.3, 0.0)
    for with_lse in (False, True):
        torch.library.opcheck(torch.ops.asterism.cpu_decode.default, (*arguments, with_lse))


@needs_compiler
def test_values_without_features():
    q, k, v = torch.randn(1, 2, 1, 8), torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 0)
    allowed = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    out, lse = decode_slots(q, k, v, allowed, return_lse=True, implementation="cpu")
    assert out.shape == (1, 2, 1, 0)
    torch.testing.assert_close(lse, (q @ k.mT / 8**0.5).logsumexp(-1))


@needs_compiler
def test_features_apart_and_slots_apart():
    """Features that do not lie next to each other, a mask every second byte of which counts, and bytes other than 1."""
    made = given(Slots(slots=90, queries=3), poisoned=False)
    k, v = (torch.stack([x, x * 0], dim=-1).flatten(-2)[..., ::2] for x in (made.k, made.v))
    allowed = torch.stack([made.allowed, ~made.allowed], dim=-1).flatten(-2)[..., ::2]
    expected = decode_slots(*made.tensors, made.allowed, implementation="cpu")
    assert torch.equal(decode_slots(made.q, k, v, allowed, implementation="cpu"), expected)
    odd = (made.allowed.to(torch.uint8) * 6).view(torch.bool)
    assert torch.equal(decode_slots(*made.tensors, odd, implementation="cpu"), expected)


# --- terms of the score ----------------------------------------------------------------------------------------------


def terms_of(case: Slots, names: str, dtype=torch.float64) -> Terms:
    generator = torch.Generator().manual_seed(case.seed + 1)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    biases = {
        "alibi": Alibi(randn(case.heads).abs() / 10),
        "buckets": Buckets(randn(16, case.heads), bidirectional=False, max_distance=64),
        "span": SoftSpan(randn(case.heads).abs() * 20 + 3, ramp=8),
        "table": DistanceTable(randn(1, 700)),
    }
    return Terms(
        bias=next((biases[name] for name in biases if name in names), None),
        relative=randn(700, case.width) if "relative" in names else None,
        softcap=1.5 if "softcap" in names else None,
        sinks=randn(case.heads) if "sinks" in names else None,
    )


def places_of(case: Slots) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots in any order, rows of different lengths, queries at the end."""
    generator = torch.Generator().manual_seed(case.seed + 2)
    kept = torch.stack([torch.randperm(600, generator=generator)[: case.slots] for _ in range(case.batch)])
    asked = torch.stack([torch.arange(600 + row, 600 + row + case.queries) for row in range(case.batch)])
    return asked, kept


def with_terms(made: Given, terms: Terms, places, scale: float):
    """(out, lse) of the definition, one query and head at a time, in float64 by NumPy."""
    q, k, v = (x.double().nan_to_num().numpy() for x in made.tensors)
    asked, kept = (x.numpy() for x in places)
    group, mask = q.shape[1] // k.shape[1], made.mask.numpy()
    out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], -np.inf)
    table = None if terms.bias is None else terms.bias.table(0, 700).double().numpy()
    for b, h, m in np.ndindex(*q.shape[:3]):
        scores, values = [], []
        for slot in np.flatnonzero(mask[b, h, m]):
            distance = asked[b, m] - kept[b, slot]
            key = k[b, h // group, slot]
            if terms.relative is not None:
                key = key + terms.relative[distance].double().numpy()
            score = scale * (q[b, h, m] @ key)
            if terms.softcap:
                score = terms.softcap * math.tanh(score / terms.softcap)
            scores.append(score if table is None else score + table[h if len(table) > 1 else 0, distance])
            values.append(v[b, h // group, slot])
        total = sum(math.exp(score) for score in scores)
        if terms.sinks is not None:
            total += math.exp(terms.sinks[h])
        if total:
            lse[b, h, m] = math.log(total)
            out[b, h, m] = sum((math.exp(s) / total * x for s, x in zip(scores, values, strict=True)), 0 * v[0, 0, 0])
    return out, lse


TERMS = ("alibi", "buckets", "span", "table", "relative", "softcap", "sinks", "span relative", "alibi softcap sinks",
         "table relative softcap sinks")  # fmt: skip


@pytest.mark.parametrize("names", TERMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_terms_against_the_definition(names, dtype):
    case = Slots(slots=83, queries=2, heads=4, kv_heads=2, dtype=dtype, heads_of_mask=4, rows_of_mask=2, width=9)
    made, terms, places = given(case), terms_of(case, names, torch.float32), places_of(case)
    expected, expected_lse = with_terms(made, terms, places, 1 / 3)
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 0.03, torch.float16: 4e-3}[dtype]
    if dtype in FUSED and has_compiler():
        with torch.no_grad():
            slots, allowed = of_slots(terms, made.q, made.k, made.allowed, places)
            operands = Operands(*made.tensors, None, None, allowed, "", 0, 1.0, slots=slots)
            assert choose_for_cache(operands, "auto") is cpu.DECODING
    for implementation in ("auto", "eager", *(("cpu",) if dtype in FUSED and has_compiler() else ())):
        options = {"terms": terms, "positions": places, "implementation": implementation}
        out, lse = decode_slots(*made.tensors, made.allowed, return_lse=True, **options)
        np.testing.assert_allclose(out.double().numpy(), expected, rtol=0, atol=tolerance * np.abs(expected).max())
        np.testing.assert_allclose(lse.double().numpy(), expected_lse, rtol=0, atol=tolerance * 5)
        assert torch.equal(decode_slots(*made.tensors, made.allowed, **options), out)


@pytest.mark.parametrize("names", TERMS)
@pytest.mark.parametrize("implementation", ("eager", "cpu") if has_compiler() else ("eager",))
def test_terms_under_autocast_are_those_without(names, implementation):
    """Autocast rounds q, k and v; what is added to scores stays wide, or C++ would read beyond the end of it."""
    case = Slots(slots=83, queries=2, heads_of_mask=4, rows_of_mask=2, width=9, dtype=torch.bfloat16)
    made, terms, places = given(case), terms_of(case, names, torch.float32), places_of(case)
    options = {"terms": terms, "positions": places, "implementation": implementation, "return_lse": True}
    plain = decode_slots(*made.tensors, made.allowed, **options)
    with torch.autocast("cpu", torch.bfloat16):
        found = decode_slots(*(x.float() for x in made.tensors), made.allowed, **options)
    for x, y in zip(found, plain, strict=True):
        assert torch.equal(x, y)


@needs_compiler
@pytest.mark.parametrize("which", range(3))
def test_the_operator_refuses_narrow_terms(which):
    made = given(Slots(heads_of_mask=4), poisoned=False)
    terms = [None, None, None]
    terms[which] = torch.zeros(4 if which == 2 else (1, 4, 1, 37), dtype=torch.bfloat16)
    with refusing(KernelError, "decode-dtype", "torch.float32", "torch.bfloat16"):
        torch.ops.asterism.cpu_decode(*made.tensors, made.allowed, terms, 0.3, 0.0, False)


def test_gradients_of_terms():
    case = Slots(slots=9, queries=2, batch=1, heads=2, kv_heads=1, width=3, value_width=2, dtype=torch.float64)
    made, places = given(case, poisoned=False), places_of(case)
    made.allowed[..., 0] = True
    leaves = [x.clone().requires_grad_() for x in made.tensors]
    slopes, sinks = (torch.rand(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    relative = torch.randn(700, 3, dtype=torch.float64)

    def compute(q, k, v, slopes, sinks):
        terms = Terms(bias=Alibi(slopes), relative=relative, softcap=2.0, sinks=sinks)
        return decode_slots(q, k, v, made.allowed, terms=terms, positions=places, return_lse=True)

    assert torch.autograd.gradcheck(compute, (*leaves, slopes, sinks))
    halves = [x.detach().float() for x in leaves]
    out = decode_slots(*halves, made.allowed, terms=Terms(sinks=sinks.float()))
    assert out.requires_grad and torch.autograd.grad(out.sum(), sinks)[0].abs().min() > 0


def test_decode_with_terms_is_the_end_of_the_whole():
    made = given(Slots(slots=40, queries=40, width=8), poisoned=False)
    terms = terms_of(Slots(), "alibi relative softcap sinks")
    whole = attend(*made.tensors, "window(left=9)", terms=terms, implementation="reference")
    found = decode(
        made.q[:, :, 37:], *made.tensors[1:], "window(left=9)", torch.arange(37, 40)[None], torch.arange(40)[None],
        terms=terms,
    )  # fmt: skip
    torch.testing.assert_close(found, whole[:, :, 37:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("far", (2**20, 2**40))
def test_distances_that_lie_far_apart(far):
    """A bias is laid out for the distances that are read, not for those between them."""
    q, k, slopes = torch.randn(2, 4, 1, 8), torch.randn(2, 4, 7, 8), torch.tensor([0.0, -1e-9, 1e-12, 2e-14])
    allowed = torch.tensor([True, True, True, False, True, True, True]).expand(1, 1, 1, 7)
    places = torch.tensor([[far]]), torch.tensor([[0, 1, far // 2, far // 3, far - 2, far - 1, far]])
    terms = Terms(bias=Alibi(slopes))
    _, lse = decode_slots(q, k, k, allowed, terms=terms, positions=places, return_lse=True, implementation="eager")
    distances = (far - places[1][0]).double()
    scores = q.double() @ k.double().mT / 8**0.5 - slopes.double()[:, None, None] * distances
    torch.testing.assert_close(lse, scores[..., allowed[0, 0, 0]].logsumexp(-1).float())


def test_terms_that_are_refused():
    made, places = given(Slots()), places_of(Slots())
    given_terms = {
        "no dropout": (Terms(dropout=Dropout(0.1, 0)), places),
        "positions=": (Terms(bias=Alibi(torch.ones(4))), None),
        "4 or|heads": (Terms(bias=Alibi(torch.ones(3))), places),
        "distance": (Terms(relative=torch.ones(20, 8)), places),
        "distance ": (Terms(bias=DistanceTable(torch.ones(1, 20))), places),
        "int64": (Terms(bias=Alibi(torch.ones(4))), (places[0].float(), places[1])),
        "must be Terms": ("alibi", places),
    }
    for message, (terms, where) in given_terms.items():
        with pytest.raises(KernelError, match=message):
            decode_slots(*made.tensors, made.allowed, terms=terms, positions=where)
    for implementation in ("dense", "triton"):
        with pytest.raises(KernelError, match=f"{implementation}.*terms"):
            decode_slots(*made.tensors, made.allowed, terms=Terms(softcap=1.0), implementation=implementation)
