"""A model as a graph of one length: a file of ONNX, or of torch.export, that runs without Asterism.

Neither has an operator for sparse attention, so each layer becomes dense attention with its pattern as a mask of n x n
bytes. Length and batch are fixed. The file appears only after a process without Asterism has computed the logits of the
model with it.
"""

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedConfig, PreTrainedModel

from asterism.errors import AsterismError, CheckpointError, ConfigurationError, shown
from asterism.files import DAMAGED, LOCAL, check_model_folder, replacing_file, why_unread
from asterism.kernels.transforms import without_own_operators
from asterism.models.drop_in.field import read_patterns
from asterism.models.drop_in.named import configuration_in, model_class_of
from asterism.models.drop_in.use_pattern import use_pattern
from asterism.models.exporting import alone_graph
from asterism.models.exporting.check import TOLERANCE, run_alone
from asterism.models.exporting.export import give, refuse_quantised
from asterism.models.exporting.ours import FAMILY
from asterism.models.exporting.sorting import stable_sort
from asterism.patterns import Pattern
from asterism.presence import require_package

SUFFIXES = (".onnx", ".pt2")
_LARGEST = 2**31
"""Bytes that a file of ONNX can have: its protocol buffers are bounded."""

_HEADS = ("ForCausalLM", "ForMaskedLM", "ForTokenClassification")


@dataclass(frozen=True, kw_only=True)
class ExportedGraph:
    """The result of an export.

    source  the class of the model
    inputs  what the graph takes, each int64 [1, length]; without attention_mask, every token is real
    error   largest difference of a logit, in units of the largest one
    """

    file: str
    source: str
    parameters: int
    length: int
    inputs: list[str]
    error: float


class _Logits(torch.nn.Module):
    """The logits of a model, and nothing else."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """int64 [1, N] twice -> the model's logits [1, N, V] in the dtype of its weights."""
        options = {"use_cache": False} if self.model.can_generate() else {}
        logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **options).logits
        return logits


def export_graph(
    path: str | Path, file: str | Path, *, length: int, pattern: str | Sequence[str] | None = None
) -> ExportedGraph:
    """Write the model in the folder `path` as a graph for `length` tokens in float32: FILE.onnx, or FILE.pt2 of torch.

    `pattern` as in `export_native`, for models of transformers. The graph takes `input_ids` int64 [1, length] and,
    unless a pattern depends on the length of a row, `attention_mask`. It gives logits [1, length, V], within 1e-5 of
    the largest of the model.

    Raises ConfigurationError for a model that does not become a graph, and where packages of ONNX are missing;
    CheckpointError for damaged folders and where logits differ.
    """
    path, file = Path(path), Path(file)
    if type(length) is not int or length < 1:
        raise ConfigurationError("graph-length", f"length must be a whole number of at least 1, got {shown(length)}")
    if file.suffix not in SUFFIXES:
        raise ConfigurationError("graph-suffix", f"{file} must end in .onnx, or in .pt2 for torch.export")
    if file.suffix == ".onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            require_package(package, package, "export", "export to ONNX")
    check_model_folder(path)
    model = _load(path, pattern)
    _refuse_too_large(model, length)
    masked = not any(one.depends_on_length for one in _patterns(model))
    inputs = _inputs(model.config, length, masked)
    wanted = _logits(model, inputs)
    with replacing_file(file) as temporary:
        unfinished = temporary.with_name(temporary.name + file.suffix)  # which says the kind
        try:
            _write(model, _row(inputs, 0), unfinished)
            error = _compare(unfinished, inputs, wanted)
            unfinished.replace(temporary)
        finally:
            unfinished.unlink(missing_ok=True)
    return ExportedGraph(
        file=str(file),
        source=type(model).__name__,
        parameters=sum(one.numel() for one in model.parameters()),
        length=length,
        inputs=list(inputs),
        error=error,
    )


def _logits(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of all rows. Raises ConfigurationError for a model that cannot run at this length (beyond its positions)."""
    try:
        with torch.no_grad():
            rows = [_Logits(model)(**_row(inputs, number)) for number in range(len(inputs["input_ids"]))]
    except (IndexError, RuntimeError, *DAMAGED) as error:
        raise _refusal(model, error) from error
    return torch.cat(rows)


def _load(path: Path, pattern: str | Sequence[str] | None) -> PreTrainedModel:
    config = configuration_in(path)
    kind = model_class_of(config)
    if not kind.__name__.endswith(_HEADS):
        raise ConfigurationError(
            "head-not-exported", f"{kind.__name__} is not exported; classes that end in {', '.join(_HEADS)} are"
        )
    refuse_quantised(config)
    is_ours = config.model_type == FAMILY
    if is_ours and pattern is not None:
        raise ConfigurationError("pattern-of-run", "an Asterism model has the pattern of its training; leave it out")
    if is_ours:
        config.implementation = "auto"  # whatever computes it here; the graph has a mask
    try:
        model: PreTrainedModel = kind.from_pretrained(path, **LOCAL, config=config, dtype=torch.float32)
    except (OSError, RuntimeError, *DAMAGED) as error:
        raise CheckpointError("unreadable-model", f"{path} cannot be read: {why_unread(error)}") from error
    if pattern is not None:
        give(model, pattern)
    elif not is_ours and config.asterism_pattern is None:
        _follow_own(model)
    return model.eval()


def _follow_own(model: PreTrainedModel) -> None:
    """Let a model compute its own windows by their patterns; one without windows stays as it is."""
    try:
        use_pattern(model, "native")
    except ConfigurationError as error:
        if error.code != "no-native-pattern":
            raise


def _patterns(model: PreTrainedModel) -> list[Pattern]:
    config: Any = model.config
    if hasattr(config, "layer_mixers"):
        return [mixer for mixer in config.layer_mixers() if isinstance(mixer, Pattern)]
    return (
        []
        if config.asterism_pattern is None
        else list(read_patterns(config.asterism_pattern, config.num_hidden_layers))
    )


def _refuse_too_large(model: PreTrainedModel, length: int) -> None:
    """Raises ConfigurationError for a graph that no file of ONNX holds; the same bound keeps those of torch small."""
    weights = 4 * sum(one.numel() for one in model.parameters())
    masks = model.config.num_hidden_layers * length**2
    if weights + masks >= _LARGEST:
        raise ConfigurationError(
            "graph-too-large",
            f"the graph needs {weights:,} bytes of weights and up to {masks:,} of masks, and 2^31 are allowed; shorten"
            " --length, or export with --native",
        )


def _inputs(config: PreTrainedConfig, length: int, masked: bool) -> dict[str, torch.Tensor]:
    """One row without padding; where a mask is taken, also one with it on the right, and one on the left."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size, (3 if masked else 1, length), generator=generator)
    if not masked:
        return {"input_ids": ids}
    mask, short = torch.ones_like(ids), max(1, length // 4)
    mask[1, length - short :] = 0
    mask[2, :short] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _row(inputs: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    return {name: x[number : number + 1] for name, x in inputs.items()}


def _write(model: PreTrainedModel, example: dict[str, torch.Tensor], file: Path) -> None:
    """Write the graph. Raises ConfigurationError in one line for whatever keeps the model from being one."""
    try:
        with warnings.catch_warnings(), _quiet(), without_own_operators():
            warnings.simplefilter("ignore")
            if file.suffix == ".pt2":
                torch.export.save(torch.export.export(_Logits(model), (), example, strict=False), file)
                return
            program = torch.onnx.export(
                _Logits(model),
                (),
                kwargs=example,
                dynamo=True,
                verbose=False,
                input_names=list(example),
                output_names=["logits"],
                custom_translation_table=stable_sort(),
            )
            assert program is not None
            program.save(file)
    except Exception as error:  # what the exporters raise is of many classes, mostly for reasons several causes deep
        raise _refusal(model, error) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Only errors from torch.onnx, which else tells which operators of torchvision are not there."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _refusal(model: PreTrainedModel, error: BaseException) -> AsterismError:
    cause = error
    while not isinstance(cause, AsterismError) and (cause.__cause__ or cause.__context__) is not None:
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
    if isinstance(cause, AsterismError):
        return cause
    text = " ".join(str(cause).split())[:300]
    return ConfigurationError("not-a-graph", f"{type(model).__name__} does not become a graph: {text}")


def _compare(file: Path, inputs: dict[str, torch.Tensor], wanted: torch.Tensor) -> float:
    """The largest difference of a logit of a real token. Raises CheckpointError where it is too large."""
    with tempfile.TemporaryDirectory() as between:
        given, output = Path(between) / "inputs.safetensors", Path(between) / "output.safetensors"
        save_file(inputs, given)
        run_alone(Path(alone_graph.__file__), file, given, output)
        with safe_open(output, framework="pt") as opened:
            found, told = opened.get_tensor("logits"), opened.metadata()
    if imported := json.loads(told["imported"]):
        raise CheckpointError("check-not-alone", f"the check loaded {imported[0]}, so it shows nothing; report this")
    real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    error = ((found - wanted)[real].abs().max() / wanted[real].abs().max().clamp(min=1)).item()
    if not error < TOLERANCE:
        raise CheckpointError(
            "exported-logits-differ",
            f"the graph computes other logits than the model: they differ by {error:.2g} of the largest, and"
            f" {TOLERANCE:g} is allowed; nothing was written",
        )
    return error
