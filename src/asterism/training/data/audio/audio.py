"""Recordings of any length, rate and number of channels, as sequences of samples in 8-bit mu-law."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asterism.calls import is_whole
from asterism.errors import CheckpointError
from asterism.training.data.audio.baselines import flac_bits, order2_bits
from asterism.training.data.audio.clips import AudioSplits, refused
from asterism.training.data.audio.decoding import RATES, inspect, read_codes, require_soundfile
from asterism.training.data.audio.writing import (
    Sound,
    draw_sounds,
    numbered,
    picture_of,
    require_matplotlib,
    write_sounds,
)
from asterism.training.data.corpora.modality import Modality, data_uri
from asterism.training.data.corpora.splits import Split, Splits

LONGEST_PROMPT = 2**22
"""Samples of a file that is continued: six minutes at 12,000 per second."""

LONGEST_SAMPLE = 2**16
"""A run keeps no longer sounds for people to hear."""

MOST_CLASSES = 65_536


class Audio(Modality):
    """Recordings (WAV, FLAC, Ogg) in one channel at `rate` samples per second; with `classes`, folders are classes."""

    name, unit = "audio", "samples"
    outputs = (".wav",)
    samples_at_the_end = True
    most_drawn = 1024

    def __init__(self, rate: int = 12_000, classes: int | None = None) -> None:
        least, most = RATES
        self._require("rate", rate, is_whole(rate, least, most), f"must be a whole number from {least:,} to {most:,}")
        holds = classes is None or is_whole(classes, 1, MOST_CLASSES)
        self._require("classes", classes, holds, f"must be from 1 to {MOST_CLASSES:,}")
        self.rate, self.classes = rate, classes

    def splits(self, path: str | None) -> AudioSplits:
        """The recordings of a folder, each a piece. Every file is opened and hashed; samples are decoded later."""
        require_soundfile()
        return AudioSplits(path, self.rate, self.classes, str(self))

    def baselines(self, splits: Splits, split: Split, first: int, stop: int) -> dict[str, float]:
        """Bits of FLAC on the same codes, and of a model that counts the sample after two others in the training
        clips.
        """
        pieces = splits.pieces(split)
        return {
            "flac": flac_bits(pieces, first, stop, self.rate),
            "order-2": order2_bits(splits.pieces("train"), pieces, first, stop),
        }

    def read_prompt(self, path: Path) -> np.ndarray:
        """A recording as training reads it. Raises DataError."""
        require_soundfile()
        try:
            recording = inspect(path)
            if (length := recording.length(self.rate)) > LONGEST_PROMPT:
                raise ValueError(f"has {length:,} samples; a prompt may have at most {LONGEST_PROMPT:,}: cut it")
            return read_codes(recording, self.rate, 0, length)
        except (ValueError, OSError) as error:
            raise refused(path, error, what="prompt") from None

    def write(self, sequences: Sequence[np.ndarray], output: Path) -> list[Path]:
        """Write a WAV file for each sequence, and a picture with all spectrograms next to them."""
        return write_sounds([Sound(codes, str(number)) for number, codes in enumerate(sequences)], self.rate, output)

    def write_completions(
        self,
        originals: Sequence[np.ndarray],
        kept: Sequence[int],
        completions: Sequence[Sequence[np.ndarray]],
        output: Path,
    ) -> list[Path]:
        """Write each original, followed by the completions of its beginning. The picture marks where a completion
        begins.
        """
        sounds: list[Sound] = []
        for original, given, made in zip(originals, kept, completions, strict=True):
            sounds.append(Sound(original, f"{len(sounds)}: original"))
            sounds += [Sound(codes, f"{len(sounds) + number}: continued", given) for number, codes in enumerate(made)]
        return write_sounds(sounds, self.rate, output)

    def samples(self, values: np.ndarray, expected: np.ndarray, drawn: np.ndarray) -> list[dict[str, Any]]:
        """Spectrograms as one PNG; what was drawn, or else expected, also as a WAV file where it is short."""
        kept = len(values) - len(drawn)
        sounds = [Sound(values, "original"), Sound(expected, "each value from those before")]
        if len(drawn):
            sounds.append(Sound(np.concatenate([values[:kept], drawn]), "continued", kept))
        sample: dict[str, Any] = {
            "picture": data_uri("image/png", lambda path: draw_sounds(sounds, self.rate, path), ".png")
        }
        sample["shown"] = [sound.title for sound in sounds]
        if len(values) <= LONGEST_SAMPLE:
            sound = data_uri("audio/wav", lambda path: write_sounds(sounds[-1:], self.rate, path), ".wav")
            sample |= {"sound": sound, "heard": sounds[-1].title}
        return [sample]

    def refuse_output(self, output: Path) -> None:
        """Also refuses an output if its picture, or the first of several files, exists."""
        super().refuse_output(output)
        require_soundfile()
        require_matplotlib()
        first = [numbered(output, 0, count) for count in (2, 11, 101, 1001)]
        for path in (picture_of(output), *first):
            if path.exists():
                raise CheckpointError(
                    "output-exists",
                    f"output: {path} exists, but would be written next to {output}; choose another name",
                )
