"""A report of windows as a table: a row for each path, a column for each group of layers with one pattern."""

from collections.abc import Sequence
from itertools import groupby

from asterism.promises.verdicts import PathVerdict
from asterism.promises.windows import WindowReport

_WORDS = {"dropped": "SILENTLY DROPPED", "none": "-"}


def windows_table(report: WindowReport) -> str:
    """The report as text: a table for each attention implementation, then reasons and witnesses."""
    lines = [f"{report.model}: {'; '.join([*report.notes, f'rows of {report.tokens:,} tokens'])}"]
    for attention, group in groupby(report.verdicts, key=lambda verdict: verdict.attention):
        lines += ["", *_table(attention, list(group))]
    return "\n".join(lines)


def _table(attention: str, verdicts: Sequence[PathVerdict]) -> list[str]:
    columns = list(dict.fromkeys((verdict.pattern, verdict.layers) for verdict in verdicts))
    heads = [f"{pattern} (layer{'s' * (len(layers) > 1)} {ranges(layers)})" for pattern, layers in columns]
    rows = [(path, list(group)) for path, group in groupby(verdicts, key=lambda verdict: verdict.path)]
    first = max(len(attention), *(len(path) for path, _ in rows))
    widths = [max(len(head), len(_WORDS["dropped"])) for head in heads]
    lines = [_row(attention, heads, first, widths)]
    reasons: dict[str, list[str]] = {}
    for path, group in rows:
        lines.append(_row(path, [_WORDS.get(one.state, one.state) for one in group], first, widths))
        for one in group:
            if one.seen and one.state != "none":
                reasons.setdefault(f"{one.state}: {one.seen}", []).append(path)
    notes = [f"  {', '.join(dict.fromkeys(paths))}: {reason}" for reason, paths in reasons.items()]
    return [*lines, *([""] if notes else []), *notes]


def _row(first: str, cells: Sequence[str], width: int, widths: Sequence[int]) -> str:
    padded = [f"{cell:<{size}}" for cell, size in zip(cells, widths, strict=True)]
    return f"{first:<{width}}  {'  '.join(padded)}".rstrip()


def ranges(numbers: Sequence[int]) -> str:
    """
    >>> ranges((0, 1, 2, 4))
    '0-2, 4'
    """
    parts, start = [], numbers[0]
    for number, after in zip(numbers, (*numbers[1:], None), strict=True):
        if after != number + 1:
            parts.append(str(number) if start == number else f"{start}-{number}")
            start = after if after is not None else start
    return ", ".join(parts)
