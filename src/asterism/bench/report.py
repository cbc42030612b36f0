"""The record as a table for people."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from asterism.bench.machine import kernel_in_words

Row = Mapping[str, Any]

_CASE = ("pattern", "length", "dtype")

_HEADINGS = (
    ("", "", "forward", "", "", "", "", "", "forward + backward", "", "", "", ""),
    ("", "plan s", "ms", "GFLOP/s", "effic.", "even", "matmul", "extra", "ms", "GFLOP/s", "effic.", "even", "extra"),
)

_LEGEND = (
    "GFLOP/s: useful, of allowed pairs only. effic.: over the rate of sdpa (dense, all pairs, not causal). even: the"
    " density at which the\ncontender takes as long as dense (sdpa causal for causal patterns, else sdpa)."
    " matmul: share of the rate of a large matrix product.\nextra: peak memory beyond operands and results, in sizes"
    " of q. plan s: seconds to compile the plan, or to make a block mask."
)


def table(record: Mapping[str, Any]) -> str:
    """Every case with its contenders. Skipped contenders are only in the JSON record."""
    machine = record["machine"]
    rates = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in record["matmul_flops_per_second"].items())
    settings = record["settings"]
    lines = [
        f"{machine.get('gpu') or machine['processor']}, {machine['threads']} of {machine['cores']} cores,"
        f" torch {machine['packages'].get('torch')}, {record['date']}",
        f"batch {settings['batch']}, {settings['heads']} heads x {settings['head_dim']};"
        f" GFLOP/s of matrix products: {rates}; {kernel_in_words(machine)}",
    ]
    for case, rows in groupby(record["rows"], key=lambda row: tuple(row[name] for name in _CASE)):
        lines += ["", *_case_lines(case, list(rows))]
    return "\n".join([*lines, "", _LEGEND])


def _case_lines(case: tuple[str, int, str], rows: Sequence[Row]) -> list[str]:
    pattern, length, dtype = case
    shown = [row for row in rows if row["status"] != "skipped"]
    density = next((row["density"] for row in rows if row["computes"] == pattern), None)
    told = "" if density is None else f", density {density:.2%}"
    lines = [f"{pattern}, {length:,} tokens, {dtype}{told}", *(_line(heading).rstrip() for heading in _HEADINGS)]
    for row in shown:
        lines.append(
            _line(_cells(row)) + _remark(row) if row["status"] == "timed" else f"{row['contender']:<16}{_remark(row)}"
        )
    return lines


def _line(cells: Sequence[str]) -> str:
    return (
        f"{cells[0]:<16}"
        + "".join(f"{cell:>10}" for cell in cells[1:8])
        + "  "
        + "".join(f"{cell:>10}" for cell in cells[8:])
    )


def _cells(row: Row) -> tuple[str, ...]:
    size = row["batch"] * row["heads"] * row["length"] * row["head_dim"] * (4 if row["dtype"] == "float32" else 2)
    forward, both = (_figures(row[direction], size) for direction in ("forward", "forward_backward"))
    plan = "-" if row["plan_seconds"] is None else f"{row['plan_seconds']:.2f}"
    return (row["contender"], plan, *forward, *(cell for place, cell in enumerate(both) if place != 4))


def _figures(figures: Row | None, size: int) -> tuple[str, ...]:
    """Milliseconds, rate, efficiency, break-even, share of the matrix product, extra memory."""
    if figures is None:
        return ("-",) * 6
    extra, even = figures["extra_bytes"], figures["break_even_density"]
    return (
        f"{figures['seconds'] * 1e3:,.{3 if figures['seconds'] < 0.01 else 1}f}",
        f"{figures['useful_flops_per_second'] / 1e9:,.1f}",
        "-" if figures["efficiency"] is None else f"{figures['efficiency']:.2f}",
        "-" if even is None else f"{even:.1%}",
        f"{figures['matmul_share']:.2f}",
        "-" if extra is None else f"{extra / size:.2f}",
    )


def _remark(row: Row) -> str:
    if row["status"] != "timed":
        return f"{row['status']}, not timed: {row['reason']}"
    parts = [row["computes"]] if row["computes"] != row["pattern"] else []
    parts += [row["note"]] if row["note"] else []
    parts += ["no backward"] if row["no_backward"] else []
    return f"  {'; '.join(parts)}" if parts else ""
