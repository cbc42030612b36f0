"""The kernels of chosen blocks compiled for sm_90 on any machine: a script of its own process, without the interpreter.

It takes a dtype (fp32, bf16), the features of a head and "plain" or "masked", and prints each kernel's name, its shared
memory in bytes, and whether its products are of tensor cores.
"""

import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from asterism.kernels.triton import chosen


def main(dtype: str, width: int, masked: str) -> None:
    constants = {"GROUP": 3, "MEMBERS": 16, "WIDTH": width, "VALUE_WIDTH": width, "BLOCK_D": width, "BLOCK_V": width}
    constants |= {"TILE": 64, "WORDS": 1, "TILES": 2, "BLOCK_M": 16} | (
        {} if masked == "masked" else {"key_mask": None}
    )
    pointers = {"q": dtype, "k": dtype, "v": dtype, "indices": "i32", "kinds": "i32", "masks": "i64", "key_mask": "u8"}
    pointers |= {"starts": "i64", "order": "i32"}
    pointers |= dict.fromkeys(("out", "lse", "grad_out", "power", "delta", "grad_q", "grad_k", "grad_v"), "fp32")
    for kernel in (chosen.forward_chosen, chosen.grad_q_chosen, chosen.grad_kv_chosen):
        own = {name: value for name, value in constants.items() if name in kernel.arg_names}
        signature = {
            name: "constexpr" if name in own else f"*{pointers[name]}" if name in pointers else
            "fp32" if name == "scale" else "i64" if name.endswith(("batch", "head", "token", "feature")) else "i32"
            for name in kernel.arg_names
        }  # fmt: skip
        source = ASTSource(
            fn=kernel, signature=signature, constexprs={(kernel.arg_names.index(n),): v for n, v in own.items()}
        )
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        kinds = sorted(set(re.findall(r"\b(wgmma|mma)\.(?:mma_async|sync)", made.asm["ptx"])))
        print(made.metadata.name, made.metadata.shared, *kinds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
