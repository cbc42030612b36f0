"""What the page on sparse models says of SmolLM2 is what the record of benchmarks/sparsify.py holds."""

import json
import re

from repository import BENCHMARKS, docs_page

RESULTS = {
    budget: result
    for name in ("sparsify.json", "sparsify-periodic.json")
    for budget, result in json.loads((BENCHMARKS / "results" / name).read_text())["results"].items()
}


def test_losses_are_those_of_the_record():
    page = docs_page("sparsify.md").read_text()
    told = re.findall(r"^\| ([\w ]+) \| ([\d,]+) \| (\d\.\d{3}) \| (\d\.\d{3}) \|$", page, re.MULTILINE)
    found = [
        (row["name"], f"{row['cost']:,.0f}", f"{row['nats']:.3f}", f"{row['held_out']:.3f}")
        for result in RESULTS.values()
        for row in result["rows"]
    ]
    assert told == found


def test_each_schedule_is_within_its_budget():
    for budget, result in RESULTS.items():
        amount = float(budget.partition("=")[2].rstrip("%"))
        share = amount / (100 if budget.endswith("%") else result["rows"][0]["cost"])
        assert all(row["share"] <= share for row in result["rows"] if row["name"] != "as it is")
