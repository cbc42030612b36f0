"""The modality of a corpus: bytes, pictures, sounds or genomes, each read as sequences of 8-bit values.

A modality converts files to values and back. It has a text form, like patterns and readers:
`parse_modality("images(width=32, height=32)")`. The text is one call of the vocabulary, with numbers and text as
arguments; nothing is evaluated. The classes are imported at first use, and their libraries when they first read.
"""

import base64
import inspect
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from asterism.calls import Calls
from asterism.errors import ConfigurationError, shown
from asterism.training.data.corpora.splits import Split, Splits

VOCABULARY = Calls(
    "modality",
    {
        "bytes": "asterism.training.data.corpora.bytes:Bytes",
        "images": "asterism.training.data.images:Images",
        "audio": "asterism.training.data.audio:Audio",
        "genome": "asterism.training.data.genomes:Genome",
    },
    example='"images(width=32, height=32)"',
    parentheses=False,
)
"""Module and class of every modality, by the name that a text calls."""

MEANING = 'content of the files of `data`: "bytes()", "images(width=32, height=32)", "audio(rate=12000)" or "genome()"'
"""The help of the flag."""


class Modality(ABC):
    """Converts files to sequences of 8-bit values, and values to files. Its settings are the arguments of its text.

    name             what a text calls it
    version          raised where it makes other values of the same files than it made before
    unit             what one value is, in the plural
    sequence_length  how many values every piece has; None where pieces differ
    axes             what a piece is an array of, last axis fastest; empty where it is a row
    classes          how many classes the first token of a sequence tells apart; None for models that know of none
    outputs          how the names of files may end that `write` makes; any, if there are none
    is_stream        whether data are one sequence that begins in the middle of things (see Pieces)
    samples_at_the_end  whether a run keeps samples at its end alone, and not at every evaluation: pictures and sounds
    most_drawn       about how many values a model draws for a sample at most

    A sequence begins with a token that is no value: 0, as between files, or 256 + the class of the piece.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    unit: ClassVar[str]
    sequence_length: int | None = None
    axes: tuple[int, ...] = ()
    classes: int | None = None
    outputs: ClassVar[tuple[str, ...]] = ()
    is_stream: bool = False
    samples_at_the_end: ClassVar[bool] = False
    most_drawn: ClassVar[int] = 0

    @property
    def vocabulary_size(self) -> int:
        """The 256 values, and the classes behind them."""
        return 256 + (self.classes or 0)

    @abstractmethod
    def splits(self, path: str | None) -> Splits:
        """Read the corpus at a path. Raises DataError if it is missing, malformed, or larger than the stated limits."""

    def texts(self, path: str | None) -> Splits:
        """Read the corpus at a path as documents."""
        return self.splits(path)

    @abstractmethod
    def baselines(self, splits: Splits, split: Split, first: int, stop: int) -> dict[str, float]:
        """Bits per value that simple models and compressors need for the values first .. stop - 1 of a split.

        Models are counted on the training split.
        """

    @abstractmethod
    def read_prompt(self, path: Path) -> np.ndarray:
        """The values of one file to continue: uint8 [values]. Raises DataError."""

    @abstractmethod
    def write(self, sequences: Sequence[np.ndarray], output: Path) -> list[Path]:
        """Write sequences, uint8 [values] each, as a file for people, whole or not at all. Returns all written files.

        Raises DataError or ConfigurationError if they cannot be written.
        """

    def write_completions(
        self,
        originals: Sequence[np.ndarray],
        kept: Sequence[int],
        completions: Sequence[Sequence[np.ndarray]],
        output: Path,
    ) -> list[Path]:
        """Write completed sequences next to their originals, as `write` does.

        The model read the first kept[i] values of originals[i], uint8 [values]. completions[i] are the complete
        sequences made from them, uint8 [values] each. By default each original is followed by its completions.
        """
        rows = zip(originals, completions, strict=True)
        return self.write([one for original, made in rows for one in (original, *made)], output)

    def samples(self, values: np.ndarray, expected: np.ndarray, drawn: np.ndarray) -> list[dict[str, Any]]:
        """What a run keeps of one sequence for people to see how it learns; by default nothing.

        values    uint8 [values]: the sequence
        expected  uint8 [values]: what the model takes each value for, given the right ones before it
        drawn     uint8 [values]: the end of the sequence as the model draws it; empty where none is drawn
        """
        return []

    def refuse_output(self, output: Path) -> None:
        """Raises ConfigurationError, before any work, if `write` could not write a file of this name."""
        if self.outputs and output.suffix.lower() not in self.outputs:
            raise ConfigurationError(
                "output-suffix",
                f"output: {output}: the name of a file of {self.unit} must end in {_either(self.outputs)}",
            )

    def kept(self, values: int, share: float | None) -> int:
        """The number of values of a sequence that the model gets to continue it, from a share; by default all."""
        return values if share is None else round(share * values)

    def _require(self, argument: str, value: object, holds: bool, rule: str) -> None:
        if not holds:
            raise ConfigurationError("modality-argument", f"modality: {self.name}: {argument}={shown(value)} {rule}")

    def __str__(self) -> str:
        """The text form of this modality; settings with their defaults are left out."""
        parameters = inspect.signature(type(self)).parameters
        given = {name: getattr(self, name) for name, one in parameters.items() if getattr(self, name) != one.default}
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def data_uri(kind: str, write: Callable[[Path], Any], suffix: str) -> str:
    """A file that `write` writes under the name it is given, as a URI that holds it: "data:image/png;base64,..."."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"sample{suffix}")
        write(path)
        return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _either(suffixes: Sequence[str]) -> str:
    return " or ".join((", ".join(suffixes[:-1]), suffixes[-1]) if len(suffixes) > 1 else suffixes)


def parse_modality(text: str) -> Modality:
    """Parse the text of a modality; `parse_modality(str(modality))` equals it.

    Raises ConfigurationError, in one line, for unknown names (and names the nearest known one), wrong arguments, and
    anything that is not such a call.
    """
    modality: Modality = VOCABULARY.parse(text)
    return modality
