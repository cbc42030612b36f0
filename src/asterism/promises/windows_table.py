"""A report of windows as a table: a row for each path, a column for each group of layers with one pattern."""

from collections.abc import Sequence
from itertools import groupby

from asterism.columns import aligned
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
    cells = [[attention, *heads]]
    reasons: dict[str, list[str]] = {}
    for path, group in rows:
        cells.append([path, *(_WORDS.get(one.state, one.state) for one in group)])
        for one in group:
            if one.seen and one.state != "none":
                reasons.setdefault(f"{one.state}: {one.seen}", []).append(path)
    notes = [f"  {', '.join(dict.fromkeys(paths))}: {reason}" for reason, paths in reasons.items()]
    return [*aligned(cells, range(len(cells[0]))), *([""] if notes else []), *notes]


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
