"""What attend refuses, and that the first line says what was asked and seen."""

import re

import numpy as np
import pytest
import torch
from kernel_cases import tensors

from asterism import attend, patterns
from asterism.errors import AsterismError, KernelError, PatternError
from asterism.kernels import IMPLEMENTATIONS, decode

pytestmark = pytest.mark.usefixtures("poison")


REFUSED = {
    "q of three dimensions": (lambda: attend(*tensors(q=(2, 6, 8)), "causal()"), KernelError, ("q", "2, 6, 8")),
    "k of five dimensions": (
        lambda: attend(*tensors(k=(1, 2, 2, 6, 8)), "causal()"),
        KernelError,
        ("k", "1, 2, 2, 6, 8"),
    ),
    "batches": (lambda: attend(*tensors(k=(3, 2, 6, 8)), "causal()"), KernelError, ("batch", "2", "3")),
    "keys and values": (lambda: attend(*tensors(v=(2, 2, 5, 8)), "causal()"), KernelError, ("6", "5")),
    "key and value heads": (lambda: attend(*tensors(v=(2, 1, 6, 8)), "causal()"), KernelError, ("head", "2", "1")),
    "widths": (lambda: attend(*tensors(k=(2, 2, 6, 9)), "causal()"), KernelError, ("8", "9")),
    "grouped heads": (lambda: attend(*tensors(q=(2, 3, 6, 8)), "causal()"), KernelError, ("head", "3", "2")),
    "more queries than keys": (lambda: attend(*tensors(q=(2, 4, 7, 8)), "causal()"), AsterismError, ("7", "6")),
    "mixed dtypes": (
        lambda: attend(torch.zeros(2, 4, 6, 8, dtype=torch.float64), *tensors()[1:], "causal()"),
        KernelError,
        ("float64", "float32"),
    ),
    "integers": (lambda: attend(*tensors(dtype=torch.int64), "causal()"), KernelError, ("int64",)),
    "float8": (lambda: attend(*tensors(dtype=torch.float8_e4m3fn), "causal()"), KernelError, ("float8_e4m3fn",)),
    "no width": (lambda: attend(*tensors(q=(2, 4, 6, 0), k=(2, 2, 6, 0)), "causal()"), KernelError, ("2, 4, 6, 0",)),
    "a schedule": (
        lambda: attend(*tensors(), patterns.interleave(patterns.causal())),
        AsterismError,
        ("Schedule",),
    ),
    "complex": (lambda: attend(*tensors(dtype=torch.complex64), "causal()"), KernelError, ("complex64",)),
    "devices": (
        lambda: attend(torch.zeros(2, 4, 6, 8, device="meta"), *tensors()[1:], "causal()"),
        KernelError,
        ("meta", "cpu"),
    ),
    "pattern heads": (
        lambda: attend(*tensors(), patterns.per_head([patterns.causal()] * 3)),
        PatternError,
        ("3", "4"),
    ),
    "pattern text": (lambda: attend(*tensors(), "causl()"), PatternError, ("causl", "causal")),
    "pattern code": (lambda: attend(*tensors(), "__import__('os')"), PatternError, ()),
    "short explicit pattern": (
        lambda: attend(*tensors(), patterns.explicit(np.eye(4, dtype=bool))),
        PatternError,
        ("4", "6"),
    ),
    "implementation": (
        lambda: attend(*tensors(), "causal()", implementation="eagr"),
        KernelError,
        ("eagr", "eager"),
    ),
    "key mask shape": (
        lambda: attend(*tensors(), "causal()", key_mask=torch.ones(2, 5, dtype=torch.bool)),
        KernelError,
        ("key_mask", "2, 5", "2, 6"),
    ),
    "key mask dtype": (
        lambda: attend(*tensors(), "causal()", key_mask=torch.ones(2, 6)),
        KernelError,
        ("key_mask", "bool", "float32"),
    ),
    "segments shape": (
        lambda: attend(*tensors(), "causal()", segments=torch.zeros(6, dtype=torch.long)),
        KernelError,
        ("segments", "6"),
    ),
    "segments dtype": (
        lambda: attend(*tensors(), "causal()", segments=torch.zeros(2, 6)),
        KernelError,
        ("segments", "float32"),
    ),
    "offset behind the end": (
        lambda: attend(*tensors(q=(2, 4, 3, 8)), "causal()", query_offset=4),
        AsterismError,
        ("4", "3", "6"),
    ),
    "offset of no queries": (
        lambda: attend(*tensors(q=(2, 4, 0, 8)), "causal()", query_offset=7),
        PatternError,
        ("7", "6"),
    ),
    "offset that is a text": (
        lambda: attend(*tensors(), "causal()", query_offset="0"),
        KernelError,
        ("query_offset", "'0'"),
    ),
    "offset that is a fraction": (
        lambda: attend(*tensors(), "causal()", query_offset=0.5),
        KernelError,
        ("query_offset", "0.5"),
    ),
    "offset beyond 64 bits": (lambda: attend(*tensors(), "causal()", query_offset=2**64), PatternError, (str(2**64),)),
    "scale that is a list": (lambda: attend(*tensors(), "causal()", scale=[1]), KernelError, ("scale", "[1]")),
    "no implementation": (
        lambda: attend(*tensors(), "causal()", implementation=None),
        KernelError,
        ("implementation", "None", "auto"),
    ),
    "an array for q": (lambda: attend(tensors()[0].numpy(), *tensors()[1:], "causal()"), KernelError, ("q", "ndarray")),
    "nothing for v": (lambda: attend(*tensors()[:2], None, "causal()"), KernelError, ("v", "NoneType")),
    "a list for the key mask": (
        lambda: attend(*tensors(), "causal()", key_mask=[[True] * 6] * 2),
        KernelError,
        ("key_mask", "list"),
    ),
    "a sparse q": (
        lambda: attend(tensors()[0].to_sparse(), *tensors()[1:], "causal()"),
        KernelError,
        ("q", "sparse_coo"),
    ),
    "a sparse key mask": (
        lambda: attend(*tensors(), "causal()", key_mask=torch.ones(2, 6, dtype=torch.bool).to_sparse()),
        KernelError,
        ("key_mask", "sparse_coo"),
    ),
    "complex segments": (
        lambda: attend(*tensors(), "causal()", segments=torch.zeros(2, 6, dtype=torch.complex64)),
        KernelError,
        ("segments", "complex64"),
    ),
    "a list for positions": (
        lambda: decode(*tensors(), "causal()", [[0]], torch.arange(6)[None]),
        KernelError,
        ("query_positions", "list"),
    ),
    "negative offset": (
        lambda: attend(*tensors(q=(2, 4, 3, 8)), "causal()", query_offset=-1),
        AsterismError,
        ("-1",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_what_was_asked_and_seen(name):
    call, error, parts = REFUSED[name]
    with pytest.raises(error) as refused:
        call()
    first_line = str(refused.value).splitlines()[0]
    for part in parts:
        assert part in first_line


@pytest.mark.parametrize("text", ("dense()", "causal()", "window(2)"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16))
@pytest.mark.parametrize("offset", (-1, 1))
@pytest.mark.parametrize("implementation", ("auto", "dense", "eager", "reference"))
def test_queries_must_stand_among_the_keys(implementation, offset, dtype, text):
    """Also where dense attention is taken by the pattern's name alone."""
    q = torch.zeros(1, 2, 5, 8, dtype=dtype)
    if text == "dense()" and offset == 1:  # which reads everything from wherever it asks
        assert attend(q, q, q, text, query_offset=offset, implementation=implementation).shape == q.shape
        return
    with pytest.raises(PatternError, match=f"5 queries do not fit among 5 positions .first query at {offset}"):
        attend(q, q, q, text, query_offset=offset, implementation=implementation)


def test_dense_refuses_the_log_sum_exp_with_the_reason():
    q = torch.zeros(1, 1, 4, 2)
    with pytest.raises(KernelError, match="dense.*log-sum-exp"):
        attend(q, q, q, "causal()", return_lse=True, implementation="dense")


CPU_REFUSED = {
    "float64": (lambda: tensors(dtype=torch.float64), ("'cpu'", "float64", "float32", "bfloat16", "eager")),
    "float16": (lambda: tensors(dtype=torch.float16), ("'cpu'", "float16", "float32", "bfloat16", "eager")),
    "wide keys": (lambda: tensors(q=(2, 4, 6, 257), k=(2, 2, 6, 257)), ("'cpu'", "257", "256", "eager")),
    "wide values": (lambda: tensors(v=(2, 2, 6, 300)), ("'cpu'", "300", "256", "eager")),
    "another device": (lambda: [x.to("meta") for x in tensors()], ("'cpu'", "meta", "CPU|auto|eager")),
    "mixed devices": (lambda: [x.to(d) for x, d in zip(tensors(), ("cpu", "cpu", "meta"), strict=True)], ("meta",)),
    "mixed dtypes": (
        lambda: [x.to(d) for x, d in zip(tensors(), (torch.float32, torch.float32, torch.bfloat16), strict=True)],
        ("float32.*bfloat16",),
    ),
}


@pytest.mark.parametrize("name", CPU_REFUSED)
def test_what_the_fused_kernel_refuses(name):
    """It is never swapped for another implementation: the line says what was seen and what would work."""
    operands, parts = CPU_REFUSED[name]
    with pytest.raises(KernelError) as refused:
        attend(*operands(), "causal()", implementation="cpu")
    assert refused.type is KernelError
    (line,) = str(refused.value).splitlines()
    for part in parts:
        assert re.search(part, line), f"{part!r} is not in: {line}"


@pytest.mark.parametrize("name", ("float64", "float16", "wide keys", "wide values"))
def test_auto_takes_what_the_fused_kernel_refuses(name):
    operands = CPU_REFUSED[name][0]()
    found = attend(*operands, "window(left=2)", return_lse=True)
    expected = attend(*operands, "window(left=2)", return_lse=True, implementation="eager")
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_no_heads_are_refused(implementation):
    with pytest.raises(KernelError, match=r"heads.*\[2, 0, 6, 8\]"):
        attend(*tensors(q=(2, 0, 6, 8)), "causal()", implementation=implementation)
