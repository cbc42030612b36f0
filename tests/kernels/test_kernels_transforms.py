"""Attention under what PyTorch can do to a function or its surroundings: each gives the right numbers or is refused.

torch.func (grad, vjp, jvp, vmap, and one inside another), forward-mode and second derivatives, and the settings of a
process or thread: default dtype, autocast, inference mode, denormal numbers.
"""

import itertools

import pytest
import torch
from kernel_cases import DOUBLE_FLOOR, implementations
from refusals import refusing
from torch import func
from torch.autograd import forward_ad

from asterism import attend
from asterism.errors import KernelError
from asterism.kernels import decode

pytestmark = [
    pytest.mark.usefixtures("poison"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # torch.func.jvp's own first use
]

NAMES = implementations(torch.float32)
FORWARD_MODE = ("reference", "dense")
TWICE = ("reference",)
TEXTS = ("window(left=3)", "causal()", "dense()", "fixed(3) & ~global_keys(5) & ~global_queries(0)")


def made(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def operands(*leading, n=9, dtype=torch.float32):
    return [made(*leading, 2, heads, n, 4, seed=seed, dtype=dtype) for seed, heads in enumerate((4, 2, 2))]


def function(text, implementation, **keywords):
    return lambda q, k, v: attend(q, k, v, text, implementation=implementation, **keywords)


def loss(text, implementation, **keywords):
    return lambda q, k, v: function(text, implementation, **keywords)(q, k, v).square().sum()


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# --- derivatives of torch.func ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("implementation", NAMES)
def test_grad_and_vjp(implementation, text):
    q, k, v = operands()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(loss(text, "reference")(*leaves), leaves)
    assert_close(func.grad(loss(text, implementation), argnums=(0, 1, 2))(q, k, v), expected)
    out, pull = func.vjp(function(text, implementation), q, k, v)
    assert_close(pull(2 * out), expected)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("implementation", NAMES)
@pytest.mark.parametrize("mode", ("func.jvp", "forward_ad", "jvp of vmap", "vmap of jvp", "jvp of grad"))
def test_forward_mode_is_right_or_refused(mode, implementation, text):
    """The tangent was 0 without a word. The truth comes from differences in float64."""
    q, k, v = operands()
    tangent = made(*q.shape, seed=7)
    attention = function(text, implementation)

    def compute():
        if mode == "forward_ad":
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(attention(forward_ad.make_dual(q, tangent), k, v)).tangent
        if mode == "jvp of vmap":
            batched = func.vmap(lambda q: attention(q[None], k[:1], v[:1])[0])
            return func.jvp(batched, (q,), (tangent,))[1]
        if mode == "vmap of jvp":
            one = lambda q, t: func.jvp(lambda q: attention(q[None], k[:1], v[:1])[0], (q,), (t,))[1]  # noqa: E731
            return func.vmap(one)(q, tangent)
        if mode == "jvp of grad":
            return func.jvp(func.grad(lambda q: loss(text, implementation)(q, k, v)), (q,), (tangent,))[1]
        return func.jvp(lambda q: attention(q, k, v), (q,), (tangent,))[1]

    if implementation not in FORWARD_MODE:
        with refusing(KernelError, "no-forward-mode"):
            compute()
        return
    exact = [x.double() for x in (k, v)]
    if "vmap" in mode:
        exact = [x[:1].expand_as(x) for x in exact]

    def truth(step):
        moved = (q.double() + step * tangent.double()).requires_grad_()
        if mode != "jvp of grad":
            return function(text, "reference")(moved, *exact).detach()
        return torch.autograd.grad(loss(text, "reference")(moved, *exact), moved)[0]

    assert_close(compute(), ((truth(1e-5) - truth(-1e-5)) / 2e-5).float())


@pytest.mark.parametrize("implementation", NAMES)
@pytest.mark.parametrize("text", TEXTS)
def test_second_derivatives_are_right_or_refused(text, implementation):
    q, k, v = operands()

    def by_graph():
        leaf = q.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(text, implementation)(leaf, k, v), leaf, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), leaf)[0]

    def by_func():
        first = func.grad(lambda q: loss(text, implementation)(q, k, v))
        return func.grad(lambda q: first(q).square().sum())(q)

    def truth(q):
        first = func.grad(lambda q: loss(text, "reference")(q, k.double(), v.double()))
        return first(q).square().sum()

    step = 1e-5 * made(*q.shape, seed=3, dtype=torch.float64)
    expected = (truth(q.double() + step) - truth(q.double() - step)) / 2
    for way, works in ((by_graph, implementation in TWICE), (by_func, implementation in FORWARD_MODE)):
        if works:
            torch.testing.assert_close((way().double() * step).sum(), expected, rtol=1e-3, atol=1e-9)
        else:
            with refusing(KernelError, "no-second-derivative"):
                way()


@pytest.mark.parametrize("text", ("window(left=2)", "causal() & ~global_keys(0)", "global_queries(1)"))
def test_the_reference_is_differentiable_twice_and_forward(text):
    """What the refusals name works, also where a query reads nothing."""
    leaves = [x.requires_grad_() for x in operands(n=4, dtype=torch.float64)]
    attention = function(text, "reference")
    assert torch.autograd.gradgradcheck(attention, leaves)
    assert torch.autograd.gradcheck(attention, leaves, check_forward_ad=True, check_backward_ad=False)


def test_gradients_stay_as_cheap_as_they_were():
    """Asking for a graph of the gradient is allowed, as long as nobody differentiates it."""
    for implementation in NAMES:
        leaf, *others = (x.requires_grad_() for x in operands())
        total = loss("causal()", implementation)(leaf, *others)
        kept = torch.autograd.grad(total, leaf, create_graph=True, retain_graph=True)[0]
        assert torch.equal(kept, torch.autograd.grad(total, leaf)[0])


# --- vmap ------------------------------------------------------------------------------------------------------------


BATCHED = [dims for dims in itertools.product((0, None), repeat=3) if any(dim is not None for dim in dims)]


@pytest.mark.parametrize("dims", [*BATCHED, (2, 1, 4)], ids=str)
@pytest.mark.parametrize("implementation", NAMES)
def test_vmap(implementation, dims):
    whole = operands(3)
    given = [x[0] if dim is None else x.movedim(0, dim) for x, dim in zip(whole, dims, strict=True)]
    for text in TEXTS:
        attention = function(text, implementation)
        found = func.vmap(attention, in_dims=dims)(*given)
        one = lambda i: attention(*(x[0 if dim is None else i] for x, dim in zip(whole, dims, strict=True)))  # noqa: B023, E731
        assert_close(found, torch.stack([one(i) for i in range(3)]))


@pytest.mark.parametrize("in_segments", (0, 1, None))
@pytest.mark.parametrize("in_mask", (0, 1, None))
@pytest.mark.parametrize("implementation", NAMES)
def test_vmap_of_masks_and_segments(implementation, in_mask, in_segments):
    whole = operands(3)
    mask = torch.rand(3, 2, 9, generator=torch.Generator().manual_seed(1)) < 0.7
    segments = torch.randint(0, 2, (3, 2, 9), generator=torch.Generator().manual_seed(2))

    def attention(q, k, v, mask, segments):
        return attend(q, k, v, "window(2, 2)", key_mask=mask, segments=segments, implementation=implementation)

    dims = (0, 0, 0, in_mask, in_segments)
    given = [x[0] if dim is None else x.movedim(0, dim) for x, dim in zip((*whole, mask, segments), dims, strict=True)]
    rows = [
        attention(*(x[0 if dim is None else i] for x, dim in zip((*whole, mask, segments), dims, strict=True)))
        for i in range(3)
    ]
    assert_close(func.vmap(attention, in_dims=dims)(*given), torch.stack(rows))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("implementation", implementations(torch.bfloat16))
def test_gradients_of_each_sample(implementation, dtype):
    """vmap of grad, grad of vmap, and vmap of vmap."""
    whole = operands(3, dtype=dtype)
    own = func.grad(lambda q, k, v: loss("fixed(4)", implementation)(q, k, v).float(), argnums=(0, 1, 2))
    rows = [own(*(x[i] for x in whole)) for i in range(3)]
    expected = [torch.stack(gradients) for gradients in zip(*rows, strict=True)]
    summed = func.grad(lambda *x: func.vmap(function("fixed(4)", implementation))(*x).square().sum(), argnums=(0, 1, 2))
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    for found in (func.vmap(own)(*whole), summed(*whole)):
        torch.testing.assert_close(list(found), expected, **tolerance)
    alone = func.vmap(func.vmap(lambda *x: function("fixed(4)", implementation)(*(y[None] for y in x))[0]))(*whole)
    torch.testing.assert_close(
        alone,
        torch.stack([function("fixed(4)", implementation)(*(x[i] for x in whole)) for i in range(3)]),
        **tolerance,
    )


@pytest.mark.parametrize("implementation", [name for name in NAMES if name != "dense"])
def test_vmap_of_the_log_sum_exp(implementation):
    whole = operands(3)
    attention = function("window(left=3)", implementation, return_lse=True)
    rows = [attention(*(x[i] for x in whole)) for i in range(3)]
    for found, expected in zip(func.vmap(attention)(*whole), zip(*rows, strict=True), strict=True):
        assert_close(found, torch.stack(expected))


def decoded(q, k, v, **keywords):
    return decode(q, k, v, "window(left=3)", torch.tensor([[8]]), torch.arange(9)[None], **keywords)


@pytest.mark.parametrize("with_lse", (False, True))
def test_decode_under_transforms(with_lse):
    q, k, v = operands(3)
    q = q[..., -1:, :]
    compute = (lambda *x: decoded(*x, return_lse=True)[0]) if with_lse else decoded
    assert_close(func.vmap(compute)(q, k, v), torch.stack([decoded(*x) for x in zip(q, k, v, strict=True)]))
    found = func.jvp(lambda v: compute(q[0], k[0], v), (v[0],), (v[1],))[1]
    assert_close(found, decoded(q[0], k[0], v[1]))  # linear in v
    places = torch.tensor([[[8]], [[3]]])
    rows = [decode(q[0], k[0], v[0], "causal()", place, torch.arange(9)[None]) for place in places]
    mapped = func.vmap(lambda place: decode(q[0], k[0], v[0], "causal()", place, torch.arange(9)[None]))
    assert_close(mapped(places), torch.stack(rows))


@pytest.mark.parametrize("implementation", ("cpu", "eager"))
def test_compiled_transforms_are_never_silent(implementation):
    """The compiler runs them uncompiled, where it may; what it must not do is lose a derivative."""
    q, k, v = operands()
    attention = function("window(left=3)", implementation)
    for fullgraph in (False, True):
        torch.compiler.reset()
        compute = lambda q: func.jvp(lambda q: attention(q, k, v), (q,), (q,))[1]  # noqa: E731
        with pytest.raises((KernelError, torch._dynamo.exc.TorchDynamoException)):
            torch.compile(compute, backend="aot_eager", fullgraph=fullgraph)(q)


# --- settings of the surroundings ------------------------------------------------------------------------------------


def whole_result(implementation, *tensors):
    leaves = [x.clone().requires_grad_() for x in tensors]
    results = attend(*leaves, "bigbird(block=2)", implementation=implementation, return_lse=implementation != "dense")
    results = results if isinstance(results, tuple) else (results,)
    return [*results, *torch.autograd.grad([x.sum() for x in results], leaves)]


@pytest.fixture
def default_dtype():
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@pytest.mark.parametrize("default", (torch.float16, torch.bfloat16, torch.float64), ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=str)
def test_the_default_dtype_changes_nothing(dtype, default, default_dtype):
    tensors = operands(n=19, dtype=dtype)
    for implementation in implementations(dtype):
        if implementation in ("cpu", "auto"):
            continue  # tested with the kernel
        expected = whole_result(implementation, *tensors)
        default_dtype(default)
        found = whole_result(implementation, *tensors)
        default_dtype(torch.float32)
        for one, two in zip(found, expected, strict=True):
            assert one.dtype == two.dtype and torch.equal(one, two), implementation


@pytest.mark.parametrize("implementation", NAMES)
def test_autocast_casts_as_pytorchs_own_attention_does(implementation):
    """Mixed operands, as rotary positions make them, are cast, too, and nothing inside a kernel is."""
    q, k, v = operands(n=19)
    half = [x.bfloat16() for x in (q, k, v)]
    expected = whole_result(implementation, *half)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        mixed = attend(q, half[1], v, "bigbird(block=2)", implementation=implementation)
        found = whole_result(implementation, q, k, v)
    assert plain.dtype == mixed.dtype == found[0].dtype == torch.bfloat16
    assert torch.equal(mixed, expected[0])
    for one, two in zip(found, expected, strict=True):
        assert torch.equal(one.to(two.dtype), two)


def test_autocast_leaves_float64_alone():
    tensors = operands(dtype=torch.float64)
    for implementation in implementations(torch.float64):
        expected = attend(*tensors, "causal()", implementation=implementation)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = attend(*tensors, "causal()", implementation=implementation)
        assert torch.equal(found, expected)
        torch.testing.assert_close(found, attend(*tensors, "causal()"), rtol=0, atol=DOUBLE_FLOOR)


def test_autocast_of_decode():
    q, k, v = operands()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = decoded(q[:, :, -1:], k.bfloat16(), v)
    assert torch.equal(found, decoded(q[:, :, -1:].bfloat16(), k.bfloat16(), v.bfloat16()))


@pytest.mark.parametrize("implementation", NAMES)
def test_inference_mode_leaves_no_trace(implementation):
    """What a kernel keeps of a pattern in inference mode serves training afterwards."""
    tensors = operands(n=21)
    with torch.inference_mode():
        inferred = attend(*tensors, "fixed(5) | window(left=1)", implementation=implementation)
    leaves = [x.requires_grad_() for x in tensors]
    trained = attend(*leaves, "fixed(5) | window(left=1)", implementation=implementation)
    trained.sum().backward()
    assert torch.equal(inferred, trained) or implementation in ("auto", "dense")
    assert_close(inferred, trained.detach())
    assert all(leaf.grad is not None for leaf in leaves)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_flushing_denormal_numbers_changes_nothing(dtype):
    tensors = operands(n=19, dtype=dtype)
    for implementation in implementations(dtype):
        if implementation in ("cpu", "auto"):
            continue  # tested with the kernel
        expected = whole_result(implementation, *tensors)
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor cannot flush denormal numbers")
        try:
            found = whole_result(implementation, *tensors)
        finally:
            torch.set_flush_denormal(False)
        for one, two in zip(found, expected, strict=True):
            assert torch.equal(one, two), implementation
