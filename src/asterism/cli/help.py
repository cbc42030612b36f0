"""How help is laid out: as wide as the terminal, flags to the left and their meanings to the right."""

import shutil
import textwrap
from collections.abc import Iterable, Mapping

_NARROWEST, _WIDEST = 40, 110
"""Columns: longer lines than this are hard to read."""

_LEFT = 30
"""Columns of flags; the meaning of a longer one begins on the next line."""

Rows = Iterable[tuple[str, str]]
"""Flags, and what they mean."""


def terminal_width() -> int:
    """Columns of the terminal, of $COLUMNS where it is set, or 80 where neither is known."""
    return max(_NARROWEST, min(shutil.get_terminal_size().columns, _WIDEST))


def filled(text: str) -> str:
    """Paragraphs, and lists of lines that begin with spaces, as wide as the terminal."""
    wrapper = textwrap.TextWrapper(terminal_width(), break_on_hyphens=False)
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(one if one.startswith(" ") else wrapper.fill(" ".join(one.split())) for one in paragraphs)


def listed(rows: Rows, left: int = _LEFT) -> str:
    """Two columns, of which the second is wrapped."""
    lines = []
    for flags, meaning in rows:
        right = textwrap.wrap(meaning, max(20, terminal_width() - left), break_on_hyphens=False) or [""]
        head = f"  {flags}"
        if len(head) + 2 > left:
            lines.append(head)
            head = ""
        lines += [f"{head:<{left}}{right[0]}".rstrip(), *(" " * left + line for line in right[1:])]
    return "\n".join(lines)


def page(usage: str, description: str, groups: Mapping[str, Rows], end: str) -> str:
    """The whole help of a verb: `groups` are titles and the rows below each."""
    parts = [textwrap.fill(f"usage: {usage}", terminal_width(), subsequent_indent=" " * 8, break_on_hyphens=False)]
    parts.append(filled(description))
    parts += [f"{title}:\n{listed(rows)}" for title, rows in groups.items()]
    return "\n\n".join([*parts, end]) + "\n"
