"""asterism evaluate: bits per byte, or nats per masked token, of a trained model on data it has not seen."""

from collections.abc import Sequence
from dataclasses import asdict

from asterism import training
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.training.data.corpus import SPLITS


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    result = training.evaluate(
        arguments.run,
        data=arguments.data,
        split=arguments.split,
        minimum_context=arguments.minimum_context,
        limit=arguments.limit,
    )
    if arguments.json:
        print_json({"run": arguments.run, **asdict(result)})
    else:
        print(result)


def _parser() -> Parser:
    parser = Parser("evaluate", __doc__ or "", "asterism evaluate runs/bytes-small --minimum-context 0 512")
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--data", metavar="PATH", help="a file or folder (default: what the run was trained on)")
    parser.add_argument("--split", choices=SPLITS, default="validation", help="which split (default validation)")
    parser.add_argument("--limit", type=whole_number(1), metavar="BYTES", help="score only the first so many bytes")
    parser.add_argument(
        "--minimum-context",
        type=whole_number(0),
        nargs="+",
        default=[0],
        metavar="M",
        help="every scored byte has at least M bytes before it in its window; one score for each M (default 0)",
    )
    return parser
