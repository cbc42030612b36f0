"""What the page on chosen blocks says of SmolLM2 is what the record of benchmarks/chosen_blocks.py holds."""

import json
import re
from statistics import mean

from repository import BENCHMARKS, docs_page

RECORD = json.loads((BENCHMARKS / "results" / "chosen_blocks.json").read_text())
PAGE = docs_page("chosen-blocks.md").read_text()


def losses() -> dict[str, str]:
    return {name: f"{mean(row['nats']):.3f}" for name, row in RECORD["losses"].items()}


def test_losses_are_those_of_the_record():
    found, rows = losses(), re.findall(r"^\| (256|512|1024) \| (.*?) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 19
    for keys, score, numbers in rows:
        name = score.replace("`", "").replace("attention itself", "mass").replace("index branch, ", "index ")
        told = [found[f"{name}, blocks of {block}, {keys} keys"] for block in (16, 32, 64, 128)]
        assert numbers.split(" | ") == told
    for name in ("dense", "sinks, 256 keys", "sinks, 512 keys", "sinks, 1024 keys"):
        assert found[name] in PAGE
