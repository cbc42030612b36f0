"""asterism promises: do models keep what they promise? The same checks on ours and on Hugging Face's.

Every check runs a small model with random weights and compares two of its answers; the last measures peak memory in a
process of its own. The exit code is 1 if one of our models breaks a promise.
"""

from collections.abc import Sequence

from asterism.cli.output import add_record, say, write_record
from asterism.cli.parser import Parser, print_json
from asterism.errors import AsterismError


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    from asterism.promises import broken, check_promises, table  # takes seconds to import

    record = check_promises(say)
    if arguments.output:
        write_record(arguments.output, record)
    if arguments.json:
        print_json(record)
    else:
        print(table(record))
    if ours := broken(record):
        raise AsterismError("promises-broken", f"broken promises of our models: {'; '.join(ours)}")


def _parser() -> Parser:
    parser = Parser("promises", __doc__ or "", "asterism promises --output promises.json")
    add_record(parser, "with the machine and the versions of all libraries")
    return parser
