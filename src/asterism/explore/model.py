"""The model whose attention the page shows: a run, or a folder of Hugging Face; and texts as its tokens.

Only the process of model_worker.py imports this: torch and transformers take seconds.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from transformers import AutoModel, PreTrainedModel

from asterism.errors import AsterismError, CheckpointError, ConfigurationError
from asterism.explore.subject import Subject
from asterism.files import DAMAGED, LOCAL, why_unread
from asterism.models import AsterismConfig
from asterism.models.mass import require_attention
from asterism.quiet import quiet_transformers
from asterism.training.objectives.footprint import require_memory_to_load
from asterism.training.objectives.stock import follow
from asterism.training.pipeline import Run, open_run
from asterism.training.run.arithmetic import arithmetic
from asterism.training.settings.configuration import RunConfig
from asterism.training.tasks.models import load_tokenizer, refuse_pickle

MOST_READ = 65_536
"""Tokens of a text that is read."""


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text as tokens, and where they lie in it."""

    ids: list[int]
    shown: Callable[[int, int], str]
    """The text of the tokens from one to before another."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ReadingModel:
    """A model that reads texts.

    backbone  the model without its head, in evaluation mode
    limit     the most tokens of a text
    trained   how many tokens its rows had in training; None where that is not known
    encode    a text as tokens
    computing the context in which it computes
    """

    name: str
    unit: str
    backbone: PreTrainedModel
    encode: Callable[[str], TokenizedText]
    limit: int
    trained: int | None
    computing: Callable[[], AbstractContextManager[Any]]


def open_model(subject: Subject) -> ReadingModel:
    """The model, loaded. Raises AsterismError for what cannot be read, reads no text, or has no attention to show."""
    with quiet_transformers():
        found = _of_run(subject.run) if subject.run is not None else _of_folder(str(subject.model), subject.pattern)
        require_attention(found.backbone)
    return found


def _of_run(folder: str) -> ReadingModel:
    run = open_run(folder)
    config, backbone = run.config, cast(PreTrainedModel, run.model.base_model)
    if not isinstance(backbone.config, AsterismConfig) and not backbone.config.is_encoder_decoder:
        backbone.config.use_cache = False
        follow(backbone, None)
    context = config.context if isinstance(config, RunConfig) else config.length
    if run.tokenizer is not None and config.modality == ("bytes()" if isinstance(config, RunConfig) else None):
        unit, encode = "tokens", _by_tokenizer(run.tokenizer)
    elif isinstance(config, RunConfig) and not config.reads().outputs and hasattr(run.objective, "prompt"):
        unit, encode = "bytes", _by_bytes(run)
    else:
        raise ConfigurationError("reads-no-text", f"{folder} is a run of other data than text: it can read no text")
    return ReadingModel(
        name=folder,
        unit=unit,
        backbone=backbone,
        encode=encode,
        limit=_limit(backbone, run.tokenizer),
        trained=context,
        computing=lambda: arithmetic(config.dtype, run.model.device),
    )


def _of_folder(name: str, pattern: str | None) -> ReadingModel:
    folder = Path(name)
    require_memory_to_load(folder, "")
    tokenizer, config = load_tokenizer(folder)
    refuse_pickle(folder)
    try:
        model, found = AutoModel.from_pretrained(
            folder, config=config, **LOCAL, use_safetensors=True, output_loading_info=True
        )
    except AsterismError:
        raise
    except (AssertionError, OSError, RuntimeError, SafetensorError, *DAMAGED) as error:
        raise CheckpointError("unreadable-model", f"model: {folder} cannot be read: {why_unread(error)}") from error
    missing = [key for key in found["missing_keys"] if "pooler" not in key]
    if missing:
        raise CheckpointError("weights-missing", f"model: {folder} lacks the weights of {missing[0]}")
    if isinstance(config, AsterismConfig):
        if pattern is not None:
            raise ConfigurationError(
                "pattern-of-own-model", f"--pattern: {folder} is a model of ours, and its patterns are part of it"
            )
    else:
        model.config.use_cache = False
        follow(model, pattern)
    return ReadingModel(
        name=name,
        unit="tokens",
        backbone=model.eval(),
        encode=_by_tokenizer(tokenizer),
        limit=_limit(model, tokenizer),
        trained=None,
        computing=nullcontext,
    )


def _limit(backbone: Any, tokenizer: Any) -> int:
    """The most tokens that the positions of a model, its tokenizer and the page allow."""
    config, limits = backbone.config, [MOST_READ]
    if not isinstance(config, AsterismConfig) or config.positions_end:
        limits.append(getattr(config, "max_position_embeddings", MOST_READ))
    if tokenizer is not None and not isinstance(config, AsterismConfig):
        limits.append(tokenizer.model_max_length)
    return int(min(limits))


def _by_bytes(run: Run) -> Callable[[str], TokenizedText]:
    prompt: Callable[[bytes], Any] = run.objective.prompt

    def encode(text: str) -> TokenizedText:
        ids = prompt(text.encode(errors="replace"))[0].tolist()
        return TokenizedText(ids, lambda first, past: bytes(ids[first:past]).decode(errors="replace"))

    return encode


def _by_tokenizer(tokenizer: Any) -> Callable[[str], TokenizedText]:
    def encode(text: str) -> TokenizedText:
        encoded = tokenizer(text, return_offsets_mapping=True, truncation=False, verbose=False)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]

        def shown(first: int, past: int) -> str:
            spans = [span for span in offsets[first:past] if span[0] < span[1]]
            return text[spans[0][0] : spans[-1][1]] if spans else _names(tokenizer, ids[first:past])

        return TokenizedText(ids, shown)

    return encode


def _names(tokenizer: Any, ids: Sequence[int]) -> str:
    """Tokens that are no part of the text, such as [CLS]."""
    return " ".join(tokenizer.convert_ids_to_tokens(list(ids)))
