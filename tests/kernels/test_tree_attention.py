"""Attention over trees by every implementation, against softmax over the ancestors that a walk up the parents finds."""

import numpy as np
import pytest
import strategies
import torch
from hypothesis import strategies as st
from kernel_cases import (
    DTYPES_OF,
    Case,
    Inputs,
    assert_all_as_good,
    differentiated,
    exact,
    gives_lse,
    has_compiler,
    inputs_of,
    plain,
)
from oracle import rule
from strategies import hold, tiers

from asterism import attend
from asterism.kernels import IMPLEMENTATIONS
from asterism.patterns import parents_in_row, tree, window

pytestmark = pytest.mark.usefixtures("poison")

ALL = [name for name in DTYPES_OF if name in IMPLEMENTATIONS and (name != "cpu" or has_compiler())]


def walked(parents, reach=None) -> torch.Tensor:
    """bool [tokens, tokens], by the definition: a step up at a time, at most `reach` of them."""
    allowed = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for token in range(len(parents)):
        ancestor, steps = token, 0
        while ancestor >= 0 and (reach is None or steps <= reach):
            allowed[token, ancestor] = True
            ancestor, steps = parents[ancestor], steps + 1
    return allowed


def tensors_over(parents, dtype, reach=None) -> Inputs:
    n = len(parents)
    case = Case(rule("dense"), heads=4, kv_heads=2, n_queries=n, n_keys=n, width=8, value_width=8, dtype=dtype)
    inputs = inputs_of(case)
    inputs.mask[:] = walked(parents, reach)
    return inputs


def check(pattern, inputs, implementation, **options):
    def compute(q, k, v):
        if gives_lse(implementation):
            return attend(q, k, v, pattern, implementation=implementation, return_lse=True, **options)
        return attend(q, k, v, pattern, implementation=implementation, **options), None

    found = differentiated(compute, inputs)
    scale, with_lse = inputs.q.shape[-1] ** -0.5, gives_lse(implementation)
    assert_all_as_good(
        found,
        exact(inputs, scale, with_lse),
        plain(inputs, scale, with_lse),
        inputs.q.dtype,
        implementation,
    )


@pytest.mark.parametrize("count", tiers(6, 300))
@pytest.mark.parametrize("implementation", ALL)
def test_ancestors(implementation, count):
    @st.composite
    def questions(draw):
        parents = draw(strategies.parents(draw(st.sampled_from((1, 2, 17, 64, 97, 150)))))
        return parents, draw(st.sampled_from((None, 3))), draw(st.sampled_from(DTYPES_OF[implementation][:2]))

    def law(question):
        parents, reach, dtype = question
        along = None if reach is None else window(left=reach)
        check(tree(parents, pattern=along), tensors_over(parents, dtype, reach), implementation)

    hold(law, questions(), count)


@pytest.mark.parametrize("implementation", ALL)
def test_a_prompt_with_answers_longer_than_tiles(implementation):
    prompt, answers, answer = 133, 5, 71
    parents = [*range(-1, prompt - 1)]
    for _ in range(answers):
        parents += [prompt - 1, *range(len(parents), len(parents) + answer - 1)]
    check(tree(parents), tensors_over(parents, DTYPES_OF[implementation][0]), implementation)


@pytest.mark.parametrize("implementation", ALL)
def test_several_trees_in_a_row_are_as_if_alone(implementation):
    trees = [[-1, 0, 0, 1, 1, 3], [-1], [-1, *range(30), 5, 5, 31]]
    bounds = [0, *np.cumsum([len(one) for one in trees])]
    parents = parents_in_row(sum(trees, []), bounds)
    q, k, v = torch.randn(3, 2, 4, len(parents), 8, generator=torch.Generator().manual_seed(0))
    whole = attend(q, k, v, tree(parents), implementation=implementation)
    for first, past, own in zip(bounds, bounds[1:], trees, strict=False):
        q_own, k_own, v_own = (x[:, :, first:past] for x in (q, k, v))
        alone = attend(q_own, k_own, v_own, tree(own), implementation="reference")
        torch.testing.assert_close(whole[:, :, first:past], alone, atol=1e-5, rtol=1e-5)


def test_one_tree_in_every_document():
    """With cu_seqlens of attend, as for any pattern, each document follows the tree from its own first token."""
    parents = [-1, 0, 0, 2, 2]
    inputs = tensors_over(parents_in_row(parents + parents[:3], [0, 5, 8]).tolist(), torch.float64)
    check(tree(parents), inputs, "eager", cu_seqlens=[0, 5, 8])


def test_drafts_behind_cached_keys():
    """The queries are the last tokens of the tree, as in speculative decoding."""
    parents = [*range(-1, 39), 39, 39, 40, 40, 41]
    inputs = tensors_over(parents, torch.float64)
    q = inputs.q[:, :, 40:]
    found = attend(q, inputs.k, inputs.v, tree(parents))
    whole = attend(inputs.q, inputs.k, inputs.v, tree(parents), implementation="reference")
    torch.testing.assert_close(found, whole[:, :, 40:])
