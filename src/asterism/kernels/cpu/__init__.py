"""Attention over the tiles of a plan in C++, built at first use and called through ctypes.

`kernel.cpp` and its headers compute, `interface.hpp` says what they are given, `program.py` says the same in Python,
`build.py` and `cache.py` make and keep the library, and `kernel.py` calls it.
"""

from asterism.kernels.cpu.build import instruction_set, is_available, library
from asterism.kernels.cpu.kernel import CPU

__all__ = ["CPU", "instruction_set", "is_available", "library"]
