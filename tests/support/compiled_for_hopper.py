"""Every launch of a forward, a backward and a decoding call compiled for sm_90 on any machine, and what is in it.

A script of its own process, because it puts a driver of a GPU that is not there into Triton. It takes dtype, head_dim,
tile, "plain", "padded" (a key mask) or "masked" (segments too), and names of terms of the score, and prints a `Launch`
as JSON a line.
"""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

SHARED_MEMORY = 227 * 2**10
"""Bytes that a program may have on sm_90; all programs of a core have 228 KiB together, and each takes 1 KiB more."""

REGISTERS = 2**16
"""Of a core, for all its threads."""


@dataclass(frozen=True)
class Launch:
    """What a compiled kernel holds.

    number        which of the objects it is, counted from 0: equal ones are compiled once
    products      multiply-adds of a program's matrix instructions, each loop counted once
    instructions  their kinds: "wgmma" for four warps together, "mma" for one
    narrow        bytes of the tiles of 16-bit numbers that TTGIR reads, less what the object reads 16 bytes at a time
    spills        loads and stores of spilled registers in the text, inside loops and in all
    resident      programs that a core holds at a time, by registers, shared memory and warps
    """

    name: str
    number: int
    blocks: tuple[int, int] | None
    warps: int
    stages: int
    registers: int
    shared: int
    spills_in_loops: int
    spills: int
    products: int
    instructions: list[str]
    narrow: int
    resident: int
    offsets: list[str]
    tf32: bool


_NUMBERS: dict[str, int] = {}


def read(compiled, blocks: tuple[int, int] | None, half: str | None) -> Launch:
    """What a kernel that Triton compiled holds; `half` is PTX's name of a 16-bit dtype, or None for float32."""
    code, usage = _disassembled(compiled.asm["cubin"])
    in_loops, spills = _spills(code)
    warps, shared = compiled.metadata.num_warps, compiled.metadata.shared
    addition = r"tt\.addptr .*: (?:tensor<\S*)?!tt\.ptr<(?:f16|bf16|f32)>.*[, x<](i\d+)>?(?: loc|$)"
    per_program = -(-int(usage["REG"]) // 8) * 8 * 32 * warps
    return Launch(
        name=compiled.metadata.name,
        number=_NUMBERS.setdefault(compiled.hash, len(_NUMBERS)),
        blocks=blocks,
        warps=warps,
        stages=compiled.metadata.num_stages,
        registers=int(usage["REG"]),
        shared=shared,
        spills_in_loops=in_loops,
        spills=spills,
        products=_products(compiled.asm["ptx"], warps),
        instructions=sorted(set(re.findall(r"\b(wgmma|mma)\.(?:mma_async|sync)", compiled.asm["ptx"]))),
        narrow=_narrow(compiled.asm["ttgir"], code, warps, half) if half else 0,
        resident=min(REGISTERS // per_program, (SHARED_MEMORY + 1024) // (shared + 1024), 64 // warps),
        offsets=sorted(set(re.findall(addition, compiled.asm["ttir"], re.M))),
        tf32="tf32" in compiled.asm["ttir"],
    )


def _disassembled(cubin: bytes) -> tuple[list[str], dict[str, str]]:
    """Lines of SASS, and registers and memory by their names, from the tools that come with Triton."""
    import triton.backends.nvidia

    tools = Path(triton.backends.nvidia.__file__).parent / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = {"capture_output": True, "text": True, "check": True}
        usage = subprocess.run([tools / "cuobjdump", "--dump-resource-usage", file.name], **run).stdout
        code = subprocess.run([tools / "nvdisasm", "-c", file.name], **run).stdout
    return code.splitlines(), dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage))


def _spills(code: list[str]) -> tuple[int, int]:
    """Accesses to spilled registers inside loops (between a label and a branch back to it), and in all."""
    labels = {line.split(":")[0]: number for number, line in enumerate(code) if line.startswith(".L_")}
    branches = [(number, re.search(r"\bBRA\b.*(\.L_x_\d+)", line)) for number, line in enumerate(code)]
    loops = [(labels[found[1]], number) for number, found in branches if found and labels[found[1]] < number]
    spilled = [number for number, line in enumerate(code) if re.search(r"\b(STL|LDL)\b", line)]
    return sum(any(start < number < stop for start, stop in loops) for number in spilled), len(spilled)


def _products(ptx: str, warps: int) -> int:
    """Multiply-adds of a program. wgmma: four warps work on 64 rows together; mma: each warp on its own."""
    groups = re.findall(r"wgmma\.mma_async\S*?\.m(\d+)n(\d+)k(\d+)\.", ptx)
    single = re.findall(r"\bmma\.sync\S*?\.m(\d+)n(\d+)k(\d+)\.", ptx)
    return sum(
        int(m) * int(n) * int(k) * times
        for found, times in ((groups, warps // 4), (single, warps))
        for m, n, k in found
    )


def _narrow(ttgir: str, code: list[str], warps: int, half: str) -> int:
    """Bytes of tiles [tokens, features] that are read, less what the object reads 16 bytes a thread at a time.

    Negative where other tensors are read 16 bytes at a time too, or one tile is read in several places.
    """
    tile = rf"tensor<(\d+)x(\d+)x!tt\.ptr<{half}>"
    shapes = re.findall(rf"(?:async_copy_global_to_local|tt\.load) .*{tile}", ttgir)
    wide = sum(bool(re.search(r"\b(LDG|LDGSTS)\.\S*\b128\b", line)) for line in code)
    return sum(int(rows) * int(width) * 2 for rows, width in shapes) - wide * 16 * 32 * warps


SEEDS = (1, 2**40 + 16)
"""Numbers of which Triton would make kernels of their own: 1 and multiples of 16."""


def main(dtype_name: str, width: int, tile: int, masked: str, *terms: str) -> None:
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    from asterism.compiler import compile_pattern
    from asterism.kernels.operands import Operands
    from asterism.kernels.triton import kernel, tables

    class Hopper:
        """A driver that names a GPU which is not there."""

        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device=None: 0)

    half = {"bfloat16": "bf16", "float16": "f16", "float32": None}[dtype_name]

    def compile_only(function, programs, arguments):
        if programs:
            compiled = function.warmup(grid=(programs,), **arguments)
            blocks = (arguments["BLOCK_M"], arguments["BLOCK_N"]) if "BLOCK_N" in arguments else None
            print(json.dumps(asdict(read(compiled, blocks, half))), flush=True)

    triton.runtime.driver.set_active(Hopper())
    kernel.launch, kernel._memory = compile_only, lambda device: SHARED_MEMORY
    tables._SHORTEST_PIECE = 128
    dtype, n = getattr(torch, dtype_name), 600
    q, k, v = (torch.zeros(2, heads, n, width, dtype=dtype) for heads in (4, 2, 2))
    key_mask = None if masked == "plain" else torch.ones(2, n, dtype=torch.bool)
    segments = torch.zeros(2, n, dtype=torch.int64) if masked == "masked" else None
    plan = compile_pattern("strided(7) | global_tokens(0)", n, tile=tile)
    known = {"softcap": 30.0, "bias": torch.zeros(4, 2 * n - 1), "dropout": 0.1}
    given = {name: known[name] for name in terms}
    for seed in SEEDS if "dropout" in terms else (0,):
        operands = Operands(q, k, v, key_mask, segments, None, plan.pattern, 0, 0.1, seed=seed, **given)
        vars(operands)["plan"] = plan  # with tiles of this size
        attended = kernel._forward(operands)
        kernel._backward(operands, attended, torch.zeros_like(attended.out), torch.zeros_like(attended.lse), [True] * 5)
    kernel.triton_decode(q[:, :, :1], k, v, torch.ones(1, 1, 1, n, dtype=torch.bool), 0.1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
