"""What a batch forbids, in the CPU kernel: tiles are left out, left alone or cut, and no pair is computed otherwise."""

from dataclasses import replace

import pytest
import torch
from kernel_cases import (
    DTYPES_OF,
    Case,
    assert_all_as_good,
    assert_equal_bits,
    attending,
    differentiated,
    exact,
    has_compiler,
    inputs_of,
    plain,
)
from oracle import rule
from strategies import build

from asterism.compiler import compile_pattern
from asterism.kernels.cpu.schedule import FIELDS, schedule
from asterism.kernels.operands import Operands

pytestmark = [
    pytest.mark.usefixtures("poison", "native_poison"),
    pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine"),
]

each_dtype = pytest.mark.parametrize("dtype", DTYPES_OF["cpu"], ids=str)

N, BATCH = 300, 4
RULES = (
    rule("window", left=90),
    rule("bigbird", block=32, random=1, seed=1),
    rule("strided", stride=24),
    rule("fixed", stride=32, summary=4),
    rule("global_tokens", positions=(0, 150)) | rule("window", left=20, right=20),
)
each_rule = pytest.mark.parametrize("drawn", RULES, ids=str)


def key_masks() -> torch.Tensor:
    """A padded row, one without padding, one with holes, and one that holds nothing."""
    mask = torch.ones(BATCH, N, dtype=torch.bool)
    mask[0, 170:] = False
    mask[2, 5::7] = False
    mask[2, 64:140] = False
    mask[3] = False
    return mask


def segments() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    documents = (torch.arange(N) // 70).expand(BATCH, N)
    ends = torch.tensor([-(2**63), -1, 0, 2**63 - 1])
    return {
        "sorted": documents.contiguous(),
        "interleaved": torch.randint(0, 3, (BATCH, N), generator=generator),
        "negative": documents.flip(1) - 3,
        "extreme": ends[documents % 4],
        "one each": torch.arange(BATCH)[:, None].expand(BATCH, N).contiguous(),
    }


def case_of(drawn, dtype) -> Case:
    sizes = {"n_queries": N, "n_keys": N, "batch": BATCH, "width": 24, "value_width": 40}
    return Case(drawn, heads=4, kv_heads=2, dtype=dtype, **sizes)


def forbidding(case, key_mask=None, segments=None):
    """The inputs of a case whose batch forbids this."""
    inputs = inputs_of(case)
    mask = inputs.mask.clone()
    keywords = dict(inputs.keywords)
    if key_mask is not None:
        keywords["key_mask"] = key_mask
        mask &= key_mask[:, None, None, :]
    if segments is not None:
        keywords["segments"] = segments
        own = segments[:, case.start : case.start + case.n_queries]
        mask &= (own[:, :, None] == segments[:, None, :])[:, None]
    return replace(inputs, mask=mask, keywords=keywords)


def check(case, inputs):
    found = differentiated(attending(case, inputs, "cpu"), inputs)
    assert_all_as_good(found, exact(inputs, case.factor), plain(inputs, case.factor), case.dtype)


@each_dtype
@each_rule
def test_rows_of_every_kind_in_one_batch(drawn, dtype):
    case = case_of(drawn, dtype)
    check(case, forbidding(case, key_masks()))
    part = replace(case, n_queries=130, offset=57)
    check(part, forbidding(part, key_masks()))


@each_dtype
@each_rule
@pytest.mark.parametrize("which", segments())
def test_segments_of_every_kind(which, drawn, dtype):
    case = case_of(drawn, dtype)
    check(case, forbidding(case, segments=segments()[which]))
    check(case, forbidding(case, key_masks(), segments()[which]))


@each_dtype
@each_rule
def test_padding_changes_no_bit(drawn, dtype):
    """NaN and infinities where key_mask is False, at either end of a row and in between."""
    case = case_of(drawn, dtype)
    mask = key_masks()
    mask[3, 200:] = True
    inputs = forbidding(case, mask)
    k, v = inputs.k.clone(), inputs.v.clone()
    for x, bad in ((k, torch.nan), (v, torch.inf)):
        x.transpose(1, 2)[~mask] = bad
    compute = attending(case, inputs, "cpu")
    assert_equal_bits(differentiated(compute, inputs), differentiated(compute, replace(inputs, k=k, v=v)))


@each_dtype
@each_rule
def test_a_batch_that_forbids_nothing_changes_no_bit(drawn, dtype):
    case = case_of(drawn, dtype)
    plainly = inputs_of(case)
    expected = differentiated(attending(case, plainly, "cpu"), plainly)
    nothing = {"key_mask": torch.ones(BATCH, N, dtype=torch.bool), "segments": segments()["one each"]}
    for given in ({name: nothing[name]} for name in nothing):
        inputs = forbidding(case, **given)
        assert_equal_bits(differentiated(attending(case, inputs, "cpu"), inputs), expected)


# --- which tiles are computed ----------------------------------------------------------------------------------------


def computed(inputs, drawn) -> tuple[int, int]:
    """Tiles that the kernel computes, and how many of them it cuts."""
    keywords = inputs.keywords
    masks = keywords.get("key_mask"), keywords.get("segments")
    tasks = schedule(Operands(*inputs.tensors, *masks, None, build(drawn).text, 0, 1.0), 1)
    return tuple(int(tasks[:, FIELDS.index(name)].sum()) for name in ("tiles", "cut"))


def expected_tiles(inputs, drawn) -> tuple[int, int]:
    """Tiles with an allowed key (or a common segment), and those in which the batch forbids anything."""
    plan = compile_pattern(build(drawn), N)
    batch_mask = torch.ones(BATCH, N, N, dtype=torch.bool)
    if "key_mask" in inputs.keywords:
        batch_mask &= inputs.keywords["key_mask"][:, None]
    if "segments" in inputs.keywords:
        own = inputs.keywords["segments"]
        batch_mask &= own[:, :, None] == own[:, None, :]
    tiles = cut = 0
    for part in plan.passes:
        _, rows = part.entries()
        queries, exist_q = plan.places(part, rows, of_queries=True)
        keys, exist_k = plan.places(part, part.columns, of_queries=False)
        exist = torch.from_numpy(exist_q[:, :, None] & exist_k[:, None, :])
        for row in batch_mask:
            allowed = row[torch.from_numpy(queries)[:, :, None], torch.from_numpy(keys)[:, None, :]]
            some, every = (allowed & exist).any((1, 2)), (allowed | ~exist).all((1, 2))
            tiles += int(some.sum()) * inputs.q.shape[1]
            cut += int((some & ~every).sum()) * inputs.q.shape[1]
    return tiles, cut


@each_rule
def test_tiles_that_nobody_may_read_are_left_out_and_those_that_all_may_read_left_alone(drawn):
    case = case_of(drawn, torch.float32)
    plan_tiles = compile_pattern(build(drawn), N).tiles * BATCH * case.heads
    assert computed(inputs_of(case), drawn) == (plan_tiles, 0)
    padded = forbidding(case, key_masks())
    assert computed(padded, drawn) == expected_tiles(padded, drawn)
    assert computed(padded, drawn)[0] < plan_tiles
    every = {"key_mask": torch.ones(BATCH, N, dtype=torch.bool), "segments": segments()["one each"]}
    assert computed(forbidding(case, **every), drawn) == (plan_tiles, 0)


@pytest.mark.parametrize("drawn", RULES[:2], ids=str)
@pytest.mark.parametrize("which", ("sorted", "negative"))
def test_tiles_between_documents_are_left_out(which, drawn):
    """In their natural order; where an order mixes the documents, more tiles are computed than need be."""
    case = case_of(drawn, torch.float32)
    packed = forbidding(case, segments=segments()[which])
    assert computed(packed, drawn) == expected_tiles(packed, drawn)
    assert computed(packed, drawn)[0] < compile_pattern(build(drawn), N).tiles * BATCH * case.heads
