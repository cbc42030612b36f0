"""asterism predict: add the predictions of a fine-tuned model to the examples of a file.

The input depends on the task of the run: documents (JSONL or CSV: text); sequences (FASTA; JSONL or CSV: sequence;
intervals); files (a folder; JSONL or CSV: file); words to tag (JSONL: tokens; or CoNLL); questions (JSONL: context,
question; or SQuAD's JSON); source texts (JSONL or CSV: document, source, input or prompt; or lines of text);
conversations (JSONL: messages). Labels may be there.

The output has the lines of the input in their order. JSONL and CSV get fields or columns whose names begin with
"predicted_"; CoNLL and lines of text get the answer as the last column; SQuAD's JSON, FASTA, intervals and folders
become JSONL.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from asterism import training
from asterism.cli.errors import UsageError
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.cli.processes import print_how_to_resume
from asterism.cli.waiting import waiting
from asterism.errors import DataError
from asterism.presence import require_data, require_run
from asterism.training.data.records.formats import FORMATS
from asterism.training.readers.text import MEANING


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    if arguments.output is None:
        for flag, given in (("--resume", arguments.resume), ("--json", arguments.json)):
            if given:
                raise UsageError("flag-needs-output", f"{flag} needs --output: without it the predictions go to stdout")
    require_run(Path(arguments.run))
    if arguments.data != "-":
        require_data(arguments.data)
    with waiting("loading PyTorch and transformers"):
        from asterism.training.run.device import computing_on

        predict_file = training.predict_file
    try:
        with computing_on(arguments.device):
            report = predict_file(
                arguments.run,
                arguments.data,
                output=arguments.output,
                format=arguments.format,
                batch_size=arguments.batch_size,
                reader=arguments.reader,
                resume=arguments.resume,
                score=arguments.score,
            )
    except (KeyboardInterrupt, DataError):
        print_how_to_resume("predict", argv, arguments.output)
        raise
    print(report, file=sys.stderr)
    if arguments.json:
        print_json(asdict(report))


def _parser() -> Parser:
    parser = Parser("predict", __doc__ or "", "asterism predict runs/reviews --data new.csv --output predicted.csv")
    parser.add_argument("run", metavar="RUN", help="folder of a fine-tuned run")
    parser.add_argument("--data", metavar="PATH", required=True, help="file of examples; - is standard input")
    parser.add_argument("--format", choices=list(FORMATS), help="format of the data (default: by the suffix)")
    parser.add_argument("--output", metavar="PATH", help="new file (default: standard output)")
    parser.add_argument("--resume", action="store_true", help="continue an unfinished output")
    parser.add_argument(
        "--batch-size", type=whole_number(1), metavar="N", help="examples per batch (default: as in training)"
    )
    parser.add_argument("--reader", metavar="TEXT", help=f"{MEANING} (default: as in training)")
    parser.add_argument(
        "--score",
        action="store_true",
        help="also score the predictions, and baselines without a model; every example must have labels",
    )
    parser.add_device()
    return parser
