"""The text that tiny runs on bytes learn from, and what their history says whatever the clock."""

import json

TEXT = b"".join(b"def f%d(x):\n    return x + %d\n\n" % (number, number % 7) for number in range(1200))


def history(folder):
    entries = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{k: v for k, v in entry.items() if k not in ("seconds", "bytes_per_second")} for entry in entries]
