"""Packages whose names are imported when they are first asked for, so that `import asterism` loads no torch."""

from collections.abc import Callable, Mapping
from importlib import import_module


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
