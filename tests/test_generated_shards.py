"""Attention over shards is attention to the whole, and what goes over the wire is what the plan says: generated cases.

Written from the contract, before the code that executes plans was read.
"""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import generated_shards
import pytest
from generated_shards import NAMED

COUNT = 500
"""Generated cases of the slow tier, beside those that are named."""


@functools.cache
def measured(ranks: int, first: int, past: int) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """The cases, and what each rank found of them."""
    with tempfile.TemporaryDirectory() as folder:
        told = [sys.executable, generated_shards.__file__, *map(str, (ranks, first, past)), folder]
        done = subprocess.run(told, capture_output=True, text=True, timeout=1500)
        cases = json.loads(Path(folder, "cases.json").read_text()) if Path(folder, "cases.json").exists() else []
        found = [Path(folder, f"{rank}.json") for rank in range(ranks)]
        reports = [json.loads(one.read_text()) if one.exists() else [] for one in found]
    for rank, report in enumerate(reports):
        wrong = next((number for number, one in enumerate(report) if one["error"]), None)
        assert wrong is None, f"rank {rank} of {ranks}, {cases[wrong]}:\n{report[wrong]['error']}"
    assert done.returncode == 0, done.stderr[-4000:]
    return cases, reports


@pytest.mark.parametrize(
    ("ranks", "past"),
    [
        (3, len(NAMED) + 36),
        *(pytest.param(ranks, len(NAMED) + COUNT, marks=pytest.mark.slow) for ranks in (1, 2, 3, 4)),
    ],
)
def test_shards_attend_as_the_whole_does_and_move_what_the_plan_says(ranks, past):
    cases, reports = measured(ranks, 0, past)
    assert len(cases) >= past * 0.9
    used: set[str] = set()
    for rank, report in enumerate(reports):
        assert len(report) == len(cases)
        for case, found in zip(cases, report, strict=True):
            where = f"rank {rank} of {ranks}: {case}: {found}"
            assert found["apart"] <= 1e-12 * max(1.0, found["scale"]), where
            assert found["forward"] == found["planned_forward"], where
            if all(case["wanted"]):  # else some gradients need not travel
                assert found["backward"] == found["planned_backward"], where
            used |= set(found["shares"])
    # On two ranks the ring moves no more than residues and heads do, and is simpler.
    expected = {1: set(), 2: {"Rows", "Ring"}}.get(ranks, {"Rows", "Residues", "Heads", "Ring"})
    assert used >= expected
