"""Which way to bring queries and keys together wins on how many devices: simulated, without any.

    python benchmarks/devices.py --output benchmarks/results/devices.json --plot benchmarks/results/devices.png
    python benchmarks/devices.py --report benchmarks/results/devices.json

The model is that of simulated_devices.py: one layer, forward, on devices like an H100. Cases that the
file has are not computed again.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulated_devices import H100, simulate

from asterism.compiler.devices import RowShape

PATTERNS = {
    "window and globals": "window(left=4096) | global_tokens((0,), block=128)",
    "sinks": "sinks(first=4, window=4096)",
    "bigbird_causal": "bigbird_causal(block=64)",
    "fixed": "fixed(stride=128, summary=8)",
    "strided": "strided(stride=4096)",
    "causal": "causal()",
}
DEVICES = (8, 64, 512, 4096)
TOKENS_OF_A_DEVICE = 2**14
SHAPE = RowShape(heads=32, key_heads=8, key_dim=128, value_dim=128, itemsize=2)
WAYS = ("by pattern", "all-gather", "ring", "Ulysses")


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    if arguments.report:
        record = json.loads(arguments.report.read_text())
    else:
        known = json.loads(arguments.output.read_text())["cases"] if arguments.output.exists() else []
        record = {"shape": asdict(SHAPE), "machine": asdict(H100), "cases": known}
        for name in PATTERNS:
            for devices in DEVICES:
                _add(record, name, TOKENS_OF_A_DEVICE * devices, devices)
                arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    print(tables(record))
    if arguments.plot:
        _draw(record, arguments.plot)


def _add(record: dict[str, Any], name: str, length: int, devices: int) -> None:
    if any((case["name"], case["length"], case["devices"]) == (name, length, devices) for case in record["cases"]):
        return
    begun = time.process_time()
    case = asdict(found := simulate(PATTERNS[name], length, devices, SHAPE))
    seconds = round(time.process_time() - begun, 2)
    record["cases"].append({"name": name, **case, "fastest": found.fastest, "seconds_to_simulate": seconds})
    print(f"{name}, {length:,} tokens on {devices:,}: {seconds} s", file=sys.stderr)


def tables(record: Mapping[str, Any]) -> str:
    """All cases as Markdown: bytes that come to a rank, keys and values that it holds, and milliseconds."""
    lines = []
    for length, devices in sorted({(case["length"], case["devices"]) for case in record["cases"]}):
        lines += [f"### {length:,} tokens on {devices:,} devices", ""]
        lines += [
            "| | way | MB to a rank | all-gather, ring | Ulysses | MB of keys | ms | all-gather | ring | Ulysses |"
        ]
        lines += ["|---" * 10 + "|"]
        for case in record["cases"]:
            if (case["length"], case["devices"]) == (length, devices):
                lines.append(_row(case))
        lines.append("")
    return "\n".join(lines)


def _row(case: Mapping[str, Any]) -> str:
    ways = {way["name"]: way for way in case["ways"]}
    received = [_megabytes(ways[name]) for name in ("by pattern", "ring", "Ulysses")]
    times = [_milliseconds(ways[name], name == case["fastest"]) for name in WAYS]
    shares = " and ".join(case["shares"]) + (f", {len(case['sampled'])} ranks planned" if case["sampled"] else "")
    held = f"{ways['by pattern']['keys'] / 1e6:,.0f}"
    return f"| {case['name']} | {shares} | {' | '.join(received)} | {held} | {' | '.join(times)} |"


def _megabytes(way: Mapping[str, Any]) -> str:
    return "-" if way["refusal"] else f"{way['received'] / 1e6:,.1f}"


def _milliseconds(way: Mapping[str, Any], fastest: bool) -> str:
    if way["refusal"]:
        return "-"
    text = f"{1e3 * way['seconds']:,.1f}" if way["seconds"] < 1 else f"{1e3 * way['seconds']:,.0f}"
    return f"**{text}**" if fastest else text


def _draw(record: Mapping[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.8), constrained_layout=True)
    scales = ("received", 1e6, "MB that come to a rank"), ("seconds", 1e-3, "ms, simulated")
    for panel, (field, unit, label) in zip(panels, scales, strict=True):
        for number, name in enumerate(PATTERNS):
            cases = [case for case in record["cases"] if case["name"] == name]
            values = [_way(case, "by pattern")[field] / unit for case in cases]
            panel.plot([case["devices"] for case in cases], values, marker="o", color=f"C{number}", label=name)
            if field == "seconds" and name != "causal":
                ring = [_way(case, "ring")[field] / unit for case in cases]
                panel.plot([case["devices"] for case in cases], ring, ls=":", lw=1, color=f"C{number}")
        if field == "received":
            cases = [case for case in record["cases"] if case["name"] == "causal"]
            ring = [_way(case, "ring")[field] / unit for case in cases]
            panel.plot([case["devices"] for case in cases], ring, "k:", label="all-gather, ring")
            panel.plot(
                cases[0]["devices"], _way(cases[0], "Ulysses")[field] / unit, "kx", label="Ulysses (8 key heads)"
            )
            panel.legend(fontsize=8)
        panel.set(xscale="log", yscale="log", xlabel="devices, 16,384 tokens each", ylabel=label)
        panel.set_xticks(DEVICES, [f"{count:,}" for count in DEVICES])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_title("Bytes of a layer, forward")
    panels[1].set_title("Time of a layer: by pattern, and round the ring (dotted)")
    figure.savefig(path, dpi=110)


def _way(case: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next(way for way in case["ways"] if way["name"] == name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/devices.json"), help="the record")
    parser.add_argument("--report", type=Path, help="print the tables of a record")
    parser.add_argument("--plot", type=Path, help="also draw them")
    return parser


if __name__ == "__main__":
    main()
