"""The packages that Asterism requires, by extra, and the versions that are installed. Imports none of them."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version

DISTRIBUTION = "asterism-attention"
"""The name of this package on the package index."""

NEWEST_TESTED = {"torch": "2.13.0", "transformers": "5.24.0"}
"""The newest versions that the tests of this version of Asterism have run with, of packages that change often."""

_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[.*?\])?\s*(?P<constraint>[^;]*?)\s*(?:;\s*(?P<marker>.*))?")


@dataclass(frozen=True)
class Requirement:
    """A package with a constraint such as ">=2.11", and the version that is there, None if it is not."""

    name: str
    constraint: str
    found: str | None

    @classmethod
    def of(cls, name: str, constraint: str = "") -> "Requirement":
        """The requirement, with the version that is installed."""
        try:
            return cls(name, constraint, version(name))
        except PackageNotFoundError:
            return cls(name, constraint, None)

    def __str__(self) -> str:
        """The name and the version that is there, and whether it is newer than the tests."""
        if self.found is None:
            return f"{self.name} is not installed"
        tested = NEWEST_TESTED.get(self.name)
        is_newer = tested is not None and _numbers(self.found) > _numbers(tested)
        return f"{self.name} {self.found}" + (f" (newer than {tested}, the newest tested)" if is_newer else "")

    @property
    def is_met(self) -> bool:
        """Whether the package is there, and not older or other than required."""
        if self.found is None:
            return False
        for part in filter(None, self.constraint.split(",")):
            relation, wanted = re.fullmatch(r"\s*([=<>!~]+)\s*(.+?)\s*", part).groups()  # type: ignore[union-attr]
            if relation == ">=" and _numbers(self.found) < _numbers(wanted):
                return False
            if relation == "==" and _numbers(self.found) != _numbers(wanted):
                return False
        return True


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers at the start of a version: 2.13.0+cpu is (2, 13)."""
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", text)
    numbers = [int(number) for number in found[0].split(".")] if found else [0]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@lru_cache(maxsize=1)
def required() -> Mapping[str, list[Requirement]]:
    """The packages of each extra; those of "" are always required. Empty where Asterism itself is not installed."""
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        lines = []
    found: dict[str, list[Requirement]] = {}
    for line in lines:
        parts = _LINE.fullmatch(line)
        if parts is None:
            continue
        marker = parts["marker"] or ""
        system = re.search(r"platform_system\s*==\s*['\"](\w+)['\"]", marker)
        if system is not None and system[1] != platform.system():
            continue
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        found.setdefault(extra[1] if extra else "", []).append(Requirement.of(parts["name"], parts["constraint"]))
    return found
