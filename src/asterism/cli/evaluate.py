"""asterism evaluate: score the model of a run on data that it has not seen.

Models of bytes are scored in bits per byte, masked language models in nats per masked token, fine-tuned models by the
scores of their task.
"""

from collections.abc import Sequence
from pathlib import Path

from asterism import training
from asterism.cli.parser import Parser, add_dense_exchange, print_json, whole_number
from asterism.cli.processes import is_follower
from asterism.cli.waiting import waiting
from asterism.presence import require_data, require_run
from asterism.training.data.corpora.splits import SPLITS
from asterism.training.readers.text import MEANING


def run(argv: Sequence[str]) -> None:
    options, as_json = _parser().options(argv)
    require_run(Path(options["run"]))
    if options["data"] is not None:
        require_data(options["data"])
    with waiting("loading PyTorch and transformers"):
        from asterism.training.run.device import computing_on

        evaluate = training.evaluate
    with computing_on(options.pop("device")):
        result = evaluate(**options)
    if is_follower():
        return
    if as_json:
        print_json({"run": options["run"], **result.as_json()})
    else:
        print(result)


def _parser() -> Parser:
    parser = Parser("evaluate", __doc__ or "", "asterism evaluate runs/bytes-small --minimum-context 0 512")
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--data", metavar="PATH", help="file or folder to score (default: the data that the run held out)"
    )
    parser.add_argument("--split", choices=SPLITS, help="split of text or bytes to score (default: validation)")
    parser.add_argument("--limit", type=whole_number(1), metavar="N", help="score only the first N bytes or examples")
    parser.add_argument("--reader", metavar="TEXT", help=f"{MEANING} (default: as in training)")
    parser.add_argument(
        "--minimum-context",
        type=whole_number(0),
        nargs="+",
        default=[0],
        metavar="M",
        help="score only bytes with at least M bytes before them in their window; one score per M (default: 0)",
    )
    parser.add_argument(
        "--parallel",
        default="",
        metavar="TEXT",
        help="how launched processes share the work, such as dp=2,cp=2: dp processes read different rows, cp processes"
        " share the tokens of a row (default: all are dp)",
    )
    add_dense_exchange(parser)
    parser.add_device()
    return parser
