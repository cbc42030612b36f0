"""asterism predict: what a fine-tuned model says about examples, the same lines with predictions behind.

In, by the run's task: documents (JSONL or CSV: text), sequences (FASTA; JSONL or CSV: sequence; intervals), files (a
folder; JSONL or CSV: file), words to tag (JSONL: tokens; or CoNLL), questions (JSONL: context, question; or SQuAD's
JSON), texts to write others for (JSONL or CSV: document, source or input; or lines of text). Out, in order: every line
as it was, with fields or columns added, whose names begin with "predicted_"; CoNLL and lines of text with the answer as
the last column; SQuAD's JSON, FASTA, intervals and folders as JSONL. Labels may be there.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from asterism import training
from asterism.cli.parser import Parser, UsageError, print_json, whole_number
from asterism.cli.processes import print_how_to_resume
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
    try:
        report = training.predict_file(
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
    parser.add_argument("run", metavar="RUN", help="the folder of a fine-tuned run")
    parser.add_argument("--data", metavar="PATH", required=True, help="a file of examples; - is standard input")
    parser.add_argument("--format", choices=list(FORMATS), help="what the data are (default: by the name's suffix)")
    parser.add_argument("--output", metavar="PATH", help="a file that is not there yet (default: standard output)")
    parser.add_argument("--resume", action="store_true", help="resume an output that is not finished")
    parser.add_argument(
        "--batch-size", type=whole_number(1), metavar="N", help="examples asked at once (default: as the run)"
    )
    parser.add_argument("--reader", metavar="TEXT", help=f"{MEANING} (default: as in training)")
    parser.add_argument("--score", action="store_true", help="also score the predictions: all examples have labels")
    return parser
