"""Terms of the score under what PyTorch does to functions: opcheck, torch.compile, torch.func, checkpointing."""

import itertools

import pytest
import torch
from term_cases import COMPUTES
from test_kernels_operator import Recorder
from torch.utils.checkpoint import checkpoint

from asterism import Alibi, Buckets, DistanceTable, Dropout, SoftSpan, Terms, attend

pytestmark = pytest.mark.usefixtures("poison")

OPERATORS = tuple(name for name, (terms, _) in COMPUTES.items() if name in ("eager", "cpu") and len(terms) == 5)
TEXT = "(window(left=6) | stride(4)) & causal()"
NAMES = ("q", "k", "v", "bias", "relative", "sinks")
BIASES = {
    "alibi": ((4,), Alibi),
    "buckets": ((8, 4), lambda x: Buckets(x, bidirectional=False, max_distance=12)),
    "span": ((4,), lambda x: SoftSpan(9 * x.abs(), 3)),
    "table": ((1, 30), DistanceTable),
}


def made(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def tensors(bias="table", batch=2):
    shapes = [(batch, 4, 21, 8), (batch, 2, 21, 8), (batch, 2, 21, 8), BIASES[bias][0], (21, 8), (4,)]
    return [made(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def attention(implementation, bias="table", dropout=0.3, softcap=3.0):
    def compute(q, k, v, table, relative, sinks, seed=5):
        drop = Dropout(dropout, seed) if dropout else None
        terms = Terms(BIASES[bias][1](table), relative, softcap, sinks, drop)
        return attend(q, k, v, TEXT, terms=terms, return_lse=True, implementation=implementation)

    return compute


def loss_of(results):
    """Each number by a weight of its own."""
    return sum((x * (7 * torch.arange(x.numel(), dtype=x.dtype)).cos().view(x.shape)).sum() for x in results)


def gradients(compute, leaves, wanted=(True,) * 6):
    leaves = [x.clone().requires_grad_(want) for x, want in zip(leaves, wanted, strict=True)]
    loss_of(compute(*leaves)).backward()
    return [x.grad for x in leaves]


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", OPERATORS)
@pytest.mark.parametrize("bias", ("table", "alibi"))
def test_opcheck(implementation, bias):
    with Recorder() as recorder:
        gradients(attention(implementation, bias), tensors(bias))
    calls = [call for call in recorder.calls if implementation in str(call[0])]
    assert len(calls) == 2
    for function, args, kwargs in calls:
        fresh = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args]
        if "backward" not in str(function):
            fresh = [x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in fresh]
        torch.library.opcheck(function, tuple(fresh), kwargs)


@pytest.mark.parametrize("implementation", OPERATORS)
def test_only_wanted_gradients_and_equal_bits(implementation):
    compute = attention(implementation)
    every = gradients(compute, tensors())
    for wanted in itertools.chain(itertools.combinations(range(6), 1), [(0, 1, 2), (3, 5), (0, 4)]):
        asked = tuple(place in wanted for place in range(6))
        found = gradients(compute, tensors(), asked)
        for name, one, whole, want in zip(NAMES, found, every, asked, strict=True):
            assert torch.equal(one, whole) if want else one is None, name


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
class TestCompiled:
    @pytest.fixture(autouse=True)
    def poison(self):
        """The compiler's own buffers are left alone."""
        torch.compiler.reset()
        yield
        torch.compiler.reset()

    @pytest.mark.parametrize("bias", ("table", "buckets", "span"))
    @pytest.mark.parametrize("implementation", OPERATORS)
    def test_fullgraph(self, implementation, bias):
        compute = attention(implementation, bias)
        compiled = torch.compile(compute, fullgraph=True, backend="aot_eager")
        assert_close(compiled(*tensors(bias)), compute(*tensors(bias)))
        assert_close(gradients(compiled, tensors(bias)), gradients(compute, tensors(bias)))

    @pytest.mark.parametrize("implementation", OPERATORS)
    def test_another_seed_is_no_other_graph(self, implementation):
        """A training step has a seed of its own: after the second one, nothing is compiled anew."""
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph

        compute = attention(implementation)
        compiled = torch.compile(compute, fullgraph=True, backend=backend)
        for seed in (3, 2**40, 2**62 + 5, 7, 8, 9):
            assert_close(compiled(*tensors(), seed=seed), compute(*tensors(), seed=seed))
        assert len(graphs) <= 2

    @pytest.mark.parametrize("implementation", (*OPERATORS, "reference"))
    def test_a_short_table_is_refused_when_it_runs(self, implementation):
        q = made(1, 1, 9, 4)
        compiled = torch.compile(
            lambda q, table: attend(q, q, q, "causal()", terms=Terms(relative=table), implementation=implementation),
            fullgraph=True,
            backend="aot_eager",
        )
        compiled(q, made(9, 4))
        with pytest.raises(Exception, match="table for distances 0 to 6, but the pattern reads a key at distance 8"):
            compiled(q, made(7, 4))


@pytest.mark.parametrize("dropout", (0.0, 0.3))
@pytest.mark.parametrize("implementation", (*OPERATORS, "reference"))
def test_function_transforms(implementation, dropout):
    """A gradient of torch.func is that of autograd, and under vmap each sample has gradients and rows of its own."""
    compute = attention(implementation, dropout=dropout)

    def loss(*leaves):
        return loss_of(compute(*leaves))

    each = [[x + 0.1 * sample for x in tensors()] for sample in range(3)]
    expected = [gradients(compute, sample) for sample in each]
    found = torch.func.grad(loss, argnums=tuple(range(6)))(*each[1])
    assert_close(list(found), expected[1])
    stacked = [torch.stack(xs) for xs in zip(*each, strict=True)]
    together = torch.func.vmap(torch.func.grad(loss, argnums=tuple(range(6))))(*stacked)
    for place, gradient in enumerate(together):
        assert_close(gradient, torch.stack([one[place] for one in expected]))
    tables = each[0][3:]
    values = torch.func.vmap(lambda q, k, v: compute(q, k, v, *tables)[0])(*stacked[:3])
    assert_close(values, torch.stack([compute(*sample[:3], *tables)[0] for sample in each]))


@pytest.mark.parametrize("implementation", (*OPERATORS, "reference"))
def test_recomputed_activations_drop_the_same_pairs(implementation):
    compute = attention(implementation)
    found = gradients(lambda *x: checkpoint(compute, *x, use_reentrant=False, preserve_rng_state=False), tensors())
    assert_close(found, gradients(compute, tensors()))


def test_auto_under_autocast_and_another_default_dtype():
    expected = attention("reference", dropout=0.0)(*tensors())
    with torch.autocast("cpu", torch.bfloat16):
        out, lse = attention("auto", dropout=0.0)(*tensors())
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    torch.testing.assert_close((out.float(), lse), expected, rtol=0.05, atol=0.05)
    torch.set_default_dtype(torch.float64)
    try:
        assert_close(attention("auto", dropout=0.0)(*tensors()), expected)
    finally:
        torch.set_default_dtype(torch.float32)
