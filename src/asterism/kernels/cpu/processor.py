"""The instruction sets of this machine's processor that the computing libraries may use.

oneDNN, PyTorch and MKL each obey a variable that keeps them from instructions, of which ours is told nothing. Whatever
asks this file sees the lesser machine that they make: figures, the choice of arithmetic, and the kernel that is built.
"""

import itertools
import os
import platform

from asterism.kernels.cpu.sources import INSTRUCTION_SETS

_LIMITS = {
    "ONEDNN_MAX_CPU_ISA": {
        "SSE41": "baseline",
        "AVX": "baseline",
        "AVX2": "avx2",
        "AVX2_VNNI": "avx2",
        "AVX2_VNNI_2": "avx2",
        "AVX512_CORE": "avx512",
        "AVX512_CORE_VNNI": "avx512",
        "AVX512_CORE_BF16": "avx512_bf16",
        "AVX512_CORE_FP16": "avx512_bf16",
        "AVX10_1_512": "avx512_bf16",
    },
    "ATEN_CPU_CAPABILITY": {"DEFAULT": "baseline", "AVX2": "avx2"},
    "MKL_ENABLE_INSTRUCTIONS": {
        "SSE4_2": "baseline",
        "AVX": "baseline",
        "AVX2": "avx2",
        "AVX2_E1": "avx2",
        "AVX512": "avx512",
        "AVX512_E1": "avx512",
        "AVX512_E2": "avx512",
        "AVX512_E3": "avx512_bf16",
    },
}
"""By variable the values that allow less than some processor has, and the most that they allow.

`AVX512` of PyTorch is no limit: it leaves products in bfloat16 to oneDNN.
"""

_LIMITS["DNNL_MAX_CPU_ISA"] = _LIMITS["ONEDNN_MAX_CPU_ISA"]  # its former name, which oneDNN still reads

_MULTIPLY_BFLOAT16 = ("amx", "avx512_bf16", "neon_bf16")


def processor() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo; empty elsewhere."""
    try:
        with open("/proc/cpuinfo") as lines:
            pairs = [line.partition(":") for line in itertools.takewhile(str.strip, lines)]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in pairs}


def features() -> set[str]:
    """What its instruction set has, as far as the system lets programs use it and the libraries are told to."""
    known = processor()
    has = set((known.get("flags") or known.get("Features") or "").split())
    limit = limited_to()
    return has if limit is None else has - _beyond(limit)


def limited_to() -> str | None:
    """The instruction set that the environment limits a library to, the least of them; None where it limits none."""
    ours = list(INSTRUCTION_SETS["x86_64"])
    limits = {values.get(os.environ.get(name, "").strip().upper()) for name, values in _LIMITS.items()} - {None}
    if platform.machine() not in ("x86_64", "AMD64") or not limits:
        return None
    return max((str(limit) for limit in limits), key=ours.index)


def _beyond(limit: str) -> set[str]:
    """Features that only better sets of x86-64 take."""
    sets = INSTRUCTION_SETS["x86_64"]
    return {feature for takes in sets.values() for feature in takes} - set(sets[limit])


def processor_class() -> str:
    """What decides how fast which arithmetic is here: amx, avx512_bf16, avx512, avx2, neon_bf16, neon or baseline.

    The best that the processor has and the libraries may use. Where the system tells nothing of its processor, what
    PyTorch found, which leaves out bfloat16.
    """
    has, machine = features(), platform.machine()
    if machine in ("aarch64", "arm64"):
        return "neon_bf16" if "bf16" in has else "neon"
    if processor():
        sets = INSTRUCTION_SETS.get(machine, {})
        return next((name for name, takes in sets.items() if has.issuperset(takes)), "baseline")
    import torch  # only here: what builds or ships a kernel reads this file, too

    found = torch.backends.cpu.get_cpu_capability().lower()
    return found if found in ("avx2", "avx512") else "baseline"


def price_class() -> str:
    """The class that prices and rates are for: `processor_class`, but avx512_bf16_intel for Intel's of avx512_bf16.

    Both have the instructions, but of the two that were measured AMD's multiplies bfloat16 twice as fast as float32,
    and Intel's, whose AMX a virtual machine hides, half as fast.
    """
    found = processor_class()
    is_intel = processor().get("vendor_id") == "GenuineIntel"
    return "avx512_bf16_intel" if found == "avx512_bf16" and is_intel else found


def multiplies_bfloat16() -> bool:
    """Whether it has instructions for products in bfloat16; without them a product takes up to a hundred times as long
    as in float32.
    """
    return processor_class() in _MULTIPLY_BFLOAT16
