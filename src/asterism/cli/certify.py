"""asterism certify: decide which universality theorems hold for a pattern, with witnesses or counterexamples."""

from collections.abc import Sequence

from asterism.cli.output import add_plot, written_whole
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.cli.waiting import waiting
from asterism.theory import Certificate, certify


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    with waiting("certifying"):
        certificate = certify(arguments.pattern, arguments.length)
    with waiting("checking the witnesses"):
        checked = certificate.check() if arguments.check else []
    if arguments.plot:
        from asterism.theory.certificates.picture import draw_reach  # needs matplotlib

        with waiting("drawing"), written_whole(arguments.plot) as unfinished:
            draw_reach(certificate, unfinished)
    with waiting("comparing with a random graph"):
        if arguments.json:
            record = certificate.summary() | ({"checked": checked} if arguments.check else {})
        else:
            lines = [certificate.explain(), "", *_small_world(certificate), *[f"checked  {line}" for line in checked]]
    if arguments.json:
        print_json(record)
    else:
        print("\n".join(lines))


def _small_world(certificate: Certificate) -> list[str]:
    """A table that compares the union of the patterns with a random graph and a ring."""
    world = certificate.small_world
    columns = (world.pattern, world.random, world.ring)
    rows = {
        "average path length": [_number(column.path_length) for column in columns],
        "pairs connected": [f"{column.connected:.2%}" for column in columns],
        "clustering": [_number(column.clustering) for column in columns],
        "spectral gap": [_number(column.spectral_gap) for column in columns],
    }
    about = f"undirected, {world.pattern.degree:,.1f} neighbours per token"
    if world.pattern.sample < certificate.n:
        about += f"; paths and clustering from {world.pattern.sample} tokens drawn at random"
    head = f"{'':<20}{'pattern':>12}{'random graph':>14}{'ring':>12}"
    return [about, head, *(f"{name:<20}{a:>12}{b:>14}{c:>12}" for name, (a, b, c) in rows.items())]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _parser() -> Parser:
    parser = Parser("certify", __doc__ or "", 'asterism certify "star() | window(1, 1)" -n 64 --plot reach.png')
    parser.add_argument(
        "pattern", metavar="PATTERN", help='a pattern, or a schedule such as "interleave(blocks(8), columns(8))"'
    )
    parser.add_argument(
        "-n", "--length", type=whole_number(1), required=True, metavar="N", help="tokens of the sequence"
    )
    parser.add_argument("--check", action="store_true", help="check every witness against the pattern, pair by pair")
    add_plot(parser, "which tokens are connected after how many layers")
    return parser
