"""Markers of the common tests of transformers: their repository registers them in its own settings."""

import pytest

MARKERS = (
    "all_flash_attn_test",
    "bitsandbytes",
    "flash_attn_test",
    "flash_attn_3_test",
    "flash_attn_4_test",
    "fsdp_ci",
    "generate",
    "is_fsdp_test",
    "is_pipeline_test",
    "is_tensor_parallel_test",
    "is_training_test",
    "tensor_parallel_ci",
    "torch_compile_test",
    "torch_export_test",
    "training_ci",
)


def pytest_configure(config: pytest.Config) -> None:
    for name in MARKERS:
        config.addinivalue_line("markers", f"{name}: of transformers")
