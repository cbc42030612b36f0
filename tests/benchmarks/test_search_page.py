"""What the page on searches says of equal cost is what the record of benchmarks/search.py holds."""

import json
import re

from repository import BENCHMARKS, docs_page

from asterism.search.record import summary

SEARCHES = json.loads((BENCHMARKS / "results" / "search.json").read_text())["searches"]


def test_accuracies_are_those_of_the_record():
    rows = re.findall(r"^\| `(recall|needles)` \| (\d+%) \| (.*) \|$", docs_page("search.md").read_text(), re.MULTILINE)
    assert len(rows) == 4
    for task, share, numbers in rows:
        record = SEARCHES[task]
        found = {row["name"]: summary(row) for row in record["rows"] if row["budget"] in (None, f"flops={share}")}
        assert all(short["seeds"] == 3 for short in found.values())
        means = [f"{found[name]['accuracy']:.2f}" for name in ("window", "bigbird", "selected", "dense")]
        assert numbers.split(" | ") == means
