"""What SmolLM2 loses when it is made sparse within a budget: the record of `asterism sparsify`, kept with its machine.

    asterism sparsify smollm2 --data texts/long.jsonl --budget keys=25% --trials 32 --output sparser \\
        --plot docs/images/sparsify.svg
    python benchmarks/sparsify.py sparser/record.json benchmarks/results/sparsify.json
    asterism sparsify smollm2 --data texts/long.jsonl --budget keys=335 --trials 0 --output sparser
    python benchmarks/sparsify.py sparser/record.json benchmarks/results/sparsify-periodic.json --budget keys=335

The weights and texts are those of benchmarks/smollm2.py. Of the record, the results of each budget, or of some, are
kept, with the seconds of all measurements up to it. 335 keys are those of every fourth layer dense, and of the least
window elsewhere.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from asterism.bench.machine import describe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--budget", nargs="+", help="those to keep (default: all)")
    arguments = parser.parse_args()
    record = json.loads(arguments.record.read_text())
    settings = {name: record["settings"][name] for name in ("length", "window", "texts", "versions", "dtype")}
    date = datetime.now(UTC).date().isoformat()
    kept = {"machine": describe("cpu"), "date": date, "settings": settings, "results": {}}
    kept["results"] = {one: record["results"][one] for one in arguments.budget or record["results"]}
    arguments.output.write_text(json.dumps(kept, indent=1) + "\n")
    for budget, result in kept["results"].items():
        print(f"{budget}, {result['seconds']:,.0f} s")
        for row in result["rows"]:
            print(f"| {row['name']} | {row['cost']:,.0f} | {row['nats']:.3f} | {row['held_out']:.3f} |")


if __name__ == "__main__":
    main()
