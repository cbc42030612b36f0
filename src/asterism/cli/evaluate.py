"""asterism evaluate: score the model of a run on data that it has not seen.

Models of bytes are scored in bits per byte, masked language models in nats per masked token, fine-tuned models by the
scores of their task.

With --ruler, a causal model answers questions about long made-up texts: a run that predicts the next byte, or the
folder of a model of transformers. Each task is scored at each length by the recall of its answers.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asterism import training
from asterism.cli.errors import UsageError
from asterism.cli.output import output_file
from asterism.cli.parser import Parser, add_dense_exchange, print_json, whole_number
from asterism.cli.processes import is_follower
from asterism.cli.waiting import waiting
from asterism.presence import require_data, require_model, require_run
from asterism.system import launched
from asterism.training.data.corpora.splits import SPLITS
from asterism.training.readers.text import MEANING

_OF_RULER: dict[str, Any] = {
    "lengths": [4096],
    "samples": 50,
    "seed": 0,
    "pattern": None,
    "native_window": None,
    "positions": None,
    "record": None,
    "resume": False,
}
"""What only --ruler takes, with its defaults: None or False is what a flag has that was not given."""


def run(argv: Sequence[str]) -> None:
    parser = _parser()
    options, as_json = parser.options(argv)
    given = {name: value for name in _OF_RULER if (value := options.pop(name)) is not None and value is not False}
    tasks = options.pop("ruler")
    if tasks is not None:
        others = [
            name for name in options if name not in ("run", "device") and options[name] != parser.get_default(name)
        ]
        if others:
            raise UsageError("flag-not-for-ruler", f"--{others[0].replace('_', '-')} is not for --ruler; leave it out")
        _ask(argv, options, tasks, {**_OF_RULER, **given}, as_json)
        return
    if given:
        raise UsageError("flag-needs-ruler", f"--{next(iter(given)).replace('_', '-')} needs --ruler TASK")
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


def _ask(argv: Sequence[str], where: dict[str, Any], tasks: list[str], how: dict[str, Any], as_json: bool) -> None:
    """Score a causal model on the tasks of RULER."""
    if launched() > 1:
        raise UsageError(
            "one-process-only", f"--ruler is the work of one process, and WORLD_SIZE is {launched()}: use no launcher"
        )
    if how["resume"] and how["record"] is None:
        raise UsageError("flag-needs-record", "--resume needs --record, the file to resume")
    require_model(Path(where["run"]), "evaluate")
    with waiting("loading PyTorch and transformers"):
        from asterism.evaluation import evaluate_ruler, open_causal
        from asterism.training.run.device import computing_on
    pattern = {name: how.pop(name) for name in ("pattern", "native_window", "positions")}
    with computing_on(where["device"]):
        with waiting("loading the model"):
            model = open_causal(where["run"], **pattern)
        try:
            scores = evaluate_ruler(model, tasks, **how)
        except KeyboardInterrupt:
            if how["record"] is not None and how["record"].exists():
                words = [word for word in argv if word != "--resume"]
                print(f"resume with: asterism evaluate {shlex.join([*words, '--resume'])}", file=sys.stderr)
            raise
    if as_json:
        print_json(scores.as_json())
    else:
        print(scores)


def _parser() -> Parser:
    parser = Parser("evaluate", __doc__ or "", "asterism evaluate runs/bytes-small --minimum-context 0 512")
    parser.add_argument("run", metavar="RUN", help="folder of the run; with --ruler also that of a model")
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
    _add_ruler(parser)
    parser.add_device()
    return parser


def _add_ruler(parser: Parser) -> None:
    meaning = (
        "answer questions about made-up texts: niah_single, niah_multikey, niah_multivalue, niah_multiquery (needles),"
        " vt (variables), cwe, fwe (words), niah or all"
    )
    parser.add_argument("--ruler", nargs="+", metavar="TASK", help=meaning)
    parser.add_argument(
        "--lengths",
        type=whole_number(1),
        nargs="+",
        metavar="N",
        help="with --ruler: tokens of a prompt and the room for its answer (default: 4096)",
    )
    parser.add_argument(
        "--samples", type=whole_number(1), metavar="N", help="with --ruler: prompts per task and length (default: 50)"
    )
    parser.add_argument(
        "--seed", type=whole_number(0), metavar="N", help="with --ruler: decides the texts (default: 0)"
    )
    parser.add_argument(
        "--pattern", metavar="PATTERN", help="with --ruler: give a model of transformers this pattern, such as native"
    )
    parser.add_argument(
        "--native-window",
        choices=("intersect", "replace"),
        help="with --pattern, for a model with windows: what becomes of them",
    )
    parser.add_argument(
        "--positions",
        choices=("original", "cache"),
        help="with --pattern: where keys of sinks(...) stand to a rotary model (default: original)",
    )
    parser.add_argument(
        "--record", type=output_file(".json"), metavar="FILE.json", help="with --ruler: also keep each finished score"
    )
    parser.add_argument("--resume", action="store_true", help="continue an unfinished record")
