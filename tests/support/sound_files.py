"""Small recordings that tests make, and recordings that are damaged in every way that was thought of."""

import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import soundfile


def tone(frames: int, rate: int, hertz: float = 220.0, channels: int = 1, seed: int = 0) -> np.ndarray:
    """A tone with some noise, each channel another: float64 [frames, channels]."""
    random = np.random.default_rng(seed)
    time = np.arange(frames)[:, None] / rate
    return 0.5 * np.sin(2 * np.pi * hertz * (1 + np.arange(channels)) * time) + 0.01 * random.standard_normal(
        (frames, channels)
    )


def encoded(samples: np.ndarray, rate: int = 8000, format: str = "WAV", subtype: str | None = None) -> bytes:
    """A recording as a file's bytes."""
    file = BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype)
    return file.getvalue()


def write_folder(folder: Path, classes: int = 2, each: int = 2, frames: int = 900) -> Path:
    """Recordings at 8 kHz in train, validation and test, in a folder for each class."""
    for number, split in enumerate(("train", "validation", "test")):
        for label in range(classes):
            place = folder / split / str(label)
            place.mkdir(parents=True)
            for one in range(each):
                sound = tone(frames + 10 * one, 8000, 200 + 150 * label, seed=100 * number + 10 * label + one)
                soundfile.write(place / f"{one}.wav", sound, 8000)
    return folder


def wav(*chunks: tuple[bytes, bytes], magic: bytes = b"RIFF", form: bytes = b"WAVE") -> bytes:
    """A file of chunks."""
    body = form + b"".join(
        name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in chunks
    )
    return magic + struct.pack("<I", len(body)) + body


def format_chunk(code: int = 1, channels: int = 1, rate: int = 8000, bits: int = 16) -> tuple[bytes, bytes]:
    """What a WAV file says of its samples."""
    width = channels * bits // 8
    return b"fmt ", struct.pack("<HHIIHH", code, channels, rate, (rate * width) % 2**32, width % 2**16, bits)


def patched(content: bytes, at: int, new: bytes) -> bytes:
    """The same bytes with some others at a place."""
    return content[:at] + new + content[at + len(new) :]


def flac_claiming(content: bytes, frames: int) -> bytes:
    """A FLAC file whose header says another length (36 bits, the last of the 8 bytes from 18 on)."""
    (packed,) = struct.unpack_from(">Q", content, 18)
    return patched(content, 18, struct.pack(">Q", packed >> 36 << 36 | frames))


def malformed() -> dict[str, tuple[bytes, str]]:
    """Bytes of files that must be refused, by what is wrong with them, each with a pattern of the reason."""
    samples = tone(2000, 8000)
    sound = encoded(samples)
    flac, ogg = encoded(samples, format="FLAC"), encoded(samples, format="OGG")
    floats = encoded(samples.astype(np.float32), subtype="FLOAT")
    cases: dict[str, tuple[bytes, str]] = {"empty": (b"", "is empty")}
    foreign = {
        "text": b"hello, this is no sound at all",
        "one byte": b"R",
        "png": b"\x89PNG\r\n\x1a\n" + bytes(50),
        "mp3": b"ID3\x04" + bytes(200),
        "zip": b"PK\x03\x04" + bytes(60),
        "gzip": b"\x1f\x8b\x08" + bytes(60),
        "nul": bytes(4096),
        "aiff": b"FORM\0\0\x10\0AIFF" + bytes(100),
        "au": b".snd" + bytes(100),
        "big-endian wav": b"RIFX" + sound[4:],
        "avi": patched(sound, 8, b"AVI "),
        "webp": patched(sound, 8, b"WEBP"),
        "lower case": b"riff" + sound[4:],
        "utf-8 mark": b"\xef\xbb\xbf" + sound,
        "line ends changed": b"\r\n" + sound,
        "flac in capitals": b"FLAC" + flac[4:],
        "ogg in capitals": b"OGGS" + ogg[4:],
    }
    cases |= {f"magic: {name}": (content, "is no WAV, FLAC or Ogg file") for name, content in foreign.items()}
    for left in (12, 20, 30, 36, 43):
        cases[f"wav cut at {left}"] = (sound[:left], "is cut off: it has no samples")
    for left in (44, 45, 1000, len(sound) - 1):
        cases[f"wav cut at {left}"] = (sound[:left], "is cut off: its header promises 4,000 bytes")
    for left in (4, 20, 41, 42, 60, len(flac) // 2, len(flac) - 1):
        cases[f"flac cut at {left}"] = (flac[:left], "cannot be decoded|is cut off|has no samples")
    for left in (4, 20, 27, 100, len(ogg) // 2, len(ogg) - 1):
        cases[f"ogg cut at {left}"] = (ogg[:left], "is cut off")
    for name, value in (("nan", np.nan), ("inf", np.inf), ("minus inf", -np.inf)):
        for subtype, place in (("FLOAT", 7), ("DOUBLE", 1999)):
            bad = samples.copy()
            bad[place] = value
            cases[f"{name} in {subtype}"] = (
                encoded(bad, subtype=subtype),
                rf"frame {place:,} \({place / 8000:.3f} s\) is no finite number",
            )
    data = (b"data", bytes(4000))
    cases |= {
        "2^40 frames in rf64": (
            b"RF64\xff\xff\xff\xffWAVEds64"
            + struct.pack("<IQQQI", 28, 2**41 + 72, 2**41, 2**40, 0)
            + sound[12:36]
            + b"data\xff\xff\xff\xff"
            + bytes(4000),
            "is cut off: its header promises 2,199,023,255,552 bytes of samples, 4,000 are there",
        ),
        "rf64 without sizes": (
            patched(b"RF64" + sound[4:], 40, b"\xff\xff\xff\xff"),
            "is cut off: its header promises 4,294,967,295 bytes",
        ),
        "rf64 cut in its sizes": (b"RF64\xff\xff\xff\xffWAVEds64\x1c\0\0\0\0", "is cut off: it has no samples"),
        "length of a stream": (patched(sound, 40, b"\xff\xff\xff\xff"), "is cut off: its header promises"),
        "2^31 bytes": (patched(sound, 40, struct.pack("<I", 2**31)), "is cut off: its header promises 2,147,483,648"),
        "no format": (wav(data), "cannot be decoded"),
        "no data": (wav(format_chunk()), "is cut off: it has no samples"),
        "no chunks": (wav(), "is cut off: it has no samples"),
        "no samples": (wav(format_chunk(), (b"data", b"")), "has no samples"),
        "half a sample": (wav(format_chunk(), (b"data", b"\0")), "has no samples"),
        "no channels": (wav(format_chunk(channels=0), data), "cannot be decoded"),
        "65,535 channels": (wav(format_chunk(channels=65535), data), "cannot be decoded"),
        "no rate": (wav(format_chunk(rate=0), data), "cannot be decoded|has 0 samples per second"),
        "1 Hz": (wav(format_chunk(rate=1), data), "has 1 samples per second; 1,000 to 192,000 are read"),
        "4 GHz": (wav(format_chunk(rate=2**32 - 1), data), "samples per second|cannot be decoded"),
        "192,001 Hz": (wav(format_chunk(rate=192_001), data), "has 192,001 samples per second"),
        "unknown code": (wav(format_chunk(code=0x7777), data), "cannot be decoded"),
        "mp3 in wav": (wav(format_chunk(code=0x55), data), "cannot be decoded"),
        "no bits": (wav(format_chunk(bits=0), data), "cannot be decoded"),
        "integers of 64 bits": (wav(format_chunk(bits=64), data), "cannot be decoded"),
        "floats of 16 bits": (wav(format_chunk(code=3, bits=16), data), "cannot be decoded"),
        "empty chunks": (wav(*[(b"junk", b"")] * 5000, format_chunk(), data), "no samples in its first 4,096 chunks"),
        "a chunk beyond the end": (patched(sound, 16, struct.pack("<I", 2**32 - 2)), "is cut off: it has no samples"),
        "flac of 2^36 - 1 frames": (flac_claiming(flac, 2**36 - 1), "says it has 68,719,476,735 frames; at most"),
        "flac of 2^32 frames": (flac_claiming(flac, 2**32), "cannot be decoded|is cut off"),
        "flac of one more frame": (flac_claiming(flac, 2001), "cannot be decoded|is cut off"),
        "flac of unknown length": (flac_claiming(flac, 0), "says it has|has no samples|cannot be decoded"),
        "flac without data": (flac[:42], "cannot be decoded|is cut off|has no samples"),
        "flac header zeroed": (patched(flac, 4, bytes(38)), "cannot be decoded|has no samples"),
        "flac of noise": (b"fLaC" + np.random.default_rng(0).bytes(3000), "cannot be decoded|has no samples"),
        "ogg of noise": (b"OggS" + np.random.default_rng(1).bytes(3000), "is cut off"),
        "ogg without its last flag": (_without_last_flag(ogg), "is cut off: its last page is missing"),
        "ogg header zeroed": (patched(ogg, 28, bytes(30)), "cannot be decoded"),
        "floats cut": (floats[:-4], "is cut off"),
        "gsm, which has no places": (encoded(samples, subtype="GSM610"), "cannot be decoded"),
    }
    return cases


def _without_last_flag(ogg: bytes) -> bytes:
    at = ogg.rfind(b"OggS")
    return patched(ogg, at + 5, bytes([ogg[at + 5] & ~4]))
