"""Files of settings: small, flat, and no larger when read than they look.

YAML's aliases stand for what their anchor holds, so that a few lines can say gigabytes, and its readers follow nesting
by recursion. Both are counted from the parser's events before anything is built.
"""

from pathlib import Path

import yaml

from asterism.cli.errors import UsageError

_LARGEST_FILE = 2**26
"""Bytes: the text of an explicit pattern may have millions."""

_MOST_VALUES, _DEEPEST, _MOST_DIGITS = 10_000, 20, 100

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_settings_file(path: str) -> None:
    """Raises UsageError for a file that would take too long to read, or holds what no setting is.

    What is wrong with its YAML otherwise, and that there is no such file, its reader says.
    """
    file = Path(path)
    if not file.exists():
        return
    if not file.is_file():
        raise UsageError("not-a-regular-file", f"--config: {path} is no regular file")
    if (size := file.stat().st_size) > _LARGEST_FILE:
        raise UsageError("file-too-large", f"--config: {path} has {size:,} bytes, more than settings take")
    try:
        text = file.read_text(encoding="utf-8")
        _count(path, text)
        _refuse_twice(path, yaml.compose(text, Loader=_LOADER), set())
    except UnicodeDecodeError as error:
        raise UsageError(
            "not-utf8", f"--config: {path} is no text in UTF-8: {error.reason} at byte {error.start}"
        ) from None
    except yaml.YAMLError:
        return


def _refuse_twice(path: str, node: yaml.Node | None, seen: set[int]) -> None:
    """Raises UsageError for a setting that is given twice: YAML's reader would take the last one in silence."""
    if not isinstance(node, yaml.CollectionNode) or id(node) in seen:
        return
    seen.add(id(node))  # aliases stand for one node
    lines: dict[str, int] = {}
    for inner in node.value:
        key, value = inner if isinstance(node, yaml.MappingNode) else (None, inner)
        if isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            if key.value in lines:
                raise UsageError(
                    "given-twice", f"--config: {path} gives {key.value} twice, in lines {lines[key.value]} and {line}"
                )
            lines[key.value] = line
        _refuse_twice(path, value, seen)


def _count(path: str, text: str) -> None:
    """Raises UsageError for more values than settings have, aliases counted as what they stand for, and for numbers and
    nesting that Python's own readers give up on."""
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = [(None, 0)]  # anchor of each sequence or mapping, and values before it
    values = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            values += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            sizes[event.anchor or ""] = 1
            if len(event.value) > _MOST_DIGITS and event.value.lstrip("+-").isdigit():
                raise UsageError("too-many-digits", f"--config: {path} has a number of {len(event.value):,} digits")
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, values))
            values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            sizes[anchor or ""] = values - before
        if len(open_) > _DEEPEST:
            raise UsageError(
                "nested-too-deeply", f"--config: {path} is nested more than {_DEEPEST} deep, and settings are flat"
            )
        if values > _MOST_VALUES:
            raise UsageError(
                "too-many-values",
                f"--config: {path} has more than {_MOST_VALUES:,} values, aliases counted as what they are",
            )
