"""Attention over the tiles of a plan in C++, brought by a wheel or built at first use, and called through ctypes.

The C++ units and their headers compute, `interface.hpp` says what they are given, `program.py` says the same in Python,
`shipped.py` finds a wheel's library, `build.py`, `compiling.py` and `cache.py` make and keep one, and `kernel.py` and
`decode.py` call it.
"""

from asterism.kernels.cpu.build import instruction_set, is_available, library, origin
from asterism.kernels.cpu.decode import DECODING
from asterism.kernels.cpu.kernel import CPU

__all__ = ["CPU", "DECODING", "instruction_set", "is_available", "library", "origin"]
