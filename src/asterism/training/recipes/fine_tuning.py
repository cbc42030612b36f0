"""Settings of the papers to fine-tune encoder-decoders: `asterism finetune --recipe NAME`, from any starting model.

BigBird (Zaheer 2020, appendix E.5 and table 17): sources of 3,072 tokens and targets of 256, batches of 128, 5 beams
and a length penalty of 0.8. XSum has 1,024 and 64 tokens and a penalty of 0.7, CNN/DailyMail 2,048 and 128 tokens. The
warm-up takes 10,000 steps, followed by the inverse square root of the step. The base size uses Adam at 1e-5, the large
one Adafactor at 1e-4. Label smoothing is 0.1, as in the authors' code.

The Transformer (Vaswani 2017, sections 5 and 6.1): batches of 25,000 tokens, about 960 sentences; label smoothing 0.1,
4 beams, and a length penalty of 0.6. Their penalty divides by ((5 + n) / 6)^0.6, ours by n^0.6.

LED (Beltagy 2020, section 7): sources of 16,384 tokens; all else is BigBird's.

BigBird and LED do not publish how long they train: `--epochs` and `--steps` keep their defaults. Twins end after ten
minutes.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from asterism.errors import ConfigurationError, nearest

_SUMMARIES = {
    "task": "summarize",
    "length": 3072,
    "target_length": 256,
    "num_beams": 5,
    "length_penalty": 0.8,
    "label_smoothing": 0.1,
    "batch_size": 128,
    "gradient_accumulation_steps": 128,
    "gradient_checkpointing": True,
    "warmup_steps": 10_000,
    "schedule": "inverse_sqrt",
    "beta2": 0.999,
}
_TRANSLATIONS = {
    "task": "translate",
    "length": 256,
    "target_length": 256,
    "num_beams": 4,
    "length_penalty": 0.6,
    "label_smoothing": 0.1,
}
_MINUTES = {
    "batch_size": 4,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": False,
    "learning_rate": 1e-3,
    "warmup_steps": 50,
    "schedule": "cosine",
    "beta2": 0.95,
    "minutes": 10.0,
    "epochs": 100.0,
}

FINE_TUNING: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "transformer-base": _TRANSLATIONS
        | {
            "batch_size": 960,
            "gradient_accumulation_steps": 10,
            "steps": 100_000,
            "epochs": 1_000.0,
            "learning_rate": 7e-4,
            "warmup_steps": 4_000,
            "schedule": "inverse_sqrt",
            "beta2": 0.98,
            "weight_decay": 0.0,
        },
        "transformer-tiny": _TRANSLATIONS | _MINUTES | {"batch_size": 16},
        "bigbird-roberta-base-summarization": _SUMMARIES | {"learning_rate": 1e-5},
        "bigbird-roberta-summarization-tiny": _SUMMARIES | _MINUTES | {"length": 1024},
        "bigbird-pegasus-large": _SUMMARIES | {"learning_rate": 1e-4, "optimizer": "adafactor", "weight_decay": 0.0},
        "bigbird-pegasus-tiny": _SUMMARIES | _MINUTES | {"length": 1024},
        "led-base": _SUMMARIES | {"length": 16_384, "learning_rate": 1e-5},
        "led-tiny": _SUMMARIES | _MINUTES | {"length": 1024},
    }
)
"""Settings of FineTuneConfig by the name of the recipe that pretrains."""


def fine_tuning(name: str) -> dict[str, Any]:
    """The settings of a recipe. Raises ConfigurationError for one that has none, with the nearest name that has."""
    if name not in FINE_TUNING:
        raise ConfigurationError(
            "recipe-without-fine-tuning",
            f"recipe {name!r} has no settings for fine-tuning.{nearest(name, FINE_TUNING)} Known:"
            f" {', '.join(FINE_TUNING)}",
        )
    return dict(FINE_TUNING[name])
