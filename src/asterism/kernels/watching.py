"""Lets somebody see the operands of every call of `attend`, as the kernels get them: for records of what a model reads.

Nothing is kept here, and nobody else's thread is watched. Inside torch.compile nothing is shown.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from asterism.kernels.operands import Operands

Watcher = Callable[[Operands], None]

_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher of attention", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Within the body, `watcher` is given the operands of each call of `attend` of this thread before it is computed.

    Calls of `attend` that the watcher itself makes are not shown.
    """
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def show(operands: Operands) -> None:
    """Give the operands of a call to whoever watches."""
    watcher = _WATCHER.get()
    if watcher is None:
        return
    token = _WATCHER.set(None)
    try:
        watcher(operands)
    finally:
        _WATCHER.reset(token)
