"""asterism finetune: teach a pretrained model a task from a file of examples, and score it.

Tasks of encoders: classify (JSONL or CSV: text, and label or labels; with --modality, pictures or sounds: a folder
for each class), tag (JSONL: tokens, tags; or CoNLL), qa (SQuAD's JSON; or JSONL: context, question, answers). Tasks on
DNA: promoter, multilabel and chromatin (FASTA, JSONL, CSV, or intervals of a --genome).

Tasks of encoder-decoders, which write texts: summarize (JSONL or CSV: document, summary), translate (source, target),
generate (input, output). All three also read two files of lines that belong together: --data SOURCES,TARGETS.

Tasks of causal models, which continue texts: complete (JSONL or CSV: prompt, completion), instruct (JSONL: messages, a
list of role and content). The loss is that of completions, or of the assistant's answers.

The folder of the run gets the model with its tokenizer, the predictions for the validation examples and the curve of
the loss.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from asterism.cli.errors import UsageError
from asterism.cli.settings import (
    EVERY,
    HELP,
    MACHINE,
    OPTIMIZER,
    Group,
    SettingsParser,
    folder_of,
    print_help,
    read_words,
    recorded,
    train_and_tell,
)
from asterism.cli.waiting import waiting
from asterism.training.recipes import FINE_TUNING, fine_tuning
from asterism.training.settings.configuration import FineTuneConfig


def run(argv: Sequence[str]) -> None:
    arguments, config = read_arguments(argv)
    train_and_tell(config, arguments)


GROUPS = (
    Group(
        "task, model and examples",
        ("task", "model", "data", "validation", "length", "reader", "from_scratch"),
        ("validation_fraction", "tokenizer", "modality", "pooling", "max_answer_length"),
    ),
    Group(
        "training",
        ("epochs", "steps", "batch_size", "learning_rate", "seed"),
        ("minutes", *OPTIMIZER, "group_by_length"),
    ),
    Group(
        "tasks that write",
        more=(
            "target_length",
            "num_beams",
            "length_penalty",
            "no_repeat_ngram_size",
            "label_smoothing",
            "source_prefix",
        ),
    ),
    Group(
        "tasks of causal models",
        more=("pattern", "native_window", "positions", "lora", "packing", "chat_template"),
    ),
    Group(
        "tasks on DNA",
        more=(
            "label_table",
            "genome",
            "window",
            "column_groups",
            "positive_weight",
            "augment_strands",
            "average_strands",
        ),
    ),
    Group(
        "evaluation and checkpoints",
        more=(*EVERY, "evaluation_examples", "report_examples"),
    ),
    MACHINE,
)
"""The settings as help shows them."""

OWN = (
    ("RUN", "folder of the run (default: runs/finetune-TASK); --folder RUN is the same"),
    ("--recipe NAME", f"published settings: {', '.join(FINE_TUNING)}"),
    ("--config PATH", "YAML or JSON file of settings"),
    ("--resume", "continue the run in RUN with its settings"),
    ("--json", "print one JSON document instead of text"),
    ("-h, --help", "print this help"),
    ("--help-all", "print all {settings} settings"),
)


def read_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, FineTuneConfig]:
    """The verb's own arguments and the run's configuration. Raises UsageError, and ConfigurationError for values."""
    run, words = read_words("finetune", argv, FineTuneConfig)
    asked = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    asked.add_argument("--folder")
    asked.add_argument("--recipe")
    asked.add_argument("--resume", action="store_true")
    found, _ = asked.parse_known_args([word for word in words if word not in HELP])
    folder = folder_of(run, found.folder)
    if found.resume and folder is None:
        raise UsageError("resume-needs-folder", "--resume needs RUN: `asterism finetune RUN --resume`")
    if found.resume:
        with waiting("reading the settings"):
            defaults = asdict(recorded(str(folder), FineTuneConfig))
    else:
        defaults = {} if found.recipe is None else fine_tuning(found.recipe)
    parser = _parser(defaults)
    print_help(parser, words, OWN, GROUPS)
    values = parser.parse(words)
    own = {name: values.pop(name) for name in ("folder", "resume", "json", "config", "recipe", "device")}
    config = FineTuneConfig(**values)
    folder = folder_of(run, own["folder"]) or f"runs/finetune-{config.task}"
    return argparse.Namespace(**own | {"folder": folder}), config


def _parser(defaults: dict[str, Any]) -> SettingsParser:
    parser = SettingsParser(
        "finetune",
        "[RUN] --task TASK --model PATH --data PATH [--validation PATH] [--recipe NAME] [--resume]"
        " [--SETTING VALUE ...]",
        __doc__ or "",
        "asterism finetune runs/reviews --task classify --model runs/bigbird-tiny --data reviews.jsonl --epochs 3",
    )
    parser.add_argument("--recipe")
    parser.add_settings(FineTuneConfig, defaults)
    return parser
