"""Packages whose names are imported when they are first asked for, so that `import asterism` loads no torch."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def lazily(
    package: str, homes: Mapping[str, str], eager: tuple[str, ...] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: `homes` says in which module below it each lazy name stands.

        __getattr__, __dir__ = lazily(__name__, {"attend": "kernels"}, eager=("patterns",))

    Type checkers do not follow this: import the same names under `if TYPE_CHECKING`, too.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get, lambda: sorted({*homes, *eager})


def imported(place: str) -> Any:
    """What "module:name" names, its module imported now if nobody has."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def import_after(module: str, dependent: str) -> None:
    """Import `dependent` as soon as somebody imports `module`: at once, where somebody has."""
    if module in sys.modules:
        import_module(dependent)
    else:
        sys.meta_path.insert(0, _After(module, dependent))


class _After(MetaPathFinder):
    """Finds a module as the others do, and has another one imported when it is executed."""

    def __init__(self, module: str, dependent: str) -> None:
        self.module, self.dependent, self.looking = module, dependent, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module or self.looking:
            return None
        self.looking = True
        try:
            spec = find_spec(fullname)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                import_module(self.dependent)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
