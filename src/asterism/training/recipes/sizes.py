"""The number of parameters of each recipe's model, so that listing recipes builds no model.

A test builds the models without weights and compares. Where a tokenizer is trained on the data, the configured
vocabulary size counts.
"""

from collections.abc import Mapping
from types import MappingProxyType

PARAMETERS: Mapping[str, int] = MappingProxyType(
    {
        "bytes-small": 1_878_144,
        "gpt-tiny": 2_566_272,
        "gpt-small": 124_439_808,
        "cifar-tiny": 1_841_600,
        "sound-tiny": 1_877_888,
        "sparse-transformer-enwik8": 94_949_376,
        "sparse-transformer-cifar10": 59_196_672,
        "sparse-transformer-imagenet64": 151_644_672,
        "sparse-transformer-music": 151_839_744,
        "all-attention-tiny": 1_099_340,
        "all-attention-enwik8-small": 38_553_808,
        "all-attention-enwik8-large": 114_069_856,
        "bert-tiny": 2_608_576,
        "bert-base": 110_106_428,
        "bigbird-tiny": 2_608_576,
        "bigbird-etc-tiny": 2_614_720,
        "bigbird-itc-base": 127_520_694,
        "bigbird-etc-base": 127_717_302,
        "bigbird-itc-large": 359_176_374,
        "bigbird-genomics-base": 113_995_522,
        "dna-tiny": 660_608,
        "longformer-tiny": 3_052_864,
        "longformer-base": 148_708_953,
        "star-tiny": 2_608_576,
        "star-base": 112_266_810,
        "span-corruption-tiny": 3_907_776,
        "gap-sentences-tiny": 3_902_208,
        "transformer-tiny": 4_942_464,
        "transformer-base": 65_144_832,
        "bigbird-roberta-summarization-tiny": 3_172_608,
        "bigbird-roberta-base-summarization": 155_245_056,
        "bigbird-pegasus-tiny": 4_931_328,
        "bigbird-pegasus-large": 576_891_904,
        "led-tiny": 5_397_120,
        "led-base": 161_844_480,
        "fnet-tiny": 2_249_344,
        "fnet-base": 83_486_722,
        "fnet-large": 238_031_106,
        "fnet-hybrid-tiny": 2_545_792,
        "fnet-hybrid-base": 88_211_458,
    }
)
"""By the name of the recipe."""
