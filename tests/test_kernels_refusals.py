"""What attend refuses, and that the first line says what was asked and seen."""

import numpy as np
import pytest
import torch
from kernel_cases import tensors

from asterism import attend, patterns
from asterism.errors import AsterismError, KernelError, PatternError

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


def test_dense_refuses_the_log_sum_exp_with_the_reason():
    q = torch.zeros(1, 1, 4, 2)
    with pytest.raises(KernelError, match="dense.*log-sum-exp"):
        attend(q, q, q, "causal()", return_lse=True, implementation="dense")
