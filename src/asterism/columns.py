"""Rows of text as columns of equal width, for a terminal."""

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """The rows as lines: cells two spaces apart, flush right but for the columns `left`, nothing behind the last one.

    >>> aligned([("pattern", "keys"), ("window", "8")])
    ['pattern  keys', 'window      8']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
