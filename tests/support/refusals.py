"""What is refused: an error by its class, its code, and the values that its message names, whatever its words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from asterism.errors import AsterismError


@contextmanager
def refusing(
    error: type[AsterismError] | tuple[type[AsterismError], ...], code: str, *values: str
) -> Iterator[pytest.ExceptionInfo[AsterismError]]:
    """Within the body an error of this class and code is raised, and its message names these values."""
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    assert caught.value.code == code, f"{caught.value.code}: {message}"
    assert all(value in message for value in values), message
