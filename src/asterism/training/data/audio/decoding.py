"""One recording as samples: any rate and number of channels in, one channel at one rate out, block by block.

Channels are averaged, and rates changed by scipy's polyphase filter (`resample_poly` as it comes). A block is
decoded together with as much before and behind it as the filter reaches, so its samples equal those of the whole
recording, and no more than a block is ever in memory.
"""

from dataclasses import dataclass
from math import gcd
from pathlib import Path

import numpy as np

from asterism.presence import require_package
from asterism.system import state_of
from asterism.training.data.audio.headers import check_whole
from asterism.training.data.audio.mulaw import encode

RATES = (1_000, 192_000)
"""The lowest and the highest rate, in samples per second, of recordings and of what is made of them."""

MOST_FRAMES = 2**32
"""Longer recordings are refused before they are decoded: a day at 48,000 samples per second."""

SOURCE_BLOCK = 2**20
"""So many samples of a file, all channels together, are decoded at once: 8 MiB in float64."""

BLOCK = 2**18
"""A block has at most so many samples."""

_REACH = 10
"""Half the length of the filter, in samples of the lower rate: what resample_poly takes."""


@dataclass(frozen=True)
class Recording:
    """A file that can be decoded: its length in frames (samples of all channels), its rate, its channels.

    `state` is that of the file when it was inspected; later reads must find it unchanged.
    """

    path: Path
    frames: int
    rate: int
    channels: int
    state: tuple[int, ...]

    def length(self, rate: int) -> int:
        """The number of samples at another rate."""
        up, down = _ratio(self.rate, rate)
        return -(-self.frames * up // down)

    def block(self, rate: int) -> int:
        """How many samples at another rate are decoded at once: those of SOURCE_BLOCK frames, or BLOCK if more."""
        up, down = _ratio(self.rate, rate)
        return max(1, min(BLOCK, SOURCE_BLOCK * up // down))


def inspect(path: Path) -> Recording:
    """Inspect a file. Raises ValueError, with the reason in one line, if it cannot be read to its end.

    Samples are decoded only if they may not be numbers, which happens in files of floating-point samples.
    """
    state = state_of(path)
    check_whole(path)
    require_soundfile()
    import soundfile

    try:
        with soundfile.SoundFile(path) as file:
            recording = Recording(path, file.frames, file.samplerate, file.channels, state)
            is_float = file.subtype in ("FLOAT", "DOUBLE")
            _check(recording)
            file.seek(recording.frames - 1)  # of FLAC, this decodes the last sample, or fails
    except soundfile.SoundFileError as error:
        raise ValueError(f"cannot be decoded: {_reason(error)}") from None
    if is_float:
        step = _frames_at_once(recording)
        for first in range(0, recording.frames, step):
            _mono(recording, first, min(first + step, recording.frames))
    return recording


def read_samples(recording: Recording, rate: int, first: int, stop: int) -> np.ndarray:
    """The samples first .. stop - 1 at a rate: float64 [stop - first]. Raises ValueError for what cannot be decoded."""
    up, down = _ratio(recording.rate, rate)
    if up == down:
        return _mono(recording, first, stop)
    from scipy.signal import resample_poly

    # The filter's phase at the block's first frame must be that at the recording's: a multiple of `down` frames.
    reach = _REACH * max(up, down)
    begin = max(0, (first * down - reach) // up) // down * down
    end = min(recording.frames, ((stop - 1) * down + reach) // up + 1)
    changed = resample_poly(_mono(recording, begin, end), up, down)
    before = begin // down * up
    return changed[first - before : stop - before]


def read_codes(recording: Recording, rate: int, first: int, stop: int) -> np.ndarray:
    """The samples first .. stop - 1 in mu-law: uint8 [stop - first]."""
    return encode(read_samples(recording, rate, first, stop))


def require_soundfile() -> None:
    """Raises ConfigurationError if soundfile is not there."""
    require_package("soundfile", "soundfile", "audio", "reading and writing sound")


def _check(recording: Recording) -> None:
    if recording.frames < 1:
        raise ValueError("has no samples")
    if recording.frames > MOST_FRAMES:
        raise ValueError(f"says it has {recording.frames:,} frames; at most {MOST_FRAMES:,} are read: cut it")
    if not RATES[0] <= recording.rate <= RATES[1]:
        raise ValueError(
            f"has {recording.rate:,} samples per second; {RATES[0]:,} to {RATES[1]:,} are read: convert it"
        )


def _mono(recording: Recording, first: int, stop: int) -> np.ndarray:
    """The frames first .. stop - 1 of a file, channels averaged: float64 [stop - first]."""
    import soundfile

    mono, at = np.empty(stop - first), 0
    try:
        with soundfile.SoundFile(recording.path) as file:
            file.seek(first)
            while at < len(mono):
                read = file.read(min(_frames_at_once(recording), len(mono) - at), dtype="float64", always_2d=True)
                if not len(read) or read.shape[1] != recording.channels:
                    raise ValueError(f"is cut off: frame {first + at:,} is missing, of {recording.frames:,}")
                mono[at : at + len(read)] = read.mean(axis=1)
                at += len(read)
        if state_of(recording.path) != recording.state:
            raise ValueError("has changed since it was first read; start again")
    except (soundfile.SoundFileError, OSError) as error:
        raise ValueError(f"cannot be decoded from frame {first + at:,} on: {_reason(error)}") from None
    if not (finite := np.isfinite(mono)).all():
        place = first + int(np.argmin(finite))
        raise ValueError(f"frame {place:,} ({place / recording.rate:.3f} s) is no finite number")
    return mono


def _frames_at_once(recording: Recording) -> int:
    return max(1, SOURCE_BLOCK // recording.channels)


def _ratio(old: int, new: int) -> tuple[int, int]:
    """The factors by which one rate is raised and then lowered to become another."""
    common = gcd(old, new)
    return new // common, old // common


def _reason(error: Exception) -> str:
    """The message of a decoder in one line, without the path."""
    return " ".join(str(getattr(error, "error_string", error)).split())[:200]
