"""asterism search: find the pattern that a task deserves at equal cost.

Small models are trained on TASK, each with another pattern, and all at the same cost of attention: local windows,
unions in the manner of BigBird, blocks of keys chosen by content, and others that are drawn by the seed, also ones that
differ by layer and by head. Each rung of successive halving keeps the better ones and trains them longer. Dense
attention is trained next to them.

TASK is `recall` (which value had this key?), `needles` (a capital and a digit in a haystack), or the path of a text,
whose next byte is predicted. The same command continues a search that was stopped. The folder gets record.json,
frontier.svg and the models.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from asterism.cli.output import say
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.cli.waiting import waiting
from asterism.presence import require_matplotlib
from asterism.search import SearchSettings, draw_frontier, table
from asterism.search.record import PICTURE


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    require_matplotlib("plot", "the plot of a search")
    given = {one.name: getattr(arguments, one.name) for one in fields(SearchSettings)}
    settings = SearchSettings(**{**given, "budgets": tuple(given["budgets"])})
    folder = arguments.output or Path("runs") / f"search-{Path(settings.task).stem or 'text'}"
    with waiting("loading PyTorch and transformers"):
        from asterism.search import search
    with waiting("searching"):
        record = search(settings, folder, say)
        draw_frontier(record, folder / PICTURE)
    if arguments.json:
        print_json(record)
    else:
        print(table(record))


def _parser() -> Parser:
    parser = Parser(
        "search", __doc__ or "", "asterism search recall --budget flops=50% --length 64 --candidates 4 --steps 60"
    )
    defaults = {one.name: one.default for one in fields(SearchSettings)}
    parser.add_argument("task", metavar="TASK", help="recall, needles, or the path of a text (a file or a folder)")
    parser.add_argument(
        "--budget",
        dest="budgets",
        nargs="+",
        default=defaults["budgets"],
        metavar="COST",
        help="flops=25%% (of causal dense attention) or keys=64 (per query), or several, which give a frontier"
        " (default: flops=25%%)",
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder to write (default: runs/search-TASK)")
    for name, least, meaning in _NUMBERS:
        default = defaults[name]
        shown = "as many as leave several candidates on the last one" if default is None else default
        flag, meaning = f"--{name.replace('_', '-')}", f"{meaning} (default: {shown})"
        parser.add_argument(flag, type=whole_number(least), default=default, metavar="N", help=meaning)
    rate = defaults["learning_rate"]
    meaning = f"peak of the learning rate (default: {rate})"
    parser.add_argument("--learning-rate", type=float, default=rate, metavar="X", help=meaning)
    return parser


_NUMBERS = (
    ("length", 1, "bytes of an example"),
    ("candidates", 1, "patterns of each budget, next to dense attention"),
    ("steps", 1, "steps of training on the last rung"),
    ("eta", 2, "each rung keeps one candidate in N, and trains it N times as long"),
    ("rungs", 1, "rungs of halving; 1 trains all to the end"),
    ("seeds", 1, "trainings of each candidate of the last rung"),
    ("seed", 0, "decides candidates, examples and weights"),
    ("layers", 1, "layers of the models"),
    ("width", 1, "width of the models"),
    ("heads", 1, "heads of the models"),
    ("batch", 1, "examples of a step"),
    ("held_out", 1, "examples that the loss is measured on"),
)
