"""The recipes: functions that each return one complete `RunConfig`, and what some are fine-tuned with."""

from collections.abc import Callable

from asterism.errors import ConfigurationError, nearest
from asterism.training.recipes import (
    all_attention,
    denoising,
    encoder_decoders,
    encoders,
    genomes,
    gpt,
    sparse_transformer,
)
from asterism.training.recipes.fine_tuning import FINE_TUNING, fine_tuning
from asterism.training.settings.configuration import RunConfig

__all__ = ["FINE_TUNING", "RECIPES", "fine_tuning", "recipe"]

RECIPES: dict[str, Callable[[], RunConfig]] = {
    "bytes-small": sparse_transformer.bytes_small,
    "gpt-tiny": gpt.gpt_tiny,
    "gpt-small": gpt.gpt_small,
    "cifar-tiny": sparse_transformer.cifar_tiny,
    "sound-tiny": sparse_transformer.sound_tiny,
    "sparse-transformer-enwik8": sparse_transformer.sparse_transformer_enwik8,
    "sparse-transformer-cifar10": sparse_transformer.sparse_transformer_cifar10,
    "sparse-transformer-imagenet64": sparse_transformer.sparse_transformer_imagenet64,
    "sparse-transformer-music": sparse_transformer.sparse_transformer_music,
    "all-attention-tiny": all_attention.all_attention_tiny,
    "all-attention-enwik8-small": all_attention.all_attention_enwik8_small,
    "all-attention-enwik8-large": all_attention.all_attention_enwik8_large,
    "bert-tiny": encoders.bert_tiny,
    "bert-base": encoders.bert_base,
    "bigbird-tiny": encoders.bigbird_tiny,
    "bigbird-etc-tiny": encoders.bigbird_etc_tiny,
    "bigbird-itc-base": encoders.bigbird_itc_base,
    "bigbird-etc-base": encoders.bigbird_etc_base,
    "bigbird-itc-large": encoders.bigbird_itc_large,
    "bigbird-genomics-base": genomes.bigbird_genomics_base,
    "dna-tiny": genomes.dna_tiny,
    "longformer-tiny": encoders.longformer_tiny,
    "longformer-base": encoders.longformer_base,
    "star-tiny": encoders.star_tiny,
    "star-base": encoders.star_base,
    "span-corruption-tiny": denoising.span_corruption_tiny,
    "gap-sentences-tiny": denoising.gap_sentences_tiny,
    "transformer-tiny": encoder_decoders.transformer_tiny,
    "transformer-base": encoder_decoders.transformer_base,
    "bigbird-roberta-summarization-tiny": encoder_decoders.bigbird_roberta_summarization_tiny,
    "bigbird-roberta-base-summarization": encoder_decoders.bigbird_roberta_base_summarization,
    "bigbird-pegasus-tiny": encoder_decoders.bigbird_pegasus_tiny,
    "bigbird-pegasus-large": encoder_decoders.bigbird_pegasus_large,
    "led-tiny": encoder_decoders.led_tiny,
    "led-base": encoder_decoders.led_base,
    "fnet-tiny": encoders.fnet_tiny,
    "fnet-base": encoders.fnet_base,
    "fnet-large": encoders.fnet_large,
    "fnet-hybrid-tiny": encoders.fnet_hybrid_tiny,
    "fnet-hybrid-base": encoders.fnet_hybrid_base,
}


def recipe(name: str) -> RunConfig:
    """The configuration of a recipe. Raises ConfigurationError for an unknown name, with the nearest known one."""
    if name not in RECIPES:
        raise ConfigurationError(
            "unknown-recipe", f"unknown recipe {name!r}.{nearest(name, RECIPES)} Known: {', '.join(RECIPES)}"
        )
    return RECIPES[name]()
