"""Which class of processor this is, and that nothing computes in bfloat16 where there are no instructions for it."""

import platform

import pytest

from asterism.kernels.cpu import build, processor
from asterism.kernels.cpu.sources import INSTRUCTION_SETS

X86 = INSTRUCTION_SETS["x86_64"]


@pytest.fixture
def pretend(monkeypatch):
    """A processor with these features, and libraries that are told this."""

    def become(features: tuple[str, ...], machine: str = "x86_64", **variables: str) -> None:
        for name in processor._LIMITS:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(processor, "processor", lambda: {"flags": " ".join(features)})
        monkeypatch.setattr(platform, "machine", lambda: machine)
        processor.processor_class.cache_clear()

    yield become
    monkeypatch.undo()
    processor.processor_class.cache_clear()


@pytest.mark.parametrize("name", X86)
def test_each_class_is_recognised(name, pretend):
    pretend((*X86[name], "sse2", "avx_vnni"))
    assert processor.processor_class() == name
    assert processor.multiplies_bfloat16() == (name in ("amx", "avx512_bf16"))


@pytest.mark.parametrize(
    ("variables", "seen"),
    (
        ({}, "amx"),
        ({"ONEDNN_MAX_CPU_ISA": "ALL"}, "amx"),
        ({"ONEDNN_MAX_CPU_ISA": "nonsense"}, "amx"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}, "avx512_bf16"),
        ({"DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "avx512_bf16"),
        ({"ONEDNN_MAX_CPU_ISA": "avx512_core"}, "avx512"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, "avx2"),
        ({"ATEN_CPU_CAPABILITY": "avx512"}, "amx"),
        ({"ATEN_CPU_CAPABILITY": "avx2"}, "avx2"),
        ({"MKL_ENABLE_INSTRUCTIONS": "AVX512_E3"}, "avx512_bf16"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "default"}, "baseline"),
    ),
)
def test_the_least_that_a_library_may_use_counts(variables, seen, pretend):
    pretend(X86["amx"], **variables)
    assert processor.processor_class() == seen
    pretend(X86["avx2"], **variables)
    assert processor.processor_class() == ("baseline" if seen == "baseline" else "avx2"), "no limit adds anything"


def test_our_kernel_is_limited_as_the_other_libraries_are(pretend):
    pretend(X86["amx"])
    native = build._flags()
    assert "-march=native" in native
    pretend(X86["amx"], ONEDNN_MAX_CPU_ISA="AVX512_CORE")
    limited = build._flags()
    assert "-mavx512vl" in limited and "-mavx512bf16" not in limited and "-march=native" not in limited


@pytest.mark.parametrize(("features", "multiplies"), (("asimd bf16", True), ("asimd", False)))
def test_arm(features, multiplies, pretend):
    pretend(tuple(features.split()), "aarch64", ONEDNN_MAX_CPU_ISA="AVX2")
    assert processor.processor_class() == ("neon_bf16" if multiplies else "neon")
    assert processor.multiplies_bfloat16() == multiplies


def test_a_system_that_tells_nothing(pretend, monkeypatch):
    pretend(())
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    assert processor.processor_class() == "avx512" and not processor.multiplies_bfloat16()
