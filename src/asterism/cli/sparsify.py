"""asterism sparsify: find out which layers and heads of a dense model need all keys, and make the rest sparse.

MODEL is the folder of a causal model of transformers; its weights stay. Every layer and key head gets a price: how much
the loss on the texts rises when it reads a few sinks and a window only. A budget is then spent where it saves most, and
exchanges are tried. The table compares the schedule, on texts that had no say, with others of the same cost: one window
for all layers, every k-th layer dense, whole layers by their loss.

Everything measured is kept in the folder of --output. A stopped run goes on from there, and another budget for the same
model and texts needs only its exchanges and comparisons.
"""

from collections.abc import Sequence
from pathlib import Path

from asterism.cli.output import add_plot, say, written_whole
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.cli.waiting import waiting
from asterism.errors import ConfigurationError
from asterism.files import write_text
from asterism.presence import require_data, require_model

SCHEDULE = "schedule.txt"
"""The newest schedule, in the folder of the record."""


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    require_model(Path(arguments.model), "MODEL")
    require_data(arguments.data)
    with waiting("loading PyTorch and transformers"):
        from asterism.evaluation import open_causal
        from asterism.sparsify import parse_budget, read_texts, sparsify, write_model
        from asterism.training.run.device import computing_on
        from asterism.training.run.folder import RunFolder
    budget = parse_budget(arguments.budget)
    if (Path(arguments.model) / "run.json").exists():
        raise ConfigurationError(
            "sparsify-a-run", f"{arguments.model} is a run, which has its own patterns: give a model of transformers"
        )
    if arguments.apply is not None:
        RunFolder(arguments.apply).refuse_existing()
    with computing_on(arguments.device):
        with waiting("loading the model"):
            causal = open_causal(arguments.model)
        with waiting("reading the texts"):
            counts = arguments.documents, arguments.held_out
            texts = read_texts(causal, arguments.data, arguments.length, counts, arguments.seed)
        output = arguments.output or Path(f"sparsified-{Path(arguments.model).resolve().name}")
        with waiting("measuring"):
            result = sparsify(causal, texts, budget, output, window=arguments.window, trials=arguments.trials, tell=say)
        if arguments.apply is not None:
            with waiting("writing the model"):
                write_model(causal, arguments.apply)
    write_text(output / SCHEDULE, result.schedule + "\n")
    certified = _certified(result.schedule, arguments.length, len(result.choice))
    if arguments.plot:
        from asterism.sparsify.picture import draw  # needs matplotlib

        with waiting("drawing"), written_whole(arguments.plot) as unfinished:
            draw(result, budget, unfinished)
    if arguments.json:
        print_json({**result.as_json(), "reached": certified})
        return
    print(result)
    print(f"\n{_reach(certified)}\n\nthe schedule, as text: {output / SCHEDULE}")
    if arguments.apply is not None:
        print(f"\nsaved in {arguments.apply}")


def _certified(schedule: str, length: int, layers: int) -> list[float]:
    """The share of all earlier tokens that an output depends on after each layer."""
    from asterism.theory import certify

    with waiting("certifying what stays reachable"):
        reached: list[float] = certify(schedule, length).summary()["pairs_reached"]
    every = (length + 1) / (2 * length)
    return [share / every for share in reached[:layers]]


def _reach(shares: Sequence[float]) -> str:
    whole = next((number for number, share in enumerate(shares, start=1) if share >= 1), None)
    first = f"after the first layer a token depends on {shares[0]:.1%} of the tokens before it"
    if whole is None:
        return f"certificate: {first}, after the last one on {shares[-1]:.1%}"
    return f"certificate: {first}, from layer {whole - 1} on (counted from 0) on all of them"


def _parser() -> Parser:
    parser = Parser(
        "sparsify",
        __doc__ or "",
        "asterism sparsify smollm2 --data texts.jsonl --budget keys=25% --length 1024 --apply smollm2-sparse",
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a causal model of transformers, with its tokenizer")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="PATH",
        help="texts: a file, a folder of files, or .jsonl with `text`, or `prompt` and `completion`, in each line",
    )
    parser.add_argument(
        "--budget",
        required=True,
        metavar="TEXT",
        help="keys=512 or keys=25%%: keys that a query reads; cache=40%%: tokens that a cache keeps; flops=25%%:"
        " operations of attention; means over layers and heads, shares of the model as it is",
    )
    parser.add_argument(
        "--length", type=whole_number(16), default=2048, metavar="N", help="tokens of a text (default: 2048)"
    )
    parser.add_argument(
        "--documents", type=whole_number(1), default=4, metavar="N", help="texts to choose by (default: 4)"
    )
    parser.add_argument(
        "--held-out", type=whole_number(1), default=8, metavar="N", help="other texts to compare on (default: 8)"
    )
    parser.add_argument(
        "--window",
        type=whole_number(1),
        default=124,
        metavar="N",
        help="least window; wider ones double it (default: 124)",
    )
    parser.add_argument(
        "--trials", type=whole_number(0), default=64, metavar="N", help="exchanges to try at the end (default: 64)"
    )
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N", help="decides the order of texts (default: 0)"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the record (default: sparsified-MODEL)")
    parser.add_argument("--apply", type=Path, metavar="DIR", help="write the model with its schedule to a new folder")
    add_plot(parser, "the loss of each schedule against its cost, and what each head got")
    parser.add_device()
    return parser
