"""asterism promises: check that models keep their promises, with the same checks for ours and Hugging Face's.

Every check runs a small model with random weights and compares two of its answers. The last check measures peak memory
in a separate process. The exit code is 1 if one of our models breaks a promise.
"""

from collections.abc import Sequence

from asterism.cli.output import add_record, say, write_record
from asterism.cli.parser import Parser, print_json
from asterism.cli.waiting import waiting
from asterism.errors import AsterismError


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    with waiting("loading PyTorch and transformers"):
        from asterism.promises import broken, check_promises, table
    with waiting("checking"):
        record = check_promises(say)
    if arguments.record:
        write_record(arguments.record, record)
    if arguments.json:
        print_json(record)
    else:
        print(table(record))
    if ours := broken(record):
        raise AsterismError("promises-broken", f"broken promises of our models: {'; '.join(ours)}")


def _parser() -> Parser:
    parser = Parser("promises", __doc__ or "", "asterism promises --record promises.json")
    add_record(parser, "with the machine and the versions of all libraries")
    return parser
