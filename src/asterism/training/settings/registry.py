"""Objectives and tasks by name. The classes behind the names are imported at first use.

So a configuration can be checked against the names, and the command line can list them, without importing torch.
"""

from typing import Any, NamedTuple, NoReturn

from asterism.errors import ConfigurationError, nearest
from asterism.lazy import imported

_OBJECTIVES, _TASKS = "asterism.training.objectives", "asterism.training.tasks.kinds"


class Entry(NamedTuple):
    """One line of a registry.

    place             module and name: "asterism.training.objectives.causal:CausalTokens"
    settings          the settings of a run that it reads and that not all of its kind do
    kind              the kind of run that may name it
    shortest_context  how many tokens a sequence needs at least
    recipe            the recipe that stands for it when none is named
    version           raised where it makes other tokens or rows of the same files than it made before
    """

    place: str
    settings: tuple[str, ...] = ()
    kind: str = "train"
    shortest_context: int = 1
    recipe: str = ""
    version: int = 1


class Registry(dict[str, Entry]):
    """Entries by name; `load` imports the object of one. Raises ConfigurationError for an unknown name."""

    def __missing__(self, name: str) -> NoReturn:
        raise ConfigurationError("unknown-name", f"there is no {name!r}.{nearest(name, self)} Known: {', '.join(self)}")

    def load(self, name: str) -> Any:
        """The object of `name`: the class of an objective, or the kind of a task."""
        return imported(self[name].place)

    def names(self, kind: str) -> list[str]:
        """The names that this kind of run may use."""
        return [name for name, entry in self.items() if entry.kind == kind]

    def readers(self, setting: str) -> list[str]:
        """The names of the entries that read a setting which not all of them read."""
        return [name for name, entry in self.items() if setting in entry.settings]

    def foreign(self, name: str) -> list[str]:
        """The settings that other entries read and `name` does not."""
        return sorted({setting for entry in self.values() for setting in entry.settings} - set(self[name].settings))


OBJECTIVES = Registry(
    causal=Entry(
        f"{_OBJECTIVES}.causal:CausalTokens", settings=("modality", "record_length", "tokenizer"), recipe="bytes-small"
    ),
    mlm=Entry(
        f"{_OBJECTIVES}.masked:MaskedTokens",
        settings=("modality", "tokenizer", "next_sentence"),
        shortest_context=16,
        recipe="bigbird-tiny",
    ),
    prefix_lm=Entry(
        f"{_OBJECTIVES}.prefix:PrefixTokens", settings=("modality", "record_length", "tokenizer"), recipe="bytes-small"
    ),
    span_corruption=Entry(
        f"{_OBJECTIVES}.span_corruption:SpanCorruption",
        settings=("tokenizer",),
        shortest_context=16,
        recipe="span-corruption-tiny",
    ),
    gap_sentences=Entry(
        f"{_OBJECTIVES}.gap_sentences:GapSentences",
        settings=("tokenizer", "target_length", "kept_sentences"),
        shortest_context=16,
        recipe="gap-sentences-tiny",
    ),
    labelled=Entry(f"{_OBJECTIVES}.labelled:Labelled", kind="finetune"),
)
"""The objectives, by their name in the configuration of a run: what a model is trained on and judged by."""

_WRITING = (
    "target_length",
    "num_beams",
    "length_penalty",
    "no_repeat_ngram_size",
    "label_smoothing",
    "source_prefix",
)
_CONTINUING = (
    "target_length",
    "num_beams",
    "length_penalty",
    "no_repeat_ngram_size",
    "pattern",
    "native_window",
    "positions",
    "packing",
    "lora",
)
_SEQUENCES = ("pooling", "label_table", "augment_strands", "average_strands", "positive_weight", "genome", "window")

TASKS = Registry(
    classify=Entry(f"{_TASKS}.classification:CLASSIFICATION", settings=("pooling", "modality"), kind="finetune"),
    tag=Entry(f"{_TASKS}.tagging:TAGGING", kind="finetune"),
    qa=Entry(f"{_TASKS}.answering:ANSWERING", settings=("max_answer_length",), kind="finetune"),
    multilabel=Entry(f"{_TASKS}.multilabel:MULTILABEL", settings=(*_SEQUENCES, "column_groups"), kind="finetune"),
    promoter=Entry(f"{_TASKS}.promoter:PROMOTER", settings=_SEQUENCES, kind="finetune"),
    chromatin=Entry(f"{_TASKS}.chromatin:CHROMATIN", settings=(*_SEQUENCES, "column_groups"), kind="finetune"),
    summarize=Entry(f"{_TASKS}.summarization:SUMMARIZATION", settings=_WRITING, kind="finetune"),
    translate=Entry(f"{_TASKS}.translation:TRANSLATION", settings=_WRITING, kind="finetune"),
    generate=Entry(f"{_TASKS}.generation:GENERATION", settings=_WRITING, kind="finetune"),
    complete=Entry(f"{_TASKS}.completion:COMPLETION", settings=_CONTINUING, kind="finetune"),
    instruct=Entry(f"{_TASKS}.instruction:INSTRUCTION", settings=(*_CONTINUING, "chat_template"), kind="finetune"),
)
"""The tasks of fine-tuning, by their name in `FineTuneConfig.task`."""

FILE_TASKS = {"classify": f"{_TASKS}.file_classification:FILE_CLASSIFICATION"}
"""The place of a task for files of a modality, by the name of the same task for texts."""
