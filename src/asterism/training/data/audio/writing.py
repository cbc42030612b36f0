"""Write sounds as WAV files, and their spectrograms as a picture."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from asterism import presence
from asterism.files import replacing_file
from asterism.training.data.audio.decoding import require_soundfile
from asterism.training.data.audio.mulaw import decode

MOST_DRAWN = 40
"""More sounds than these are written, but not drawn."""

MOST_COLUMNS = 4_000
"""Of a long sound so many windows are drawn, further apart."""

_FLOOR = -90.0
"""The range of the picture: decibels below the loudest sound."""


@dataclass(frozen=True, eq=False)
class Sound:
    """Samples in mu-law, uint8 [samples], what the picture calls them, and how many of them a model was given."""

    codes: np.ndarray
    title: str
    given: int = 0


def write_sounds(sounds: Sequence[Sound], rate: int, output: Path) -> list[Path]:
    """Write each sound as a WAV file of 16 bits, and a picture of all beside them; whole files, and all or none.

    (Who is killed between two of their names leaves some.)

    One sound is called OUTPUT; several are OUTPUT with -0, -1, ... before its ending. The picture is OUTPUT.png.
    """
    require_soundfile()
    import soundfile

    names = [output] if len(sounds) == 1 else [numbered(output, number, len(sounds)) for number in range(len(sounds))]
    with ExitStack() as unfinished:
        for sound, name in zip(sounds, names, strict=True):
            # In memory first: what a disk refuses, libsndfile prints as tracebacks of its callbacks.
            encoded, samples = BytesIO(), np.round(decode(sound.codes) * 32767).astype(np.int16)
            soundfile.write(encoded, samples, rate, subtype="PCM_16", format="WAV")
            unfinished.enter_context(replacing_file(name)).write_bytes(encoded.getbuffer())
        picture = picture_of(output)
        draw_sounds(sounds[:MOST_DRAWN], rate, unfinished.enter_context(replacing_file(picture)))
    return [*names, picture]


def numbered(output: Path, number: int, count: int) -> Path:
    """The name of one of several files, their numbers equally wide, so that names sort as they do."""
    return output.with_name(f"{output.stem}-{number:0{len(str(count - 1))}}{output.suffix}")


def picture_of(output: Path) -> Path:
    """The picture beside a file of sound."""
    return output.with_suffix(".png")


def require_matplotlib() -> None:
    """Raises ConfigurationError if matplotlib is not there."""
    presence.require_matplotlib("audio", "drawing spectrograms")


def draw_sounds(sounds: Sequence[Sound], rate: int, path: Path) -> None:
    """A panel for each sound, all on the same scale of decibels below the loudest; PNG."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = min(len(sounds), 5)
    rows = math.ceil(len(sounds) / columns)
    figure = Figure(figsize=(max(5.0, 2.6 * columns + 0.8), 2.4 * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    spectrograms = [_spectrogram(decode(sound.codes), rate) for sound in sounds]
    loudest = max(float(power.max()) for _, _, power in spectrograms) or 1.0
    grid = figure.subplots(rows, columns, squeeze=False)
    colours = ScalarMappable(Normalize(_FLOOR, 0), "magma")
    for axes, sound, (seconds, hertz, power) in zip(grid.flat, sounds, spectrograms, strict=False):
        decibels = 10 * np.log10(np.maximum(power / loudest, 10 ** (_FLOOR / 10)))
        half = (seconds[1] - seconds[0]) / 2 if len(seconds) > 1 else 1 / rate
        extent = (seconds[0] - half, seconds[-1] + half, float(hertz[0]), float(hertz[-1]))
        axes.imshow(decibels, norm=colours.norm, cmap=colours.cmap, extent=extent, origin="lower", aspect="auto")
        if sound.given:
            axes.axvline(sound.given / rate, color="white", linestyle="--", linewidth=1)
        axes.set_title(sound.title, fontsize=9)
        axes.set_xlim(0, len(sound.codes) / rate)
        axes.set_ylim(0, rate / 2)
        axes.xaxis.set_major_locator(MaxNLocator(3))  # more numbers would run into each other in a row of sounds
    for axes in grid.flat[len(sounds) :]:
        axes.set_visible(False)
    figure.supxlabel("seconds")
    figure.supylabel("Hz")
    figure.colorbar(colours, ax=grid, label="dB below the loudest")
    figure.savefig(path, dpi=110, format="png")


def _spectrogram(samples: np.ndarray, rate: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds [n], frequencies [m] in Hz, and power [m, n] in Hann windows of about 32 ms, a quarter or more apart."""
    from scipy.signal import ShortTimeFFT
    from scipy.signal.windows import hann

    width = 2 ** round(math.log2(max(16, 0.032 * rate)))
    apart = max(width // 4, math.ceil(len(samples) / MOST_COLUMNS))
    analysis = ShortTimeFFT(hann(width, sym=False), apart, rate)
    padded = np.pad(samples, (0, max(0, width - len(samples))))
    return analysis.t(len(padded)), analysis.f, analysis.spectrogram(padded)
