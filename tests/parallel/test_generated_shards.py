"""Attention over shards is attention to the whole, and what goes over the wire is what the plan says: generated cases.

Written from the contract, before the code that executes plans was read.
"""

import pytest
from generated_shards import NAMED, compute_all, drawn

COUNT = 500
"""Generated cases of the slow tier, beside those that are named."""


@pytest.mark.parametrize(
    ("ranks", "past"),
    [
        (3, len(NAMED) + 36),
        *(pytest.param(ranks, len(NAMED) + COUNT, marks=pytest.mark.slow) for ranks in (1, 2, 3, 4)),
    ],
)
def test_shards_attend_as_the_whole_does_and_move_what_the_plan_says(gloo, ranks, past):
    cases = drawn(0, past)
    reports = gloo.run(ranks, compute_all, cases, patience=1500)
    assert len(cases) >= past * 0.9
    used: set[str] = set()
    for rank, report in enumerate(reports):
        assert len(report) == len(cases)
        for case, found in zip(cases, report, strict=True):
            where = f"rank {rank} of {ranks}: {case}: {found}"
            assert found.apart <= 1e-12 * max(1.0, found.scale), where
            assert found.forward == found.planned_forward, where
            assert found.held == found.planned_held, where
            if all(case.wanted):  # else some gradients need not travel
                assert found.backward == found.planned_backward, where
            used |= set(found.ways)
    # On two ranks the ring moves no more than residues and heads do, and is simpler.
    expected = {1: set(), 2: {"ByRows", "Ring"}}.get(ranks, {"ByRows", "ByResidues", "ByHeads", "Ring"})
    assert used >= expected
