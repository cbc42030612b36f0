"""Launching a kernel of device.py or backward.py: the first time by Triton, which compiles it, and then directly.

Triton looks at every argument, to find what it compiled for such ones. For the fifty arguments of these kernels that
takes a tenth of a millisecond, longer than a short call computes; here it takes a quarter of that.
"""

from typing import Any

from torch import Tensor

_COMPILED: dict[tuple[Any, ...], Any] = {}
"""What Triton compiled, by what it depends on: as much as Triton itself keeps."""

_CONSTANTS: dict[Any, frozenset[str]] = {}
"""By kernel, the names of what it is compiled for."""

_FOR_THE_COMPILER = ("num_warps", "num_stages")


def launch(kernel: Any, programs: int, arguments: dict[str, Any]) -> None:
    """Start so many programs of a kernel with arguments by name, the first of them a tensor. No programs, no launch."""
    if not programs:
        return
    constants = _CONSTANTS.get(kernel)
    key = None if constants is None else _specialization(kernel, arguments, constants)
    compiled = _COMPILED.get(key) if key is not None else None
    if compiled is not None:
        compiled[(programs, 1, 1)](*[arguments[name] for name in kernel.arg_names])
        return
    compiled = kernel[(programs,)](**arguments)
    if compiled is None:  # the interpreter compiles nothing
        return
    if constants is None:
        constants = frozenset((*(kernel.arg_names[place] for place in kernel.constexprs), *_FOR_THE_COMPILER))
        _CONSTANTS[kernel] = constants
    _COMPILED[_specialization(kernel, arguments, constants)] = compiled


def _specialization(kernel: Any, arguments: dict[str, Any], constants: frozenset[str]) -> tuple[Any, ...]:
    """What the compiled kernel depends on. Of tensors: dtypes and whether they begin at a multiple of 16 bytes. Of
    integers: whether they are 1 or multiples of 16, and whether 32 bits hold them. Of constants: all.
    """
    key: list[Any] = [kernel, next(iter(arguments.values())).device]
    for name in (*kernel.arg_names, *_FOR_THE_COMPILER):  # callers have orders of their own
        x = arguments.get(name)
        if x is None or name in constants:
            key.append(x)
        elif type(x) is int:
            key.append((x == 1) + 2 * (x % 16 == 0) + 4 * (-(2**31) <= x < 2**31))
        else:
            key.append((x.dtype, x.data_ptr() % 16 == 0) if isinstance(x, Tensor) else type(x))
    return tuple(key)
