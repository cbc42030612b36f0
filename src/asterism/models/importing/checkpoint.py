"""From a Hugging Face checkpoint folder to the folder of an Asterism model.

Nothing is guessed: every tensor of the checkpoint is used, or the import is refused and names it, or it is reported as
left out. The output appears whole or not at all, and no random number is drawn.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from asterism.errors import AsterismError, CheckpointError, ConfigurationError, nearest, shown
from asterism.files import DAMAGED, replacing
from asterism.models.asterism.backbone import AsterismModel
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.heads.classification import AsterismForSequenceClassification, AsterismForTokenClassification
from asterism.models.heads.conditional_generation import AsterismForConditionalGeneration
from asterism.models.heads.masked_lm import AsterismForMaskedLM, AsterismForPreTraining
from asterism.models.heads.question_answering import AsterismForQuestionAnswering
from asterism.models.importing.architecture import Architecture, Renamed
from asterism.models.importing.bart import BART
from asterism.models.importing.bert import BERT
from asterism.models.importing.big_bird import BIG_BIRD
from asterism.models.importing.bigbird_pegasus import BIGBIRD_PEGASUS
from asterism.models.importing.fnet import FNET
from asterism.models.importing.led import LED
from asterism.models.importing.longformer import LONGFORMER
from asterism.models.importing.notes import notes_on
from asterism.models.importing.pegasus import PEGASUS
from asterism.models.importing.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from asterism.models.importing.sentences import read_pipeline
from asterism.models.importing.source import read_configuration, read_generation, read_weights
from asterism.models.importing.t5 import T5
from asterism.models.importing.tokenizer import read_tokenizer
from asterism.patterns import Mixer, Schedule, global_tokens

ARCHITECTURES: dict[str, Architecture] = {
    "bart": BART,
    "bert": BERT,
    "big_bird": BIG_BIRD,
    "bigbird_pegasus": BIGBIRD_PEGASUS,
    "camembert": CAMEMBERT,
    "fnet": FNET,
    "led": LED,
    "longformer": LONGFORMER,
    "pegasus": PEGASUS,
    "roberta": ROBERTA,
    "t5": T5,
    "xlm-roberta": XLM_ROBERTA,
}
"""By `model_type` of config.json."""

CLASSES: dict[str, type[PreTrainedModel]] = {
    "Model": AsterismModel,
    "ForMaskedLM": AsterismForMaskedLM,
    "ForPreTraining": AsterismForPreTraining,
    "ForSequenceClassification": AsterismForSequenceClassification,
    "ForTokenClassification": AsterismForTokenClassification,
    "ForQuestionAnswering": AsterismForQuestionAnswering,
    "ForConditionalGeneration": AsterismForConditionalGeneration,
}
"""By the end of the name of the checkpoint's class."""

_FEW = 10_000
"""A model of so many layers, or so wide, is laid out quickly, and then compared with the weights."""
_SIZES = (
    *("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers"),
    *("hidden_size", "d_model", "num_labels"),
)
_BEYOND = 2**40
"""No size is as large; products of larger ones overflow."""

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_EMBEDDING, _DECODER = "embed_tokens.weight", "lm_head.decoder.weight"
_POSITIONS = ("positions.weight", "encoder.positions.weight")
_TABLES = (*_POSITIONS, "decoder.positions.weight")
"""Tables of learned positions: those that `length` is about, and all."""


@dataclass(frozen=True, kw_only=True)
class ImportedCheckpoint:
    """The result of an import.

    source, model       the classes, such as "RobertaForMaskedLM" and "AsterismForMaskedLM"
    positions           number of positions of the checkpoint and of the model; of an encoder-decoder, those of the
                        source
    has_table           whether positions are rows of a table, so that a longer model repeats them
    mixers              of the model's configuration
    tokenizer           its files; none if the checkpoint has no tokenizer
    left_out            tensors of the checkpoint that the model does not use
    notes               differences between the model and the checkpoint's class, one line each
    """

    folder: str
    source: str
    model: str
    parameters: int
    positions: tuple[int, int]
    has_table: bool
    mixers: str | list[str]
    tokenizer: list[str]
    left_out: list[str]
    notes: list[str]


def import_checkpoint(
    path: str | Path,
    output: str | Path,
    *,
    length: int | None = None,
    pattern: str | Sequence[str] | None = None,
    globals: Sequence[int] | None = None,
    allow_pickle: bool = False,
) -> ImportedCheckpoint:
    """Write the checkpoint in the folder `path` as an Asterism model to the folder `output`.

    BERT, RoBERTa (and CamemBERT, XLM-RoBERTa), Longformer, BigBird and FNet: backbone, pooler, and the heads that have
    an exact counterpart. BART, Pegasus, BigBird-Pegasus, T5 and LED: the models that generate, with their settings for
    that. Dtypes stay as they are. The tokenizer and the pooling of SentenceTransformers come along.

    length        number of positions of the model: the table of learned positions is repeated as often as needed
                  (Beltagy 2020, section 5). By default that of the checkpoint. Of an encoder-decoder, positions of the
                  source.
    pattern       pattern that replaces the checkpoint's own, as `mixers` of AsterismConfig
    globals       for Longformer and LED: the positions of their global tokens, by default only the first, or with a
                  pattern none; they read every token and are read by all, whatever the pattern. An empty list leaves
                  the global projections out.
    allow_pickle  read pytorch_model.bin where there are no safetensors, by PyTorch's restricted reader, without code

    Raises CheckpointError for files that are missing, damaged or unknown and for an output that exists,
    ConfigurationError for a length or pattern that does not fit the checkpoint, and PatternError for a pattern that
    cannot be read.
    """
    path, output = Path(path), Path(output)
    _refuse_taken(output)
    document = _read_document(path)
    tokenizer, pipeline = read_tokenizer(path, document["model_type"], length), read_pipeline(path, length)
    weights = read_weights(path, allow_pickle=allow_pickle)
    source = _source_config(path, document, weights)
    architecture = ARCHITECTURES[source.model_type]
    with _config_read(path):
        head = architecture.head_of(source, weights)
        weights = architecture.prepare(source, weights)
        fields = architecture.configuration(source, head, weights)
    offset = architecture.offset(source)
    positions = fields["max_position_embeddings"]
    _change(fields, architecture, length, pattern, globals)
    config = AsterismConfig(**fields)
    unwanted = architecture.globals if config.global_projections is None else ()
    renamed = architecture.rename(weights, head, tied=config.tie_word_embeddings, unwanted=unwanted)
    with torch.device("meta"):  # draws no random numbers
        model = CLASSES[head](config)
    _refuse_not_finite(path, weights)
    pooler = _spare_pooler(model, renamed.tensors)
    if config.tie_word_embeddings:
        _tie(path, model, renamed.tensors)
    _compare(path, model, renamed, (positions, offset), lambda name: architecture.origin(name, head))
    _fill(model, renamed.tensors, offset)
    if model.can_generate():
        model.generation_config = read_generation(path, source)
    with replacing(output) as temporary:
        model.save_pretrained(temporary, state_dict=model.state_dict() | pooler)
        _write(temporary, tokenizer | pipeline.files)
    return ImportedCheckpoint(
        folder=str(output),
        source=architecture.class_prefix + head,
        model=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        positions=(positions, config.max_position_embeddings),
        has_table=config.positions_end,
        mixers=config.mixers,
        tokenizer=list(tokenizer),
        left_out=renamed.unused,
        notes=notes_on(source, architecture.class_prefix + head, config, pattern) + pipeline.notes,
    )


def _refuse_taken(output: Path) -> None:
    """Raises CheckpointError for a folder that holds something."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise CheckpointError(
            "output-not-empty", f"{output} exists and is not an empty folder; choose another one for the imported model"
        )


def _read_document(path: Path) -> dict[str, Any]:
    """The checkpoint's config.json, of a kind that is imported. Raises CheckpointError."""
    document = read_configuration(path)
    kind = document.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise CheckpointError(
            "unsupported-model-type",
            f"{path} is of model_type {shown(kind)}; imported are {', '.join(ARCHITECTURES)}."
            + nearest(shown(kind), ARCHITECTURES),
        )
    return document


def _source_config(path: Path, document: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> PreTrainedConfig:
    """The checkpoint's configuration, with the defaults of its class for what config.json leaves out.

    Raises CheckpointError, and does so for more than the weights can be of before anything is made of that size.
    """
    most = max(_FEW, len(weights), *(size for tensor in weights.values() for size in tensor.shape))
    for name in _SIZES:
        if isinstance(given := document.get(name), int) and given > most:
            raise CheckpointError(
                "size-beyond-weights",
                f"{path} has {name} {given:,} in its config.json, more than its weights can have",
            )
    for name, value in document.items():
        if isinstance(value, int) and abs(value) >= _BEYOND:
            raise CheckpointError(
                "number-too-large", f"{path / 'config.json'} is damaged: {name} must be below 2^40, got {shown(value)}"
            )
    with _config_read(path):
        return CONFIG_MAPPING[document["model_type"]].from_dict(dict(document))


@contextmanager
def _config_read(path: Path) -> Iterator[None]:
    """Raises CheckpointError for whatever comes of a field of config.json that holds what it cannot."""
    try:
        yield
    except AsterismError:
        raise
    except DAMAGED as error:
        raise CheckpointError(
            "damaged-file", f"{path / 'config.json'} is damaged: {' '.join(str(error).split())}"
        ) from error


def _refuse_not_finite(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Raises CheckpointError for weights that no model can have learned."""
    if names := [name for name, tensor in weights.items() if _is_plain(tensor) and not tensor.isfinite().all()]:
        raise CheckpointError(
            "weights-not-finite", f"the weights of {path} are not finite (NaN or infinity): {_some(sorted(names))}"
        )


def _change(
    fields: dict[str, Any],
    architecture: Architecture,
    length: int | None,
    pattern: str | Sequence[str] | None,
    globals: Sequence[int] | None,
) -> None:
    """Put what the user wants instead into the fields of the model's configuration."""
    if globals is not None and not architecture.globals:
        raise ConfigurationError(
            "globals-unused",
            "globals are for Longformer and LED; a pattern such as longformer(globals=(0,)) makes a"
            f" {architecture.class_prefix} sparse",
        )
    if length is not None:
        if not isinstance(length, int) or length >= 2**31:
            raise ConfigurationError("length-range", f"length must be a whole number below 2^31, got {shown(length)}")
        if length < fields["max_position_embeddings"]:
            raise ConfigurationError(
                "length-below-positions",
                f"length {length} is less than the {fields['max_position_embeddings']} positions of the checkpoint;"
                " leave it out: the model reads shorter inputs as they are",
            )
        fields["max_position_embeddings"] = length
    if globals is not None:
        if isinstance(globals, str) or not all(isinstance(place, int) for place in globals):
            raise ConfigurationError(
                "globals-form", f"globals must be a list of positions, whole numbers, got {shown(globals)}"
            )
        if beyond := [place for place in globals if not 0 <= place < fields["max_position_embeddings"]]:
            raise ConfigurationError(
                "globals-beyond-length",
                f"globals: position {beyond[0]:,} is beyond the model, which has"
                f" {fields['max_position_embeddings']:,} positions, counted from 0",
            )
        fields["mixers"] = [mixer.replace("globals=(0,)", f"globals={tuple(globals)}") for mixer in fields["mixers"]]
    if globals is not None or pattern is not None:
        fields["global_projections"] = list(globals or ()) or None
    if pattern is not None:
        own = AsterismConfig(**fields).layer_mixers()
        fields["mixers"] = pattern if isinstance(pattern, str) else list(pattern)
        new = AsterismConfig(**fields).layer_mixers()
        _refuse_other_weights(own, new)
        if globals:
            fields["mixers"] = [str(pattern | global_tokens(tuple(globals))) for pattern in Schedule(new).patterns]


def _refuse_other_weights(own: Sequence[Mixer], new: Sequence[Mixer]) -> None:
    """Raises ConfigurationError for a pattern whose layers need weights that the checkpoint does not have."""
    for number, (old, mixer) in enumerate(zip(own, new, strict=True)):
        if (old.has_pairs or type(old)) != (mixer.has_pairs or type(mixer)):
            raise ConfigurationError(
                "pattern-not-of-weights",
                f"the pattern gives layer {number} {mixer}, but the checkpoint has the weights of {old}: attention"
                " and other mixers cannot replace each other",
            )


def _spare_pooler(model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Take the pooler out of the tensors of a model that has none; it is written beside them, for a classifier."""
    names = [name for name in tensors if name.startswith("pooler.") and name not in model.state_dict()]
    return {name: tensors.pop(name) for name in names}


def _tie(path: Path, model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> None:
    """Let the embedding be the decoder. Raises CheckpointError when the checkpoint has another decoder."""
    embedding = tensors.get(_EMBEDDING)
    if embedding is None or _DECODER not in model.state_dict():
        return
    if not torch.equal(tensors.setdefault(_DECODER, embedding), embedding):
        raise CheckpointError(
            "tied-tensors-differ",
            f'{path} ties decoder and embedding, but their weights differ; write "tie_word_embeddings": false into'
            " its config.json",
        )


def _fill(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], offset: int) -> None:
    """Give the model the tensors, its positions from row `offset` of each table, as many as it has."""
    own = model.state_dict()
    filled = {name: tensors[_bare(name)] for name in own}
    for name, tensor in filled.items():
        if _bare(name) in _TABLES:
            filled[name] = extend_positions(tensor[offset:], len(own[name]))
    model.load_state_dict(filled, assign=True)
    model.tie_weights()


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def _bare(name: str) -> str:
    """A name without the prefix that the backbone has in a model with a head."""
    return name.removeprefix("model.")


def extend_positions(table: torch.Tensor, length: int) -> torch.Tensor:
    """[P, C] -> [length, C] of the same dtype: the table over and over, the last copy cut (Beltagy 2020, section 5)."""
    return table.repeat(-(-length // len(table)), 1)[:length].contiguous()


def _compare(
    path: Path, model: PreTrainedModel, renamed: Renamed, positions: tuple[int, int], origin: Callable[[str], str]
) -> None:
    """Raises CheckpointError when a tensor is missing, unknown, of no use to the class, or of another shape or dtype.

    `positions` are how many the checkpoint's table must have, and how many rows come before them; `origin` gives the
    checkpoint's name of a tensor.
    """
    tensors = renamed.tensors
    shapes = {_bare(name): list(tensor.shape) for name, tensor in model.state_dict().items()}
    for table in shapes.keys() & set(_TABLES):
        rows = positions[0] if table in _POSITIONS else shapes[table][0]  # the others are as long as they were
        shapes[table][0] = rows + positions[1]
    wrong = {
        "it lacks": [origin(name) for name in shapes.keys() - tensors.keys()],
        "it has, and the class does not": renamed.unknown + [origin(name) for name in tensors.keys() - shapes.keys()],
        "of another shape are": [
            f"{origin(name)} {list(tensors[name].shape)} instead of {shape}"
            for name, shape in shapes.items()
            if name in tensors and list(tensors[name].shape) != shape
        ],
    }
    # Such as those of a quantised checkpoint.
    wrong["of a dtype that is not imported (save them as float32) are"] = [
        f"{origin(name)} {tensor.dtype}" for name, tensor in tensors.items() if name in shapes and not _is_plain(tensor)
    ]
    complaints = [f"{what} {_some(sorted(names))}" for what, names in wrong.items() if names]
    if complaints:
        raise CheckpointError(
            "tensors-differ", f"the tensors of {path} do not match its config.json: {'; '.join(complaints)}"
        )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a model can compute with it as it is."""
    return tensor.dtype in _DTYPES and tensor.layout == torch.strided and not tensor.is_meta


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
