"""Kernels built with options of their own, for processes that tests start: each once on a machine.

They lie in a folder of the user's cache, apart from the one that everybody else uses: there, a machine whose compiler
is gone takes whatever it finds. The library's name holds the sources, so that a changed one is built anew.
"""

import shlex

from asterism.files import replacing_file
from asterism.kernels.cpu import cache


def with_kernel(*options: str) -> dict[str, str]:
    """Variables for a process whose kernel is built with these options, at -O1 if they do not say."""
    folder = cache.made(next(cache.places()) / "tests")
    script = f'#!/bin/sh\nexec c++ "$@" {shlex.join(["-O1", *options])}\n'
    compiler = folder / ("c++" + "".join(options).replace("/", "_"))
    if not compiler.exists() or compiler.read_text() != script:
        with replacing_file(compiler) as temporary:
            temporary.write_text(script)
            temporary.chmod(0o700)
    return {"CXX": str(compiler), "ASTERISM_CACHE": str(folder)}
