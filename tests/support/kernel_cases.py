"""What the tests of the kernels share: cases, their tensors, and the comparison with float64 formulas.

The tolerance is derived: against the float64 oracle an implementation may be at most twice (outputs) or three times
(gradients) as wrong as plain dense arithmetic in the same dtype, plus the rounding of the result and a floor.
"""

import math
import os
import shutil
from dataclasses import dataclass, replace

import numpy as np
import oracle
import strategies
import torch
from hypothesis import assume
from hypothesis import strategies as st
from oracle import Rule
from strategies import build

from asterism import attend
from asterism.kernels import IMPLEMENTATIONS

OUTPUT_FACTOR, OUTPUT_FLOOR = 2, 1e-5
GRADIENT_FACTOR, GRADIENT_FLOOR = 3, 2e-4
DOUBLE_FLOOR = 1e-9
LARGE_BATCH = 8
"""With few digits or sharp weights the error of plain arithmetic on a few numbers is luck; on many it is a measure."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
DTYPES_OF = {
    "eager": DTYPES,
    "dense": DTYPES,
    "reference": DTYPES,
    "auto": DTYPES,
    "cpu": (torch.float32, torch.bfloat16),
}
"""What each implementation that needs no GPU computes in, finest first."""
GRADIENTS = ("dq", "dk", "dv")
ROUNDS_SCORES = ("reference", "eager", "auto")
"""The implementations that make scores in the dtype of queries and keys, or that may choose one."""
FROM_LSE = ("cpu", "triton", "auto")
"""The implementations whose backward pass computes weights from a log-sum-exp in float32, or that may choose one."""


def has_compiler() -> bool:
    """Whether this machine can build the kernels written in C++."""
    return any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++")))


def implementations(dtype: torch.dtype) -> tuple[str, ...]:
    """The library's implementations that this machine can run in `dtype` without a GPU."""
    known = (name for name, dtypes in DTYPES_OF.items() if name in IMPLEMENTATIONS and dtype in dtypes)
    return tuple(name for name in known if name != "cpu" or has_compiler())


# ---------------------------------------------------------------------------------------------------------------------
# Cases.


@dataclass(frozen=True)
class Case:
    """What to attend to, with which shapes, and how the tensors lie in memory. Segments come in order for odd seeds."""

    rule: Rule
    heads: int = 1
    kv_heads: int = 1
    n_queries: int = 8
    n_keys: int = 8
    offset: int | None = None
    batch: int = 2
    width: int = 4
    value_width: int = 4
    dtype: torch.dtype = torch.float64
    scale: float | None = None
    padding: bool = False
    segments: bool = False
    memory: str = "contiguous"
    magnitude: float = 1.0
    seed: int = 0

    @property
    def start(self) -> int:
        first = 0 if "across" in self.rule.names or self.n_queries > self.n_keys else self.n_keys - self.n_queries
        return first if self.offset is None else self.offset

    @property
    def factor(self) -> float:
        return 1 / math.sqrt(self.width) if self.scale is None else self.scale


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case. `mask` bool [B, H, N, M] says it all at once, for the oracle."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    d_out: torch.Tensor
    d_lse: torch.Tensor
    mask: torch.Tensor
    keywords: dict

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.q, self.k, self.v]


MEMORIES = ("contiguous", "tokens first", "every other", "part of more", "expanded", "one head for all")


def laid_out(shape, memory, dtype, generator, magnitude=1.0):
    """A tensor of random numbers [B, H, N, D] that lies in memory in the way named."""
    batch, heads, tokens, width = shape
    stored = {
        "contiguous": shape,
        "tokens first": (batch, tokens, heads, width),
        "every other": (batch, heads, tokens, 2 * width),
        "part of more": (batch + 1, heads + 1, tokens + 2, width + 1),
        "expanded": (1, heads, tokens, width),
        "one head for all": (batch, 1, tokens, width),
    }[memory]
    numbers = (torch.randn(stored, generator=generator, dtype=torch.float64) * magnitude).to(dtype)
    if memory == "tokens first":
        return numbers.transpose(1, 2)
    if memory == "part of more":
        return numbers[1:, :-1, 1:-1, 1:]
    return numbers[..., ::2] if memory == "every other" else numbers.expand(shape)


def inputs_of(case: Case) -> Inputs:
    generator = torch.Generator().manual_seed(case.seed)
    queries = (case.batch, case.heads, case.n_queries, case.width)
    keys = (case.batch, case.kv_heads, case.n_keys, case.width)
    values = (*keys[:3], case.value_width)
    q = laid_out(queries, case.memory, case.dtype, generator, case.magnitude)
    k = laid_out(keys, case.memory, case.dtype, generator, case.magnitude)
    v = laid_out(values, case.memory, case.dtype, generator)
    d_out = torch.randn((*queries[:3], case.value_width), generator=generator, dtype=torch.float64).to(case.dtype)
    lse_dtype = torch.float64 if case.dtype == torch.float64 else torch.float32
    d_lse = torch.randn(queries[:3], generator=generator, dtype=lse_dtype)
    mask = torch.from_numpy(build(case.rule).dense(case.n_queries, case.n_keys, case.offset))
    mask = mask.expand(case.batch, case.heads, -1, -1).clone()
    keywords = {"query_offset": case.offset, "scale": case.scale}
    if case.padding:
        keywords["key_mask"] = torch.rand((case.batch, case.n_keys), generator=generator) < 0.7
        mask &= keywords["key_mask"][:, None, None, :]
    if case.segments:
        segments = torch.randint(0, 3, (case.batch, case.n_keys), generator=generator)
        segments = keywords["segments"] = segments.sort(1).values if case.seed % 2 else segments
        own = segments[:, case.start : case.start + case.n_queries]
        mask &= (own[:, :, None] == segments[:, None, :])[:, None]
    return Inputs(q, k, v, d_out, d_lse, mask, keywords)


@st.composite
def cases(draw, dtypes=DTYPES) -> Case:
    n_keys = draw(st.sampled_from((0, 1, 2, 3, 7, 13, 16, 17, 31, 33, 64, 65, 70)))
    n_queries = draw(st.one_of(st.just(n_keys), st.integers(0, n_keys)))
    offset = draw(st.one_of(st.none(), st.integers(0, n_keys - n_queries)))
    kv_heads = draw(st.sampled_from((1, 2)))
    heads = kv_heads * draw(st.sampled_from((1, 2, 3)))
    dtype = draw(st.sampled_from(dtypes))
    magnitude = draw(st.sampled_from((1.0, 5.0))) if dtype in (torch.float64, torch.float32) else 1.0
    luck = magnitude > 1 or dtype in (torch.bfloat16, torch.float16)
    memories = tuple(name for name in MEMORIES if name != "expanded" or not luck or n_queries > LARGE_BATCH)
    rule = draw(strategies.rules(70, heads=heads, depth=4))
    return Case(
        rule=rule,
        heads=heads,
        kv_heads=kv_heads,
        n_queries=n_queries,
        n_keys=n_keys,
        offset=offset,
        batch=LARGE_BATCH if luck else draw(st.sampled_from((1, 2))),
        width=draw(st.sampled_from((1, 3, 4, 8))),
        value_width=draw(st.sampled_from((1, 4, 5))),
        dtype=dtype,
        scale=draw(st.sampled_from((None, None, 0.0, 0.5, 2.0, -1.0))),
        padding=draw(st.booleans()),
        segments=draw(st.booleans()) and "across" not in rule.names,
        memory=draw(st.sampled_from(memories)),
        magnitude=magnitude,
        seed=draw(st.integers(0, 100)),
    )


@st.composite
def cross_cases(draw, dtypes=DTYPES) -> Case:
    """Any number of queries of another sequence, from any place of it on."""
    case = draw(cases(dtypes))
    n_queries = draw(st.sampled_from((1, 2, 5, 16, 17, 33, 64, 70)))
    rule = draw(strategies.cross_rules(70, heads=case.heads, depth=3))
    offset = draw(st.one_of(st.none(), st.integers(0, 100)))
    memory = "contiguous" if case.memory == "expanded" and n_queries <= LARGE_BATCH else case.memory
    return replace(case, rule=rule, n_queries=n_queries, offset=offset, segments=False, memory=memory)


# ---------------------------------------------------------------------------------------------------------------------
# Comparison.


Results = dict[str, torch.Tensor]


def differentiated(compute, inputs: Inputs) -> Results:
    """out, lse, dq, dk and dv of `compute(q, k, v) -> (out, lse or None)`, for the case's d_out and d_lse."""
    leaves = [x.detach().requires_grad_() for x in inputs.tensors]
    out, lse = compute(*leaves)
    results = {"out": out} if lse is None else {"out": out, "lse": lse}
    weights = [inputs.d_out, inputs.d_lse][: len(results)]
    gradients = torch.autograd.grad(list(results.values()), leaves, weights)
    return {name: x.detach() for name, x in (results | dict(zip(GRADIENTS, gradients, strict=True))).items()}


def exact(inputs: Inputs, scale: float, with_lse: bool = True) -> dict[str, np.ndarray]:
    arrays = [x.detach().double().numpy() for x in (*inputs.tensors, inputs.d_out, inputs.d_lse * with_lse)]
    mask = inputs.mask.numpy()
    out, lse = oracle.attention(*arrays[:3], mask, scale)
    gradients = oracle.attention_gradients(*arrays[:3], mask, scale, *arrays[3:])
    return {"out": out, **({"lse": lse} if with_lse else {}), **dict(zip(GRADIENTS, gradients, strict=True))}


def plain(inputs: Inputs, scale: float, with_lse: bool = True) -> Results:
    """Textbook dense attention in the dtype of the inputs."""

    def compute(q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        some = inputs.mask.any(-1, keepdim=True)
        scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~inputs.mask & some, -math.inf)
        lse = scores.logsumexp(-1) if scores.shape[-1] else scores.sum(-1)
        lse = lse.to(inputs.d_lse.dtype).masked_fill(~some[..., 0], -math.inf)
        return scores.softmax(-1) @ v * some, lse if with_lse else None

    return differentiated(compute, inputs)


def assert_as_good(name, found, expected, compared, dtype, rounding):
    """`found` is at most so many times as far from `expected` as `compared` is, plus the rounding and a floor."""
    factor, floor = (GRADIENT_FACTOR, GRADIENT_FLOOR) if name.startswith("d") else (OUTPUT_FACTOR, OUTPUT_FLOOR)
    floor = DOUBLE_FLOOR if dtype == torch.float64 else floor
    found, compared = found.double().numpy(), compared.double().numpy()
    assert found.shape == expected.shape, f"{name}: shape {found.shape}, expected {expected.shape}"
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite], err_msg=name)
    assert np.isfinite(found[finite]).all(), f"{name} is not finite"
    error = np.abs(found[finite] - expected[finite]).max(initial=0)
    allowed = factor * np.abs(compared[finite] - expected[finite]).max(initial=0) + floor
    allowed += rounding
    assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"


def assert_all_as_good(found, expected, compared, dtype, implementation=None):
    """Each result is as good as plain arithmetic, up to one rounding; gradients are rounded at their common scale.

    Of ROUNDS_SCORES, the log-sum-exp is as good as the scores, which are rounded to the dtype first. The backward pass
    of FROM_LSE computes weights again as exp(score - log-sum-exp), in float32. What rounding takes from a log-sum-exp
    of 400 is a relative error of all weights of its row, which arithmetic that subtracts the highest score does not
    have; so the rounding allowed to gradients grows with it.
    """
    assert found.keys() == expected.keys() == compared.keys()
    scale = {name: np.abs(x[np.isfinite(x)]).max(initial=0) for name, x in expected.items()}
    scale |= dict.fromkeys(GRADIENTS, max(scale[name] for name in GRADIENTS))
    for name in found:
        digits = dtype if name == "lse" and implementation in ROUNDS_SCORES else found[name].dtype
        rounding = torch.finfo(digits).eps / 2 * scale[name]
        if implementation in FROM_LSE and name in GRADIENTS and dtype == torch.float32:
            rounding *= max(1, 2 * scale.get("lse", 0))
        assert_as_good(name, found[name], expected[name], compared[name], dtype, rounding)


def assert_equal_bits(one: Results, two: Results):
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


def gives_lse(implementation: str) -> bool:
    """PyTorch's own attention does not return the log-sum-exp, and `dense` says so."""
    return implementation != "dense"


def attending(case: Case, inputs: Inputs, implementation: str, return_lse: bool = True):
    def compute(q, k, v):
        keywords = inputs.keywords | {"implementation": implementation}
        if return_lse and gives_lse(implementation):
            return attend(q, k, v, build(case.rule), **keywords, return_lse=True)
        return attend(q, k, v, build(case.rule), **keywords), None

    return compute


def check(case: Case, implementation: str, return_lse: bool = True):
    inputs = inputs_of(case)
    found = differentiated(attending(case, inputs, implementation, return_lse), inputs)
    with_lse = "lse" in found
    expected, compared = exact(inputs, case.factor, with_lse), plain(inputs, case.factor, with_lse)
    assert_all_as_good(found, expected, compared, case.dtype, implementation)
    assert all(found[name].dtype == case.dtype for name in ("out", *GRADIENTS))
    empty, unread = ~inputs.mask.any(-1), unread_keys(inputs)
    zeros = [found["out"][empty], found["dq"][empty], found["dk"][unread], found["dv"][unread]]
    assert not any(x.any() for x in zeros)
    if with_lse:
        assert found["lse"].dtype == inputs.d_lse.dtype
        assert (found["lse"][empty] == -math.inf).all()


def unread_keys(inputs: Inputs) -> torch.Tensor:
    """bool [B, key heads, M]: the keys that no query of their group may read."""
    batch, kv_heads, n_keys, _ = inputs.k.shape
    read = inputs.mask.any(2).reshape(batch, kv_heads, inputs.mask.shape[1] // kv_heads, n_keys)
    return ~read.any(2)


def check_unread(case: Case, implementation: str):
    """NaN and infinities in keys that nobody reads change no bit of any result."""
    inputs = inputs_of(case)
    unread = unread_keys(inputs)
    assume(unread.any())
    bad = torch.tensor([math.nan, math.inf, -math.inf], dtype=case.dtype)
    k, v = inputs.k.clone(), inputs.v.clone()
    for x in (k, v):
        x[unread] = bad[torch.arange(unread.sum() * x.shape[-1]) % 3].reshape(-1, x.shape[-1])
    clean = replace(inputs, k=inputs.k.clone(), v=inputs.v.clone())
    poisoned = replace(inputs, k=k, v=v)
    before, after = (differentiated(attending(case, x, implementation), x) for x in (clean, poisoned))
    assert_equal_bits(before, after)


def tensors(q=(2, 4, 6, 8), k=(2, 2, 6, 8), v=(2, 2, 6, 8), dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in (q, k, v)]
