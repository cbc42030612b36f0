"""asterism finetune: teach a pretrained model a task from a file of examples, and score it.

Tasks of encoders: classify (JSONL or CSV: text, and label or labels; with a --modality, pictures or sounds: a folder
for each class), tag (JSONL: tokens, tags; or CoNLL), qa (SQuAD's JSON; or JSONL: context, question, answers); of bases,
promoter, multilabel and chromatin (FASTA, JSONL, CSV, or intervals of a --genome). Tasks of encoder-decoders, which
write texts: summarize (JSONL or CSV: document, summary), translate (source, target), generate (input, output); or all
three: two files of lines that belong together, --data SOURCES,TARGETS. A --recipe has the settings that encoder-
decoders were published with; a file and flags override them. The run folder gets the model with its tokenizer, the
predictions for the validation examples and the curve of the loss.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from asterism.cli.parser import UsageError
from asterism.cli.settings import SettingsParser, recorded, train_and_tell, underscored
from asterism.training.recipes import FINE_TUNING, fine_tuning
from asterism.training.settings.configuration import FineTuneConfig


def run(argv: Sequence[str]) -> None:
    folder, resume, as_json, config = read_arguments(argv)
    train_and_tell(config, folder, resume=resume, as_json=as_json)


def read_arguments(argv: Sequence[str]) -> tuple[str, bool, bool, FineTuneConfig]:
    """The run folder, whether to resume it, whether to print JSON, and the configuration of the run."""
    words = [underscored(word) for word in argv]
    asked = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    asked.add_argument("--folder")
    asked.add_argument("--recipe")
    asked.add_argument("--resume", action="store_true")
    found, _ = asked.parse_known_args(words)
    if found.resume and found.folder is None:
        raise UsageError("resume-needs-folder", "--resume needs --folder: which run is to go on?")
    if found.resume:
        defaults = asdict(recorded(found.folder, FineTuneConfig))
    else:
        defaults = {} if found.recipe is None else fine_tuning(found.recipe)
    values = _parser(defaults).parse(words)
    folder, resume, as_json, *_ = (values.pop(name) for name in ("folder", "resume", "json", "config", "recipe"))
    config = FineTuneConfig(**values)
    return folder or f"runs/finetune-{config.task}", resume, as_json, config


def _parser(defaults: dict[str, Any]) -> SettingsParser:
    parser = SettingsParser(
        "finetune",
        "--task TASK --model PATH --data PATH [--validation PATH] [--recipe NAME] [--folder RUN] [--resume]"
        " [SETTING ...]",
        __doc__ or "",
        "asterism finetune --task classify --model runs/bigbird-tiny --data reviews.jsonl --epochs 3",
    )
    parser.add_argument("--folder", metavar="RUN", help="where the run is written (default: runs/finetune-TASK)")
    parser.add_argument("--recipe", metavar="NAME", help=f"published settings: {', '.join(FINE_TUNING)}")
    parser.add_argument("--resume", action="store_true", help="resume the run in the folder, with its settings")
    parser.add_settings(FineTuneConfig, {"FineTuneConfig": "settings of the run"}, defaults)
    return parser
