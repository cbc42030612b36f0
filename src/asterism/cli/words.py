"""The words of a command line before a parser reads them: switches, positional arguments, renamed flags."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from asterism.cli.errors import UsageError

_OTHER_BOOLEANS = ("yes", "no", "on", "off")
"""Words that people write where YAML is read; here they would be taken for the next argument."""


def is_flag(word: str) -> bool:
    """Whether a word is a flag; "-" and negative numbers are values."""
    return word.startswith("-") and len(word) > 1 and not (word[1].isdigit() or word[1] == ".")


def switched(words: Sequence[str], switches: Collection[str]) -> list[str]:
    """The words, with `--x=true` for `--x` and `--x true`, and `--x=false` for `--no-x` and `--x false`.

    switches  the flags that are on or off; of `--model.x`, both `--no-model.x` and `--model.no-x` are the opposite

    Raises UsageError for a switch with another value.
    """
    on = {_dashed(flag): flag for flag in switches}
    off = {negated: flag for flag in switches for negated in _negations(_dashed(flag))}
    given: list[str] = []
    remaining = iter(zip(words, [*words[1:], ""], strict=False))
    for word, following in remaining:
        name, equals, value = word.partition("=")
        if (opposite := off.get(_dashed(name))) is not None and not equals:
            given.append(f"{opposite}=false")
            continue
        flag = on.get(_dashed(name))
        if flag is None:
            given.append(word)
            continue
        if not equals:
            value = following if following.lower() in ("true", "false", *_OTHER_BOOLEANS) else ""
            if value:
                next(remaining)
        if value.lower() not in ("true", "false", "") or (equals and not value):
            raise UsageError(
                "switch-value", f"{_dashed(flag)} must be true or false, got {value[:40]!r}: write {_both(flag)}"
            )
        given.append(f"{flag}={value.lower() or 'true'}")
    return given


def _dashed(flag: str) -> str:
    return flag.replace("_", "-")


def _negations(flag: str) -> Iterator[str]:
    yield f"--no-{flag.removeprefix('--')}"
    group, dot, name = flag.rpartition(".")
    if dot:
        yield f"{group}.no-{name}"


def _both(flag: str) -> str:
    return f"{_dashed(flag)} or {next(_negations(_dashed(flag)))}"


def refuse_renamed(words: Sequence[str], renamed: Mapping[str, str]) -> None:
    """Raises UsageError for a flag that has another name now. `renamed` has a sentence for each, which names it."""
    for word in words:
        flag = word.partition("=")[0]
        if flag in renamed:
            raise UsageError("renamed-flag", f"{flag}: {renamed[flag]}")


def positional(words: Sequence[str], alone: Collection[str]) -> tuple[list[str], list[str]]:
    """The words that are no flag and no flag's value, and the rest.

    alone  the flags without a value; every other flag takes the next word, unless its value follows "="
    """
    found: list[str] = []
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if not is_flag(word):
            found.append(word)
            continue
        rest.append(word)
        if "=" not in word and word not in alone and (value := next(remaining, None)) is not None:
            rest.append(value)
    return found, rest


def positional_first(words: Sequence[str], values: Mapping[str, int | str | None]) -> list[str]:
    """`--label 1 2 RUN` as `RUN --label 1 2`, for a verb that requires one positional argument.

    A flag of several values takes every word behind it. So where nothing else is positional, the last word of the last
    such flag is; what is there as a file or folder makes no difference.

    values  how many values a flag takes, as argparse has it: None for one, 0, "+" or "*"
    """
    place, taken, most, least = None, 0, 0.0, 0
    for number, word in enumerate(words):
        if is_flag(word):
            count = 0 if "=" in word else values.get(word)
            several = count in ("+", "*")
            most = float("inf") if several else 1 if count is None else int(count)
            least, taken = (1 if count == "+" else 0), 0
            continue
        taken += 1
        if taken > most:
            return list(words)
        if most > 1 and taken > least:
            place = number
    return list(words) if place is None else [words[place], *words[:place], *words[place + 1 :]]
