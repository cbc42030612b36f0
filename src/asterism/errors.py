"""The errors that Asterism raises.

Every message says what was given, what is allowed, and what to do. Its first line is complete, because the command line
prints only that line. `exit_code` is the status with which the command line ends, and `code` names the cause, for
programs and tests.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class AsterismError(Exception):
    """Base of every error raised on purpose by this library.

    It has a code and a message. The code names the cause in words joined by hyphens, and does not change when the
    message is reworded.
    """

    exit_code = 1

    # There is no __init__: torch.compile traces what raises an error, and knows no classes of errors that have one.

    @property
    def code(self) -> str:
        """The cause of the error, for programs."""
        return str(self.args[0])

    def __str__(self) -> str:
        return str(self.args[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies, and other processes, get the error as it is, whatever the arguments of its class.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class PatternError(AsterismError, ValueError):
    """A pattern, its text form, or its use is wrong."""

    exit_code = 2


class ConfigurationError(AsterismError, ValueError):
    """A model or run is configured in a way that cannot work."""

    exit_code = 2


class MachineError(AsterismError, ValueError):
    """A Turing machine, its text form, its input, or its run is wrong."""

    exit_code = 2


class DataError(AsterismError):
    """Data are missing, unreadable, empty or too short."""

    exit_code = 3


class CheckpointError(AsterismError):
    """A run folder or checkpoint is missing, damaged, or would be overwritten."""

    exit_code = 4


class NonFiniteLossError(AsterismError):
    """The loss or a gradient is not finite; the optimiser did not step."""

    exit_code = 5


class KernelError(AsterismError, ValueError):
    """The tensors given to a kernel do not fit each other, the pattern, or the implementation."""


class CertificateError(AsterismError):
    """A witness of a certificate does not hold."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """The clause " Did you mean 'x'?" for the choice most like `name`, or an empty string."""
    matches = difflib.get_close_matches(name, list(choices), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def shown(value: object) -> str:
    """The value as a message names it: its repr, shortened, because what is refused may be megabytes."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write numbers of thousands of digits
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
