"""asterism evaluate: score a trained model, of any kind of run, on data that it has not seen.

Of bytes: bits per byte; of text: nats per masked token; of a fine-tuned model: the scores of its task.
"""

from collections.abc import Sequence
from pathlib import Path

from asterism import training
from asterism.cli.parser import Parser, add_dense_exchange, print_json, whole_number
from asterism.cli.processes import is_follower
from asterism.presence import require_data, require_run
from asterism.training.data.corpora.splits import SPLITS
from asterism.training.readers.text import MEANING


def run(argv: Sequence[str]) -> None:
    options, as_json = _parser().options(argv)
    require_run(Path(options["run"]))
    if options["data"] is not None:
        require_data(options["data"])
    result = training.evaluate(**options)
    if is_follower():
        return
    if as_json:
        print_json({"run": options["run"], **result.as_json()})
    else:
        print(result)


def _parser() -> Parser:
    parser = Parser("evaluate", __doc__ or "", "asterism evaluate runs/bytes-small --minimum-context 0 512")
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--data", metavar="PATH", help="a file or folder (default: what the run held out)")
    parser.add_argument("--split", choices=SPLITS, help="which split of text or bytes (default validation)")
    parser.add_argument(
        "--limit", type=whole_number(1), metavar="N", help="score the first so many bytes or examples only"
    )
    parser.add_argument("--reader", metavar="TEXT", help=f"{MEANING} (default: as in training)")
    parser.add_argument(
        "--minimum-context",
        type=whole_number(0),
        nargs="+",
        default=[0],
        metavar="M",
        help="every scored byte has at least M bytes before it in its window; one score for each M (default 0)",
    )
    parser.add_argument(
        "--parallel",
        default="",
        metavar="TEXT",
        help="how several processes, which a launcher starts, divide the work, such as dp=2,cp=2: dp the rows, cp the"
        " tokens of a row (default: all are dp)",
    )
    add_dense_exchange(parser)
    return parser
