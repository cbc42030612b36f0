"""Which class of processor this is, and that nothing computes in bfloat16 where there are no instructions for it."""

import os
import platform
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asterism.compiler.cost import Processor, shipped_matrix_rates
from asterism.kernels.choice import prices
from asterism.kernels.cpu import build, processor
from asterism.kernels.cpu.sources import INSTRUCTION_SETS
from asterism.training import evaluate, generate, train
from asterism.training.run import arithmetic
from asterism.training.settings.configuration import ModelConfig, RunConfig

X86 = INSTRUCTION_SETS["x86_64"]


@pytest.fixture
def pretend(monkeypatch):
    """A processor with these features, and libraries that are told this."""

    def become(features: tuple[str, ...], machine: str = "x86_64", **variables: str) -> None:
        for name in processor._LIMITS:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(processor, "processor", lambda: {"flags": " ".join(features)} if features else {})
        monkeypatch.setattr(platform, "machine", lambda: machine)

    return become


@pytest.mark.parametrize("name", X86)
def test_each_class_is_recognised(name, pretend):
    pretend((*X86[name], "sse2", "avx_vnni"))
    assert processor.processor_class() == name
    assert processor.multiplies_bfloat16() == (name in ("amx", "avx512_bf16"))


@pytest.mark.parametrize(("vendor", "kind"), (("GenuineIntel", "avx512_bf16_intel"), ("AuthenticAMD", "avx512_bf16")))
def test_prices_know_who_made_a_processor_that_multiplies_bfloat16_without_amx(vendor, kind, monkeypatch):
    """Intel's multiply it at half the rate of float32, AMD's at twice the rate: so `dtype: auto` differs."""
    known = {"vendor_id": vendor, "flags": ""}
    monkeypatch.setattr(processor, "processor", lambda: known)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for name in processor._LIMITS:
        monkeypatch.delenv(name, raising=False)
    for name, features in X86.items():
        known["flags"] = " ".join(features)
        assert processor.price_class() == (kind if name == "avx512_bf16" else name)
    rates = shipped_matrix_rates(Processor(kind, 2))
    assert (rates["bfloat16"] > rates["float32"]) == (vendor == "AuthenticAMD")
    known["flags"] = " ".join(X86["avx512_bf16"])
    monkeypatch.setenv("ASTERISM_CALIBRATE", "0")
    monkeypatch.setattr(prices, "_machine", None)
    assert arithmetic._prefers_bfloat16() == (vendor == "AuthenticAMD")


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


# --- no arithmetic by assumption -------------------------------------------------------------------------------------

ALLOWED_NARROW: set[str] = set()
"""Operations that may see bfloat16 or float16 in a run in float32, by name."""


class Narrow(TorchDispatchMode):
    """Notes every operation, of autograd too, that reads or gives numbers in fewer bits than float32."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.products = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        tensors = [one for one in tree_leaves((arguments, keywords, result)) if isinstance(one, torch.Tensor)]
        if any(one.dtype in (torch.bfloat16, torch.float16) for one in tensors):
            self.seen.add(str(function))
        self.products += "mm" in str(function) or "asterism" in str(function)
        return result


@pytest.fixture(scope="module")
def run_config(tmp_path_factory):
    text = tmp_path_factory.mktemp("data") / "text"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
    shape = ModelConfig(mixers="window(left=15) & causal()", hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    return dict(data=str(text), model=shape, context=32, batch_size=4, steps=2, log_every=1, evaluation_bytes=64)


@pytest.mark.parametrize("optimizer", ("adamw", "muon", "adafactor"))
def test_a_run_in_float32_computes_nothing_in_fewer_bits(optimizer, run_config, tmp_path):
    """Training, evaluation and generation, whatever the processor has."""
    with Narrow() as mode:
        train(RunConfig(**run_config, dtype="float32", optimizer=optimizer), tmp_path / "run", progress=False)
        evaluate(tmp_path / "run", limit=64)
        generate(tmp_path / "run", b"the", 2)
    assert mode.products > 100 and mode.seen <= ALLOWED_NARROW


def test_the_watch_sees_bfloat16(run_config, tmp_path):
    with Narrow() as mode:
        train(RunConfig(**run_config, dtype="bfloat16", optimizer="muon"), tmp_path / "run", progress=False)
    assert {"aten.mm.default", "aten.baddbmm.default"} <= mode.seen


@pytest.mark.parametrize("calibrate", ("0", "1", None))
@pytest.mark.parametrize("name", ("avx512", "avx2", "baseline"))
def test_auto_leaves_bfloat16_to_processors_that_have_it(name, calibrate, pretend, monkeypatch):
    """Whatever the figures say."""
    pretend(X86[name])
    monkeypatch.setattr(prices, "time_products", lambda threads: {"float32": 1e9, "bfloat16": 1e12})
    monkeypatch.setattr(prices, "_machine", None)
    monkeypatch.setattr(arithmetic, "matrix_rates", lambda: {"float32": 1e9, "bfloat16": 1e12})
    if calibrate is None:
        monkeypatch.delenv("ASTERISM_CALIBRATE", raising=False)
    else:
        monkeypatch.setenv("ASTERISM_CALIBRATE", calibrate)
    assert arithmetic.settled(RunConfig()).dtype == "float32"
    pretend(X86["avx512_bf16"])
    assert arithmetic.settled(RunConfig()).dtype == "bfloat16"


def test_bfloat16_that_was_asked_for_is_taken_with_a_note(pretend):
    pretend(X86["avx2"])
    assert arithmetic.settled(RunConfig(dtype="bfloat16")).dtype == "bfloat16"
    (note,) = arithmetic.notes_on_dtype("bfloat16", "bfloat16")
    assert "no instructions for bfloat16" in note and not arithmetic.notes_on_dtype("float32", "float32")
    pretend(X86["avx512_bf16"])
    assert not arithmetic.notes_on_dtype("bfloat16", "bfloat16")


SETTLED = """
from asterism.training.run.arithmetic import settled
from asterism.training.settings.configuration import RunConfig
from asterism.kernels.cpu.processor import processor_class
print(processor_class(), settled(RunConfig()).dtype)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates x86-64")
def test_auto_on_a_machine_that_is_emulated(tmp_path):
    told = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
    own = {"ASTERISM_CALIBRATE": "0", "ASTERISM_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SETTLED], env=os.environ | told | own, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["avx2", "float32"]
