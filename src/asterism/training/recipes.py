"""What a run is: one typed, immutable configuration, and the recipes that fill it in.

A `RunConfig` says everything that decides a run's numbers: model, data, batches, optimiser, schedule, seed. The same
value drives Python (`train(recipe("bytes-small"), folder)`), the command line (its flags are these fields) and the
record in the run folder (`run.json`). A recipe is a function that returns one complete `RunConfig`.

The published recipes are those of Child et al. 2019 (arXiv 1904.10509). Published for all of them: Adam, linear
warm-up over 5,000 steps, cosine decay, gradient clip 1.0, weight decay 0.01 (section 6), attention and feed-forward
blocks computed again in the backward pass (section 5.4). Not published, and chosen here for all of them: the batch
size (and with it how many steps the published epochs are), Adam's betas, weight decay decoupled and on matrices only,
and bfloat16 instead of float16 with dynamic loss scaling. Each recipe's docstring says what else is inferred.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from asterism.errors import ConfigurationError, nearest

Dtype = Literal["float32", "bfloat16"]
Optimizer = Literal["adamw", "muon"]
PositionType = Literal["learned", "factorised", "rotary"]
Activation = Literal["quick_gelu", "gelu", "relu", "silu"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a model. The fields are those of `AsterismConfig`, which checks them against each other.

    `mixers` is a pattern or schedule in text form. None leaves a width to the model's default: as many key/value
    heads as heads, queries and keys as wide as the model, a feed-forward layer four times as wide.
    """

    mixers: str = "causal()"
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    query_key_dim: int | None = None
    intermediate_size: int | None = None
    position_type: PositionType = "learned"
    position_shape: tuple[int, ...] | None = None
    hidden_act: Activation = "quick_gelu"
    dropout: float = 0.0
    initializer_gain: float = 0.125
    implementation: str = "auto"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run. Raises ConfigurationError when a value cannot work.

    Data: `data` is a file or a folder (None: the standard library's sources, see `data.py`). With `record_length`,
    the file holds records of that many bytes, and each record is one sequence.
    Batches: `batch_size` sequences of `context` bytes per step of the optimiser, computed in `accumulation` equal
    slices; `recompute` keeps only what passes between blocks and computes the rest again in the backward pass.
    Optimiser: "adamw" for all parameters, or "muon" for the matrices of the blocks and AdamW for the rest.
    Length: the run ends after `steps` steps or `minutes` minutes, whichever comes first; the learning rate warms up
    over `warmup_steps` steps and follows half a cosine of max(step / steps, elapsed / minutes).
    Housekeeping, in steps: `log_every`, `evaluation_every` (on about `evaluation_bytes` bytes, spread evenly over the
    validation split), `checkpoint_every`.
    """

    recipe: str = "custom"
    model: ModelConfig = ModelConfig()
    data: str | None = None
    record_length: int | None = None
    context: int = 1024
    batch_size: int = 16
    accumulation: int = 1
    recompute: bool = False
    steps: int = 10_000
    minutes: float | None = None
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    optimizer: Optimizer = "adamw"
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.01
    gradient_clip: float = 1.0
    dtype: Dtype = "bfloat16"
    seed: int = 0
    log_every: int = 10
    evaluation_every: int = 250
    evaluation_bytes: int = 131_072
    checkpoint_every: int = 250

    def __post_init__(self) -> None:
        counts = ("context", "batch_size", "accumulation", "steps", "log_every", "evaluation_every", "checkpoint_every")
        for name in (*counts, "evaluation_bytes"):
            self._require(name, getattr(self, name) >= 1, "must be at least 1")
        for name in ("warmup_steps", "weight_decay", "seed"):
            self._require(name, getattr(self, name) >= 0, "must not be negative")
        for name in ("learning_rate", "gradient_clip"):
            self._require(name, getattr(self, name) > 0, "must be positive")
        for name in ("beta1", "beta2"):
            self._require(name, 0 <= getattr(self, name) < 1, "must be in [0, 1)")
        self._require("minutes", self.minutes is None or self.minutes > 0, "must be positive, or None for no limit")
        known = get_args(Optimizer)
        self._require("optimizer", self.optimizer in known, f"must be one of: {', '.join(known)}")
        self._require("dtype", self.dtype in get_args(Dtype), f"must be one of: {', '.join(get_args(Dtype))}")
        divides = self.batch_size % self.accumulation == 0
        self._require("accumulation", divides, f"must divide batch_size={self.batch_size}")
        is_sequence = self.record_length in (None, self.context)
        self._require("record_length", is_sequence, f"must equal context={self.context}: a record is one sequence")

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise ConfigurationError(f"run configuration: {name}={getattr(self, name)!r} {rule}")


def config_from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The inverse of `dataclasses.asdict(config)`, also after a trip through JSON.

    Raises ConfigurationError for a field that does not exist (with the nearest that does) or a value that cannot work.
    """
    _check_names("run configuration", values, RunConfig)
    model = dict(values.get("model", {}))
    _check_names("model configuration", model, ModelConfig)
    if model.get("position_shape") is not None:
        model["position_shape"] = tuple(model["position_shape"])
    return RunConfig(**{**values, "model": ModelConfig(**model)})


def _check_names(what: str, values: Mapping[str, Any], kind: type) -> None:
    known = [one.name for one in fields(kind)]
    for name in values:
        if name not in known:
            raise ConfigurationError(f"{what}: there is no field {name!r}.{nearest(name, known)}")


def bytes_small() -> RunConfig:
    """A small byte model for two CPU cores and ten minutes, on text that every Python carries.

    Our own: four layers of width 192 over a context of 1,024. A byte reads the 256 latest bytes and the last eighth of
    every block of 64, as in the fixed pattern of Child 2019, whose own blocks forget the line before where they begin.
    So short a run wants a small model, small batches and fast learning: rotary positions, Muon, and the larger of the
    two readings of the paper's initialisation.
    """
    return RunConfig(
        recipe="bytes-small",
        model=ModelConfig(
            mixers="window(left=255) | columns(period=64, first=56, count=8) & causal()",
            hidden_size=192,
            num_attention_heads=3,
            position_type="rotary",
            initializer_gain=0.354,
        ),
        context=1024,
        batch_size=4,
        steps=20_000,
        minutes=10.0,
        optimizer="muon",
        learning_rate=6e-3,
        warmup_steps=50,
        weight_decay=0.1,
        log_every=20,
        evaluation_every=400,
        evaluation_bytes=65_536,
        checkpoint_every=400,
    )


def sparse_transformer_enwik8() -> RunConfig:
    """Enwik8 in bytes, 95M parameters, 0.99 bits per byte (Child 2019, section 7).

    Published: context 12,288, 30 layers, 8 heads, width 512, the fixed pattern with stride 128 and 32 summary cells,
    merged heads whose summary cells are distinct sub-blocks, positions by row and column of a matrix as wide as the
    stride, dropout 0.40, 80 epochs over the first 90 MB. Inferred: the learning rate (that of CIFAR-10).
    """
    context, batch_size = 12_288, 16
    return _child_2019(
        recipe="sparse-transformer-enwik8",
        model=ModelConfig(
            mixers="fixed(stride=128, summary=32, heads=8)",
            hidden_size=512,
            num_hidden_layers=30,
            num_attention_heads=8,
            position_type="factorised",
            position_shape=(96, 128),
            dropout=0.40,
        ),
        context=context,
        batch_size=batch_size,
        steps=80 * 90_000_000 // (context * batch_size),
    )


def sparse_transformer_cifar10() -> RunConfig:
    """CIFAR-10 in bytes, 59M parameters, 2.80 bits per byte (Child 2019, section 7).

    Published: context 3,072 (one image), 128 layers, 2 heads, width 256, queries, keys and feed-forward layers of half
    size, a strided pattern, positions by row, column and channel, dropout 0.25, learning rate 3.5e-4, 120 epochs over
    48,000 images. Inferred: the stride of 96 (one row of pixels; it is in the authors' later code, not in the paper)
    and that the two parts of the pattern are merged. Data: raw records of 3,072 bytes, split 90/5/5 where the paper
    held out 2,000 images.
    """
    context, batch_size = 3_072, 32
    return _child_2019(
        recipe="sparse-transformer-cifar10",
        model=ModelConfig(
            mixers="strided(stride=96)",
            hidden_size=256,
            num_hidden_layers=128,
            num_attention_heads=2,
            query_key_dim=128,
            intermediate_size=512,
            position_type="factorised",
            position_shape=(32, 32, 3),
            dropout=0.25,
        ),
        record_length=context,
        context=context,
        batch_size=batch_size,
        steps=120 * 48_000 // batch_size,
    )


def sparse_transformer_imagenet64() -> RunConfig:
    """ImageNet at 64 x 64 in bytes, 152M parameters, 3.44 bits per byte (Child 2019, section 7).

    Published: context 12,288 (one image), 48 layers, 16 heads, width 512, the strided pattern with stride 128,
    positions by row, column and channel, dropout 0.01, 70 epochs (over 1,281,167 images). Inferred: the learning rate
    (that of CIFAR-10) and that the two parts of the pattern are merged. Data: raw records of 12,288 bytes.
    """
    context, batch_size = 12_288, 64
    return _child_2019(
        recipe="sparse-transformer-imagenet64",
        model=ModelConfig(
            mixers="strided(stride=128)",
            hidden_size=512,
            num_hidden_layers=48,
            num_attention_heads=16,
            position_type="factorised",
            position_shape=(64, 64, 3),
            dropout=0.01,
        ),
        record_length=context,
        context=context,
        batch_size=batch_size,
        accumulation=4,
        steps=70 * 1_281_167 // batch_size,
    )


def sparse_transformer_music() -> RunConfig:
    """Classical music, 12 kHz in 8-bit mu-law, 152M parameters, 1.97 bits per byte (Child 2019, section 7).

    Published: context 65,536, a strided pattern, 152M parameters. Inferred: everything else. Width 512 and 48 layers
    of 16 heads are the shape of the ImageNet recipe, which has the published number of parameters; the stride of 256
    is the square root of the context (section 4 asks for a stride near it); positions are by row and column of a
    matrix as wide as the stride; learning rate of CIFAR-10; no dropout; 100,000 steps of 8 clips. Data: raw records of
    65,536 bytes.
    """
    context = 65_536
    return _child_2019(
        recipe="sparse-transformer-music",
        model=ModelConfig(
            mixers="strided(stride=256)",
            hidden_size=512,
            num_hidden_layers=48,
            num_attention_heads=16,
            position_type="factorised",
            position_shape=(256, 256),
        ),
        record_length=context,
        context=context,
        batch_size=8,
        accumulation=4,
        steps=100_000,
    )


def _child_2019(**settings: Any) -> RunConfig:
    """A run with the settings that all recipes of Child 2019 share (module docstring)."""
    return RunConfig(
        recompute=True,
        learning_rate=3.5e-4,
        warmup_steps=5_000,
        beta2=0.999,
        weight_decay=0.01,
        gradient_clip=1.0,
        log_every=50,
        evaluation_every=1_000,
        evaluation_bytes=1_000_000,
        checkpoint_every=1_000,
        **settings,
    )


RECIPES: dict[str, Callable[[], RunConfig]] = {
    "bytes-small": bytes_small,
    "sparse-transformer-enwik8": sparse_transformer_enwik8,
    "sparse-transformer-cifar10": sparse_transformer_cifar10,
    "sparse-transformer-imagenet64": sparse_transformer_imagenet64,
    "sparse-transformer-music": sparse_transformer_music,
}


def recipe(name: str) -> RunConfig:
    """The configuration of a recipe. Raises ConfigurationError for an unknown name, with the nearest known one."""
    if name not in RECIPES:
        raise ConfigurationError(f"unknown recipe {name!r}.{nearest(name, RECIPES)} Known: {', '.join(RECIPES)}")
    return RECIPES[name]()
