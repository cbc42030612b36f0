"""Generated cases of attention with terms of the score, and their comparison with the oracle.

To test another implementation, name it in `COMPUTES`, with the terms and dtypes that it takes.
"""

import math
from dataclasses import dataclass, replace

import kernel_cases
import numpy as np
import oracle_terms
import strategies
import torch
from hypothesis import assume
from hypothesis import strategies as st
from kernel_cases import Case, assert_as_good, assert_equal_bits, gives_lse, has_compiler, inputs_of, unread_keys
from oracle import rule
from strategies import build

from asterism import Alibi, Buckets, DistanceTable, Dropout, SoftSpan, Terms, attend

ALL = ("bias", "relative", "softcap", "sinks", "dropout")
WIDE, HALF = (torch.float64, torch.float32), (torch.bfloat16,)
COMPUTES = {
    "reference": (ALL, WIDE),
    "eager": (ALL, (*WIDE, *HALF)),
    "dense": (("bias", "sinks"), WIDE),
    **({"cpu": (ALL, (torch.float32, *HALF))} if has_compiler() else {}),
}
"""By implementation, the terms that it computes and in which dtypes."""
INTERPRETED = {
    "triton": (("bias", "softcap", "sinks", "dropout"), (torch.float32, *HALF, torch.float16)),
}
"""The same of what only the tests of an implementation run, with fewer cases."""
FUSED = ("cpu", "triton")
"""Those that compute gradients from tiles: what they round on the way, PyTorch's arithmetic does not."""
BIASES = ("alibi", "buckets", "span", "table")


@dataclass(frozen=True)
class TermCase:
    """A case of kernel_cases with terms. `shared`: one row of a table for all heads."""

    case: Case
    bias: str | None = None
    shared: bool = False
    relative: bool = False
    softcap: float | None = None
    sinks: bool = False
    dropout: float = 0.0

    def of(self, terms: tuple[str, ...]) -> "TermCase":
        """The same with these terms only."""
        nothing = {"bias": None, "relative": False, "softcap": None, "sinks": False, "dropout": 0.0}
        return replace(self, **{name: none for name, none in nothing.items() if name not in terms})


@st.composite
def term_cases(draw, implementation: str) -> TermCase:
    terms, dtypes = (COMPUTES | INTERPRETED)[implementation]
    case = draw(kernel_cases.cases(dtypes))
    chosen = TermCase(
        case,
        bias=draw(st.sampled_from((None, *BIASES))),
        shared=draw(st.booleans()),
        relative=draw(st.booleans()),
        softcap=draw(st.sampled_from((None, 0.5, 3.0, 30.0))),
        sinks=draw(st.booleans()),
        dropout=draw(st.sampled_from((0.0, 0.1, 0.5, 0.9))),
    ).of(terms if strategies.steps_are_one(case.rule) else tuple(set(terms) - {"bias", "relative"}))
    if chosen.relative:
        chosen = replace(chosen, case=replace(case, rule=case.rule & rule("causal")))
    return chosen


@dataclass(frozen=True)
class TermInputs:
    """The tensors of a case: those of attention, and by name those of its terms (bias, relative, sinks)."""

    inputs: kernel_cases.Inputs
    parameters: dict[str, torch.Tensor]
    settings: dict
    seed: int


def term_inputs_of(chosen: TermCase) -> TermInputs:
    case = chosen.case
    inputs = inputs_of(case)
    generator = torch.Generator().manual_seed(1000 + case.seed)
    wide = torch.float64 if case.dtype == torch.float64 else torch.float32

    def normal(*shape, dtype=wide):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    parameters, settings = {}, {}
    distances = np.arange(case.n_queries)[:, None] + case.start - np.arange(case.n_keys)
    heads = 1 if chosen.shared else case.heads
    if chosen.bias == "alibi":
        parameters["bias"] = normal(case.heads).abs()
    elif chosen.bias == "buckets":
        parameters["bias"] = normal(12, case.heads)
        settings = {"bidirectional": chosen.shared, "max_distance": 40}
    elif chosen.bias == "span":
        parameters["bias"] = normal(case.heads).abs() * 10
        settings = {"ramp": 7}
    elif chosen.bias == "table":
        # As short as the batch lets it be: a pattern may read more than one batch lets it.
        rule_reads = distances[build(case.rule).dense(case.n_queries, case.n_keys, case.offset).any(0)]
        first, last = (int(rule_reads.min()), int(rule_reads.max())) if rule_reads.size else (0, 3)
        parameters["bias"] = normal(heads, last - first + 1)
        settings = {"first": first}
    if chosen.relative:
        parameters["relative"] = normal(max(1, int(distances.max(initial=0)) + 1), case.width, dtype=case.dtype)
    if chosen.sinks:
        parameters["sinks"] = normal(case.heads)
    return TermInputs(inputs, parameters, settings, seed=(case.seed * 0x9E3779B97F4A7C15 + 7) % 2**64)


def terms_of(chosen: TermCase, given: TermInputs, parameters: dict[str, torch.Tensor]) -> Terms:
    """The library's terms, with these tensors as parameters."""
    kinds = {"alibi": Alibi, "buckets": Buckets, "span": SoftSpan, "table": DistanceTable}
    return Terms(
        bias=None if chosen.bias is None else kinds[chosen.bias](parameters["bias"], **given.settings),
        relative=parameters.get("relative"),
        softcap=chosen.softcap,
        sinks=parameters.get("sinks"),
        dropout=Dropout(chosen.dropout, given.seed) if chosen.dropout else None,
    )


def computed(chosen: TermCase, given: TermInputs, implementation: str) -> dict[str, torch.Tensor]:
    """out, lse and all gradients of an implementation."""
    inputs = given.inputs
    leaves = {"q": inputs.q, "k": inputs.k, "v": inputs.v, **given.parameters}
    leaves = {name: x.detach().requires_grad_() for name, x in leaves.items()}
    terms = terms_of(chosen, given, leaves)
    options = inputs.keywords | {"implementation": implementation, "return_lse": gives_lse(implementation)}
    results = attend(leaves["q"], leaves["k"], leaves["v"], build(chosen.case.rule), terms=terms, **options)
    results = dict(zip(("out", "lse"), results if isinstance(results, tuple) else (results,), strict=False))
    weights = [inputs.d_out, inputs.d_lse][: len(results)]
    gradients = torch.autograd.grad(list(results.values()), list(leaves.values()), weights, materialize_grads=True)
    results |= {f"d{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    return {name: x.detach() for name, x in results.items()}


def expected_of(chosen: TermCase, given: TermInputs, with_lse: bool) -> dict[str, np.ndarray]:
    """The same of the oracle."""
    case, inputs = chosen.case, given.inputs
    parameters = {name: x.double().numpy() for name, x in given.parameters.items()}
    bias = None
    if chosen.bias is not None:
        bias = oracle_terms.Bias(chosen.bias, parameters["bias"], given.settings)
    kept = None
    if chosen.dropout:
        shape = (case.batch, case.heads, case.n_queries, case.n_keys)
        kept = oracle_terms.kept(*shape, case.start, chosen.dropout, given.seed)
    relative, sinks = parameters.get("relative"), parameters.get("sinks")
    terms = oracle_terms.Terms(bias, relative, chosen.softcap or 0.0, sinks, kept, chosen.dropout)
    arrays = [x.detach().double().numpy() for x in inputs.tensors]
    d_out, d_lse = inputs.d_out.double().numpy(), (inputs.d_lse * with_lse).double().numpy()
    found = oracle_terms.attention(*arrays, inputs.mask.numpy(), case.factor, case.start, terms, d_out, d_lse)
    return found if with_lse else {name: x for name, x in found.items() if name != "lse"}


def check_terms(chosen: TermCase, implementation: str) -> None:
    given = term_inputs_of(chosen)
    found = computed(chosen, given, implementation)
    expected = expected_of(chosen, given, "lse" in found)
    compared = computed(chosen, given, "reference")
    assert found.keys() == expected.keys()
    tensors = {name: np.abs(x[np.isfinite(x)]).max(initial=0) for name, x in expected.items()}
    largest = max(tensors[name] for name in ("dq", "dk", "dv"))
    for name in found:
        # The gradient of a parameter sums what was rounded to the dtype of q, so a few of its digits are luck.
        dtype = chosen.case.dtype if name.startswith("d") else found[name].dtype
        rounding = torch.finfo(dtype).eps / 2 * max(tensors[name], largest * name.startswith("d"))
        if implementation in FUSED and name.startswith("d"):  # what a product reads is rounded, and then its result
            rounding *= 2
            if chosen.case.dtype == torch.float32:  # so is the log-sum-exp that weights are computed from
                rounding *= max(1, tensors["lse"])
        if implementation in FUSED and name == "dbias":  # a sum over distances, each off by a rounding of its own
            rounding *= math.sqrt(chosen.case.n_queries + chosen.case.n_keys)
        assert_as_good(name, found[name], expected[name], compared[name], chosen.case.dtype, rounding)
    empty = ~read_of(chosen, given).any(-1)
    assert not found["out"][empty].any() and not found["dq"][empty].any()
    if "lse" in found and not chosen.sinks:
        assert (found["lse"][empty] == -math.inf).all()


def read_of(chosen: TermCase, given: TermInputs) -> torch.Tensor:
    """Which pairs are read, bool [B, H, N, M]: a bias of -inf keeps some from it."""
    mask, case = given.inputs.mask, chosen.case
    if chosen.bias != "span":
        return mask
    distances = np.arange(case.n_queries)[:, None] + case.start - np.arange(case.n_keys)
    bias = oracle_terms.Bias("span", given.parameters["bias"].double().numpy(), given.settings).pairs(distances)
    return mask & torch.from_numpy(bias > -math.inf)


def check_unread(chosen: TermCase, implementation: str) -> None:
    """NaN and infinities in keys that nobody reads change no bit of any result."""
    given = term_inputs_of(chosen)
    unread = unread_keys(replace(given.inputs, mask=read_of(chosen, given)))
    assume(unread.any())
    bad = torch.tensor([math.nan, math.inf, -math.inf], dtype=chosen.case.dtype)
    k, v = given.inputs.k.clone(), given.inputs.v.clone()
    clean = replace(given, inputs=replace(given.inputs, k=k.clone(), v=v.clone()))
    for x in (k, v):
        x[unread] = bad[torch.arange(unread.sum() * x.shape[-1]) % 3].reshape(-1, x.shape[-1])
    poisoned = replace(given, inputs=replace(given.inputs, k=k, v=v))
    assert_equal_bits(computed(chosen, clean, implementation), computed(chosen, poisoned, implementation))
