"""The error of a command line that cannot be followed."""

from asterism.errors import AsterismError


class UsageError(AsterismError):
    """The command line asks for something that does not exist or does not fit."""

    exit_code = 2
