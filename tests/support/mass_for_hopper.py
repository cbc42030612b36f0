"""The kernel of `block_mass` compiled for sm_90 on any machine: a script of its own process, without the interpreter.

It takes the features of a head and the tokens of a run, and prints the kernel's name and its shared memory in bytes.
"""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from asterism.kernels.triton.mass import mass


def main(width: int, block: int) -> None:
    constants = {"WIDTH": width, "BLOCK_D": width, "TILE": 64, "WORDS": 2, "BLOCK": block}
    pointers = dict.fromkeys(("q", "k", "lse", "sums", "bias"), "fp32") | {"key_mask": "u8", "segments": "i64"}
    pointers |= dict.fromkeys(("heads", "tiles", "query_index", "key_index", "masks", "reads"), "i32")
    signature = {
        name: "constexpr" if name in constants else f"*{pointers[name]}" if name in pointers else
        "fp32" if name in ("scale", "softcap") else "i64" if name.endswith(("batch", "head", "token", "feature")) else
        "i32" for name in mass.arg_names
    }  # fmt: skip
    source = ASTSource(
        fn=mass, signature=signature, constexprs={(mass.arg_names.index(n),): v for n, v in constants.items()}
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    print(made.metadata.name, made.metadata.shared)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
