"""The common tests of transformers, which its releases leave out: the folder of a clone of its repository has them.

`ASTERISM_TRANSFORMERS_TESTS` names that folder. Without it, a test module that imports this one is skipped.
"""

import os
import sys
import unittest
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import transformers
from common_failures import Failure
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.models.auto import modeling_auto

from asterism.models.cache.layer import PatternCacheLayer

VARIABLE = "ASTERISM_TRANSFORMERS_TESTS"
HOW = (
    f"git clone --depth 1 --branch v{transformers.__version__} https://github.com/huggingface/transformers FOLDER,"
    f" then {VARIABLE}=FOLDER make common-tests"
)


def _folder() -> Path:
    """The clone. Skips the module without one; raises FileNotFoundError for a folder that is not a clone of the
    installed release."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} names no clone of transformers: {HOW}", allow_module_level=True)
    folder = Path(named).resolve()
    for file in ("tests/test_modeling_common.py", "tests/generation/test_utils.py", "src/transformers/__init__.py"):
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{VARIABLE}={named} has no {file}: {HOW}")
    if f'__version__ = "{transformers.__version__}"' not in (folder / "src/transformers/__init__.py").read_text():
        raise FileNotFoundError(f"{VARIABLE}={named} is not transformers {transformers.__version__}: {HOW}")
    return folder


sys.path.insert(0, str(_folder()))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.causal_lm_tester import CausalLMModelTest, CausalLMModelTester
    from tests.generation.test_utils import GenerationTesterMixin
    from tests.models.gemma3 import test_modeling_gemma3 as gemma3
    from tests.models.gpt_oss import test_modeling_gpt_oss as gpt_oss
    from tests.models.mistral import test_modeling_mistral as mistral
    from tests.models.modernbert import test_modeling_modernbert as modernbert
    from tests.models.qwen3 import test_modeling_qwen3 as qwen3
    from tests.test_configuration_common import ConfigTester
    from tests.test_fsdp_mixin import FSDPTesterMixin
    from tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask
    from tests.test_pipeline_mixin import PipelineTesterMixin
    from tests.test_tensor_parallel_mixin import TensorParallelTesterMixin

__all__ = [
    "CausalLMModelTest",
    "CausalLMModelTester",
    "ConfigTester",
    "GenerationTesterMixin",
    "ModelTesterMixin",
    "gemma3",
    "gpt_oss",
    "ids_tensor",
    "mistral",
    "modernbert",
    "qwen3",
    "random_attention_mask",
]

Case = TypeVar("Case", bound=type[unittest.TestCase])

LEFT_OUT = (FSDPTesterMixin, TensorParallelTesterMixin, PipelineTesterMixin)
"""Tests that need several processes, or tokenizers from the Hub."""

KINDS = {
    "MODEL_MAPPING_NAMES": "AsterismModel",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "AsterismForCausalLM",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "AsterismForMaskedLM",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "AsterismForQuestionAnswering",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "AsterismForConditionalGeneration",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "AsterismForSequenceClassification",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "AsterismForTokenClassification",
}
"""By the table of transformers that the tests read: which of our classes has this task. It decides on their labels."""
for _table, _name in KINDS.items():
    getattr(modeling_auto, _table)["asterism"] = _name


def common(failures: Mapping[str, Failure]) -> Callable[[Case], Case]:
    """Make a class of common tests ready: those LEFT_OUT go, and tests in `failures` must fail as is written there."""

    def prepared(case: Case) -> Case:
        for mixin in LEFT_OUT:
            for name in vars(mixin):
                if name.startswith("test_"):
                    setattr(case, name, None)
        for name, failure in failures.items():
            setattr(case, name, _failing(getattr(case, name), failure))
        return case

    return prepared


def _failing(test: Callable[..., Any], failure: Failure) -> Callable[..., None]:
    """The test, which must raise an error with this message."""

    @wraps(test)
    def failing(self: unittest.TestCase) -> None:
        self.subTest = nullcontext  # type: ignore[assignment]  # so that the first error of a part ends the test
        try:
            test(self)
        except unittest.SkipTest:
            raise AssertionError("this test is listed as failing, but transformers skips it: remove it there") from None
        except Exception as error:
            if failure.message not in f"{type(error).__name__}: {error}":
                raise
            pytest.xfail(failure.reason)
        raise AssertionError(f"this test passes now, remove it from the table: {failure.reason}")

    return failing


class ReadsPatternCaches:
    """The checks of caches that the mixin has its users replace where layers hold no tensor of all keys."""

    def _check_past_key_values_for_generate(
        self: Any, batch_size: int, past_key_values: Cache, seq_length: int | None, config: Any
    ) -> None:
        """Number of layers, rows, heads and widths, columns seen, and that the latest key of each row is there."""
        if isinstance(past_key_values, EncoderDecoderCache) or not _forgets(past_key_values):
            super()._check_past_key_values_for_generate(batch_size, past_key_values, seq_length, config)  # type: ignore[misc]
            return
        config = config.get_text_config(decoder=True)
        layers: Any = past_key_values.layers
        assert len(layers) == config.num_hidden_layers
        for layer in layers:
            (_, heads, _, key_width), (*_, value_width) = self._get_attention_shape(batch_size, seq_length, config)
            assert layer.get_seq_length() == seq_length
            assert sum(len(slots.group.key_heads) for slots in layer.groups) == heads
            for slots in layer.groups:
                assert slots.keys.shape[::3] == (batch_size, key_width)
                assert slots.values.shape[::3] == (batch_size, value_width)
            for row in range(batch_size):
                latest = layer.seen.of(row) - 1
                assert all(positions[-1] == latest for positions in layer.kept(row).values())

    def _check_caches_are_equal(self: Any, cache1: Cache, cache2: Cache) -> None:
        """As many columns, and the same keys and values wherever a later query may read."""
        if isinstance(cache1, EncoderDecoderCache) or not _forgets(cache1):
            super()._check_caches_are_equal(cache1, cache2)  # type: ignore[misc]
            return
        for one, other in zip(cache1.layers, cache2.layers, strict=True):
            assert isinstance(one, PatternCacheLayer) and isinstance(other, PatternCacheLayer)
            assert one.get_seq_length() == other.get_seq_length() and one.lengths == other.lengths
            for ours, theirs in zip(one.groups, other.groups, strict=True):
                for row, length in enumerate(one.lengths):
                    places, _ = ours.plan.living(length)
                    torch.testing.assert_close(ours.keys[row, :, places], theirs.keys[row, :, places])
                    torch.testing.assert_close(ours.values[row, :, places], theirs.values[row, :, places])


def _forgets(cache: Cache) -> bool:
    return all(isinstance(layer, PatternCacheLayer) for layer in cache.layers)
