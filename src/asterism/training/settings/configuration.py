"""The definition of a run: one typed, immutable configuration.

A `RunConfig` (or, for fine-tuning, a `FineTuneConfig`) contains everything that decides a run's numbers: model, data,
batches, optimiser, schedule, seed. Python (`train(recipe("bytes-small"), folder)`), the command line (its flags are
these fields) and the run folder (`run.json`, which names one of the two `KINDS`) use the same value. The registries
hold what an objective or a task requires of its settings, so nothing here imports torch.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from types import NoneType
from typing import Any, ClassVar, Literal, get_args

from asterism.errors import ConfigurationError, nearest, shown
from asterism.patterns import in_full
from asterism.shape import MIXERS, ModelConfig, Pooling
from asterism.training.data.corpora.modality import MEANING as MODALITIES
from asterism.training.data.corpora.modality import Modality, parse_modality
from asterism.training.readers.text import MEANING, parse_reader
from asterism.training.settings.budget import Budget
from asterism.training.settings.lora import MEANING as LORA
from asterism.training.settings.lora import parse_lora
from asterism.training.settings.parallel import MEANING as MESH
from asterism.training.settings.parallel import mesh_sizes
from asterism.training.settings.registry import OBJECTIVES, TASKS, Registry

Dtype = Literal["auto", "float32", "bfloat16", "float64"]
Optimizer = Literal["adamw", "muon", "adafactor"]
Schedule = Literal["cosine", "linear", "inverse_sqrt"]
NativeWindow = Literal["replace", "intersect"]
Positions = Literal["original", "cache"]

_TYPES: dict[type, str] = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
"""What messages call the types of settings; a Literal's values are compared one by one."""

_LEARNING_RATE = "largest step of the optimizer; adafactor multiplies it by the size of each matrix"


def _setting(meaning: str, default: Any = MISSING) -> Any:
    """A field with the help of its flag."""
    return field(default=default, metadata={"help": " ".join(meaning.split())})


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The settings of the training loop, for any kind of data. Raises ConfigurationError for impossible values.

    `kind` is the kind of the run in run.json, `objective` names what it learns, and `name` is its name in reports. The
    meaning of each setting stands next to it and is the help of its flag.
    """

    kind: ClassVar[str]

    batch_size: int = _setting("sequences per optimizer step", 16)
    gradient_accumulation_steps: int = _setting("equal slices of a batch, computed one after another to save memory", 1)
    gradient_checkpointing: bool = _setting(
        "keep only the values between blocks and recompute the rest in the backward pass, to save memory", False
    )
    steps: int = _setting("end the run after N steps, or after `minutes`, whichever comes first", 10_000)
    minutes: float | None = _setting(
        "end training after X minutes; saving and the final evaluation come on top of it; null: no limit", None
    )
    learning_rate: float = _setting(_LEARNING_RATE, 1e-3)
    warmup_steps: int = _setting(
        "steps over which the learning rate rises from 0; at most a tenth of a run that `minutes` or `epochs` end", 100
    )
    schedule: Schedule = _setting(
        """how the learning rate falls after the warm-up: to 0 with max(step / steps, elapsed / minutes), or as 1 /
        sqrt(step) ("inverse_sqrt")""",
        "cosine",
    )
    optimizer: Optimizer = _setting(
        """"adamw" for all parameters; "muon" for the matrices of the blocks and AdamW for the rest; "adafactor" stores
        sums over rows and columns in place of second moments, and no momentum""",
        "adamw",
    )
    beta1: float = _setting("decay of the mean of gradients (of momentum, in muon)", 0.9)
    beta2: float = _setting("decay of the mean of squared gradients", 0.95)
    weight_decay: float = _setting("fraction of each matrix, times the learning rate, that every step removes", 0.01)
    gradient_clip: float = _setting("largest norm of the gradient; longer ones are scaled down to it", 1.0)
    dtype: Dtype = _setting(
        """arithmetic of products and attention; weights and sums are float32 (in "float64", which serves to compare
        runs, float64). "auto" picks the faster of float32 and bfloat16 once, when the run starts""",
        "auto",
    )
    seed: int = _setting("random seed of weights, batches, masks and dropout", 0)
    log_every: int = _setting("steps between two lines of history.jsonl", 10)
    evaluation_every: int = _setting("steps between two evaluations", 250)
    checkpoint_every: int = _setting("steps between two checkpoints", 250)
    parallel: str = _setting(MESH, "")
    dense_exchange: bool = _setting(
        "with cp: also allow patterns that move as much data between processes as dense attention", False
    )
    process_timeout: int = _setting("seconds to wait for a silent process before the run ends", 300)

    def __post_init__(self) -> None:
        self._refuse_other_types()
        self._refuse_extremes()
        for name in (
            "batch_size",
            "gradient_accumulation_steps",
            "steps",
            "log_every",
            "evaluation_every",
            "checkpoint_every",
            "process_timeout",
        ):
            self._require_positive(name)
        for name in ("warmup_steps", "weight_decay", "seed"):
            self._require(name, getattr(self, name) >= 0, "must not be negative")
        for name in ("learning_rate", "gradient_clip"):
            self._require(name, getattr(self, name) > 0, "must be positive")
        for name in ("beta1", "beta2"):
            self._require(name, 0 <= getattr(self, name) < 1, "must be in [0, 1)")
        self._require("minutes", self.minutes is None or self.minutes > 0, "must be positive, or None for no limit")
        self._require_one_of("optimizer", Optimizer)
        self._require_one_of("dtype", Dtype)
        self._require_one_of("schedule", Schedule)
        mesh_sizes(self.parallel)
        divides = self.batch_size % self.gradient_accumulation_steps == 0
        self._require("gradient_accumulation_steps", divides, f"must divide batch_size={self.batch_size}")

    def _refuse_other_types(self) -> None:
        """Refuse values of the wrong type, such as text for a number or half a beam. They would stop the run only
        later.
        """
        for one in fields(self):
            value = getattr(self, one.name)
            parts: tuple[Any, ...] = get_args(one.type) or (one.type,)
            kinds = [kind for kind in parts if kind in _TYPES]
            if not kinds or (value is None and NoneType in parts):
                continue
            like: tuple[type, ...] = (int, float) if float in kinds else tuple(kinds)
            is_like = isinstance(value, like) and (bool in kinds or not isinstance(value, bool))
            self._require(one.name, is_like, f"must be {_TYPES[kinds[0]]}{' or None' * (NoneType in parts)}")

    def _refuse_extremes(self) -> None:
        """Refuse numbers that overflow in JSON, 64 bits, or an optimizer in float32, and would stop the run halfway."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(model := numbers.get("model"), ModelConfig):
            numbers |= {f"model.{field.name}": getattr(model, field.name) for field in fields(model)}
        for name, value in numbers.items():
            if not isinstance(value, int | float):
                continue
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigurationError("not-finite", f"run configuration: {name}={value!r} must be finite")
            largest = 1e30 if isinstance(value, float) else 2**63 - 1 if name == "seed" else 2**31 - 1
            if abs(value) > largest:
                given = f"{value:.4g}" if abs(value) < 2**256 else shown(value)
                raise ConfigurationError(
                    "number-too-large", f"run configuration: {name} must be at most {largest:,}, got {given}"
                )

    @property
    def micro_batch_size(self) -> int:
        """The number of sequences computed at once, in training and in evaluation."""
        return self.batch_size // self.gradient_accumulation_steps

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise ConfigurationError("setting-range", f"run configuration: {name}={getattr(self, name)!r} {rule}")

    def _require_positive(self, name: str) -> None:
        self._require(name, getattr(self, name) >= 1, "must be at least 1")

    def _require_one_of(self, name: str, choices: Any) -> None:
        known = get_args(choices)
        self._require(name, getattr(self, name) in known, f"must be one of: {', '.join(known)}")

    def _require_entry(self, name: str, registry: Registry) -> None:
        """Check that the setting `name` names an entry, and that settings which only other entries read have their
        defaults.
        """
        known, value = registry.names(self.kind), getattr(self, name)
        self._require(name, value in known, f"must be one of: {', '.join(known)}.{nearest(str(value), known)}")
        for setting in registry.foreign(value):
            readers = " or ".join(map(repr, registry.readers(setting)))
            is_default = getattr(self, setting) == type(self).__dataclass_fields__[setting].default
            self._require(setting, is_default, f"is for {name} {readers}, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class RunConfig(TrainingConfig):
    """Everything that decides a run: the settings of the training loop, the model and the data."""

    kind: ClassVar[str] = "train"

    recipe: str = _setting("published or small configuration to start from; `asterism recipes` lists them", "custom")
    model: ModelConfig = ModelConfig()
    init_from: str | None = _setting(
        """folder of a model, or of a run, whose architecture, weights and tokenizer the run starts with; a model of
        transformers must be causal""",
        None,
    )
    pattern: str | None = _setting(
        """who attends to whom in the model of init_from: a pattern or schedule in place of its own; in one of
        transformers, "native" is that of its windows (default: its own)""",
        None,
    )
    objective: str = _setting(
        """"causal" predicts the next byte or token; "prefix_lm" does so only after a prefix of each window; "mlm"
        predicts masked tokens. For encoder-decoders: "span_corruption" restores missing spans (T5), "gap_sentences"
        restores the most informative sentences (Pegasus)""",
        "causal",
    )
    next_sentence: bool = _setting(
        "mlm also learns whether the second half of a sequence follows the first (BERT)", False
    )
    kept_sentences: float = _setting(
        "fraction of the sentences chosen by gap_sentences that stays in the input, to be copied", 0.0
    )
    data: str | None = _setting(
        "file or folder to train on (default: the source files of Python's standard library)", None
    )
    modality: str = _setting(MODALITIES, "bytes()")
    tokenizer: str = _setting(
        """"bytes" ("causal" and "prefix_lm" then read the values of `modality`); "bpe:SIZE" or "unigram:SIZE", trained
        on the data; for genomes "bases", "kmer:LENGTH" or "dna-bpe:SIZE"; or the folder of a tokenizer""",
        "bytes",
    )
    record_length: int | None = _setting(
        """bytes of a record, if the file consists of records of equal length: each is one sequence (default: no
        records)""",
        None,
    )
    context: int = _setting("bytes or tokens of a sequence", 1024)
    target_length: int | None = _setting("most tokens of a target of gap_sentences (default: half of context)", None)
    evaluation_bytes: int = _setting("validation bytes per periodic evaluation, spread evenly over the split", 131_072)
    report_bytes: int = _setting(
        "validation bytes, from the start of the split, that the final report scores and compresses", 2**24
    )

    @property
    def name(self) -> str:
        """The recipe."""
        return self.recipe

    @property
    def on_the_way(self) -> Budget:
        """What an evaluation during training may cost."""
        return Budget(self.evaluation_bytes, spread=True)

    @property
    def at_the_end(self) -> Budget:
        """The limit of the evaluation for the report."""
        return Budget(self.report_bytes)

    def reads(self) -> Modality:
        """What the files of the data are."""
        if self.record_length is not None:
            return parse_modality(f"bytes(record_length={self.record_length})")
        return parse_modality(self.modality)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("context")
        self._require_positive("evaluation_bytes")
        self._require_positive("report_bytes")
        fits = self.target_length is None or 8 <= self.target_length <= self.context
        self._require("target_length", fits, f"must be from 8 to context={self.context}")
        is_sequence = self.record_length in (None, self.context)
        self._require("record_length", is_sequence, f"must equal context={self.context}: a record is one sequence")
        reads_values = self.record_length is None or self.tokenizer == RunConfig.tokenizer
        self._require(
            "record_length", reads_values, f"is for bytes without a tokenizer, got tokenizer={self.tokenizer}"
        )
        self._require_entry("objective", OBJECTIVES)
        self._require_modality()
        shortest = OBJECTIVES[self.objective].shortest_context
        self._require(
            "context", self.context >= shortest, f"must be at least {shortest} for objective {self.objective}"
        )
        self._require("kept_sentences", 0 <= self.kept_sentences < 1, "must be in [0, 1)")
        typed = not self.next_sentence or self.model.type_vocab_size >= 2 or self.init_from is not None
        self._require("next_sentence", typed, "needs two token types: model.type_vocab_size must be at least 2")
        self._require(
            "pattern",
            self.pattern is None or self.init_from is not None,
            "is for init_from; a new model has model.mixers",
        )
        if self.init_from is not None:
            default = {"model": ModelConfig(), "tokenizer": RunConfig.tokenizer}
            given = [name for name, value in default.items() if getattr(self, name) != value]
            self._require(
                "init_from", not given, f"brings its own {' and '.join(default)}; leave {', '.join(given)} out"
            )

    def _require_modality(self) -> None:
        """Bytes are not asked: their class, and what it imports, is for those who read data."""
        if self.modality == RunConfig.modality:
            return
        self._require("record_length", self.record_length is None, f"is for bytes, not modality {self.modality}")
        length = parse_modality(self.modality).sequence_length
        self._require("context", length in (None, self.context), f"must be {length}, a piece of {self.modality}")


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig(TrainingConfig):
    """Everything that decides a fine-tuning run: the settings of the training loop, the task, the model and the data.

    `tasks/` describes the files, and `readers/` how long documents become rows.
    """

    kind: ClassVar[str] = "finetune"
    objective: ClassVar[str] = "labelled"

    task: str = _setting(
        """"classify" documents; "tag" tokens; "qa" finds the span that answers a question; "multilabel" labels
        sequences with columns of 0 and 1; "promoter" labels DNA with yes or no; "chromatin" has the 919 columns of
        DeepSEA. For encoder-decoders: "summarize", "translate", or "generate" (any text from another). For causal
        models: "complete" prompts, or "instruct" (answer in conversations)""",
    )
    model: str = _setting(
        "folder of a model with its tokenizer, or of a run; with from_scratch also a recipe of `asterism train`"
    )
    data: str = _setting(
        'file of examples to train on (JSONL or CSV); "SOURCE,TARGET" names two files whose lines belong together'
    )
    validation: str | None = _setting("file of examples to score the model on (default: a part of `data`)", None)
    validation_fraction: float = _setting(
        "fraction of the examples to hold out where `validation` is not given; the seed chooses them", 0.1
    )
    from_scratch: bool = _setting("keep the architecture of the model and initialise new weights", False)
    tokenizer: str | None = _setting(
        """tokenizer for a `model` that is a recipe: "bytes", "bases", "kmer:6" or a folder (default: that of the
        recipe)""",
        None,
    )
    length: int | None = _setting("tokens of a row (default: the most that the model reads)", None)
    reader: str = _setting(MEANING, "cut()")
    modality: str | None = _setting(
        """"classify" reads files as "images(width=32, height=32)" or "audio(rate=12000)": `data` is a folder with one
        folder of files per class, or a table with `file` and `label` (default: examples are text)""",
        None,
    )
    pooling: Pooling | None = _setting(
        """"classify" and tasks on sequences use the first token ("cls") or the mean of all tokens ("mean") (default: as
        the model's configuration)""",
        None,
    )
    label_table: str | None = _setting(
        "table (JSONL or CSV) with the labels of sequences, by `id` (default: labels are in `data`)", None
    )
    genome: str | None = _setting(
        """file or folder of sequences, of which `data` lists intervals (BED, GFF, GTF, GenBank, or a table of genes)
        with the labels of `label_table`; "promoter" also accepts intervals named "yes" and "no" (default: `data` holds
        sequences)""",
        None,
    )
    window: int = _setting("bases of the genome to read around the centre of each interval", 8000)
    column_groups: str | None = _setting(
        "table (JSONL or CSV) with the `group` of each `column`; adds one score per group (default: no groups)", None
    )
    positive_weight: float | None = _setting(
        "weight of a 1 relative to a 0 in the training loss (default: 1; chromatin 8)", None
    )
    augment_strands: bool = _setting("train on either strand of each sequence of bases, at random", False)
    average_strands: bool = _setting("average the probabilities of both strands in each answer", False)
    max_answer_length: int = _setting('most tokens of an answer of "qa"', 30)
    pattern: str | None = _setting(
        """pattern or schedule for a causal model of transformers, such as "window(left=1023) | sinks()" or "native"
        (default: the one saved with the model, if any)""",
        None,
    )
    native_window: NativeWindow | None = _setting(
        """with `pattern`, for a model with windows of its own: "intersect" reads where both allow, "replace" follows
        the pattern alone""",
        None,
    )
    positions: Positions | None = _setting(
        """with `pattern`: "cache" shows a rotary model the keys of sinks(...) where they stand among those that are
        read, "original" where they stand in the text (default: original)""",
        None,
    )
    lora: str | None = _setting(LORA, None)
    packing: bool = _setting(
        "put several examples into each training row of `length` tokens; they do not read each other", False
    )
    chat_template: str | None = _setting(
        """"chatml", "plain" or a file in Jinja: how "instruct" renders conversations (default: the template of the
        tokenizer)""",
        None,
    )
    target_length: int | None = _setting(
        """most tokens of a generated text; longer training targets are cut (default: the most that the decoder writes,
        or of a causal model the longest training answer, and no cut)""",
        None,
    )
    num_beams: int = _setting("beams of beam search; 1 takes the most probable token each time", 1)
    length_penalty: float = _setting("beams are ranked by log probability / tokens ** X", 1.0)
    no_repeat_ngram_size: int = _setting("no n-gram of this length is repeated; 0 allows repetition", 0)
    label_smoothing: float = _setting("fraction of the target probability that training spreads over all tokens", 0.0)
    source_prefix: str = _setting('text in front of each source, such as "summarize: " for T5', "")
    group_by_length: bool = _setting(
        "batch examples of similar length, to reduce padding; helps most when lengths vary", False
    )
    epochs: float = _setting("end the run after X passes over the training examples", 3.0)
    learning_rate: float = _setting(_LEARNING_RATE, 5e-5)
    evaluation_examples: int = _setting("most validation examples per periodic evaluation", 200)
    report_examples: int | None = _setting(
        "validation examples, from the first, that the final report scores (default: all)", None
    )

    @property
    def name(self) -> str:
        """The task, as reports call it."""
        return f"finetune-{self.task}"

    @property
    def on_the_way(self) -> Budget:
        """What an evaluation during training may cost."""
        return Budget(self.evaluation_examples, spread=True)

    @property
    def at_the_end(self) -> Budget:
        """The limit of the evaluation for the report."""
        return Budget(self.report_examples)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_entry("task", TASKS)
        for name in ("max_answer_length", "evaluation_examples", "num_beams", "window"):
            self._require_positive(name)
        for name in ("length", "target_length"):
            value = getattr(self, name)
            self._require(name, value is None or value >= 1, "must be at least 1, or None for the model's")
        scored = self.report_examples
        self._require("report_examples", scored is None or scored >= 1, "must be at least 1, or None for all")
        once = None in (self.length, parse_reader(self.reader).length)
        self._require("length", once, f"is given twice, also by reader {self.reader}: leave one out")
        self._require("no_repeat_ngram_size", self.no_repeat_ngram_size >= 0, "must not be negative")
        is_whole = not any("\ud800" <= one <= "\udfff" for one in self.source_prefix)
        self._require("source_prefix", is_whole, "has half of a surrogate pair without the other")
        self._require("label_smoothing", 0 <= self.label_smoothing < 1, "must be in [0, 1)")
        if self.modality is not None:
            parse_modality(self.modality)
        weighs = self.positive_weight is None or self.positive_weight > 0
        self._require("positive_weight", weighs, "must be positive, or None for the task's")
        if self.pooling is not None:
            self._require_one_of("pooling", Pooling)
        if self.native_window is not None:
            self._require_one_of("native_window", NativeWindow)
            self._require("native_window", self.pattern is not None, "needs a pattern")
        if self.positions is not None:
            self._require_one_of("positions", Positions)
            self._require("positions", self.pattern is not None, "needs a pattern")
        if self.lora is not None:
            parse_lora(self.lora)
            self._require("lora", not self.from_scratch, "needs trained weights: leave from_scratch out")
        self._require("epochs", self.epochs > 0, "must be positive")
        self._require("validation_fraction", 0 < self.validation_fraction <= 0.5, "must be above 0 and at most 0.5")


AnyConfig = RunConfig | FineTuneConfig

KINDS: dict[str, type[RunConfig] | type[FineTuneConfig]] = {
    RunConfig.kind: RunConfig,
    FineTuneConfig.kind: FineTuneConfig,
}
"""The configurations by the name that run.json gives them."""


def config_to_dict(config: TrainingConfig) -> dict[str, Any]:
    """The settings as in run.json: those of `dataclasses.asdict`, with every argument of patterns."""
    written = asdict(config)
    if isinstance(config, RunConfig):
        shape = written["model"]
        shape |= {name: in_full(shape[name]) for name in MIXERS if shape[name] is not None}
    return written


def config_from_dict(kind: str, values: Mapping[str, Any]) -> AnyConfig:
    """The inverse of `config_to_dict` for a configuration of this kind, also after a trip through JSON.

    Raises ConfigurationError for an unknown kind or field (and names the nearest one), for a missing field, and for a
    value that cannot work.
    """
    if kind not in KINDS:
        raise ConfigurationError("unknown-kind", f"run configuration: there is no kind {kind!r}.{nearest(kind, KINDS)}")
    made = KINDS[kind]
    _check_names("run configuration", values, made)
    if "model" in values and made is RunConfig:
        _check_names("model configuration", values["model"], ModelConfig)
        given = values["model"].items()
        shape: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given}
        values = {**values, "model": ModelConfig(**shape)}
    return made(**values)


def _check_names(what: str, values: object, kind: type) -> None:
    if not isinstance(values, Mapping):
        raise ConfigurationError("not-a-mapping", f"{what}: must be settings by their names, got {shown(values)}")
    known = [one.name for one in fields(kind)]
    for name in values:
        if name not in known:
            raise ConfigurationError("unknown-field", f"{what}: there is no field {name!r}.{nearest(name, known)}")
