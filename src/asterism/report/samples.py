"""What a run's model made at its evaluations: texts, guesses at places, pictures and sounds, checked before they are
shown."""

import base64
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asterism.report.reading import MOST_TEXT, JsonObjects, number, plain

MOST_SAMPLES = 60
"""How many samples of a run a page shows."""
MOST_PLACES = 1_000
MOST_TITLES = 10
_TEXTS = {"prompt": "prompt", "text": "written", "expected": "right"}
"""Fields of a sample that are texts, and what a page calls them."""
_DENOISING = {"prompt": "input", "text": "written", "expected": "wanted"}
_MEDIA = {"picture": ("image/png", b"\x89PNG\r\n\x1a\n"), "sound": ("audio/wav", b"RIFF")}
"""What a file may be, and how it begins."""


def read_samples(path: Path, learns: str, left_out: dict[str, str]) -> list[dict[str, Any]]:
    """The first and the latest samples in a file, as a page has them; what is wrong is added to `left_out`."""
    if not path.exists():
        return []
    lines = JsonObjects(path)
    samples = [_sample(line, learns) for line in lines]
    if lines.remark is not None:
        left_out["samples"] = lines.remark
    if len(samples) > MOST_SAMPLES:
        left_out["samples"] = f"{len(samples) - MOST_SAMPLES:,} samples are not shown: {path} holds all of them."
        samples = [*samples[: MOST_SAMPLES // 2], *samples[-MOST_SAMPLES // 2 :]]
    return samples


def _sample(line: Mapping[str, Any], learns: str) -> dict[str, Any]:
    """`texts` by what a page calls them, `places` as segments, and files as URIs that hold them; those that there are.

    `remark` says in the place of a file that it cannot be shown.
    """
    names = _DENOISING if learns in ("span_corruption", "gap_sentences") else _TEXTS
    found: dict[str, Any] = {"step": int(number(line.get("step")) or 0)}
    found["texts"] = {names[name]: plain(line[name]) for name in _TEXTS if line.get(name) is not None}
    if learns == "mlm" and (places := _places(line)) is not None:
        found["texts"] = {}
        found |= places
    elif isinstance(line.get("bases"), str) and isinstance(line.get("guessed"), str):
        found |= _bases(line["bases"], line["guessed"])
    for name, (kind, begin) in _MEDIA.items():
        if name in line and (uri := _uri(line[name], kind, begin)) is not None:
            found[name] = uri
        elif name in line:
            found["remark"] = f"The {name} is damaged and left out."
    if isinstance(line.get("shown"), list):
        found["shown"] = [plain(one, 60) for one in line["shown"][:MOST_TITLES]]
    if line.get("heard") is not None:
        found["heard"] = plain(line["heard"], 60)
    return found


def _places(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """A text with the places that the model filled in, as segments, and how many are right; None for anything else.

    `read` of a place is what stood there, where that is not the mask: what most places have.
    """
    found = [line.get(name) for name in ("between", "read", "guessed", "expected")]
    lists = [one for one in found if isinstance(one, list)]
    if len(lists) < len(found):
        return None
    between, *columns = lists
    if any(len(one) != len(between) - 1 for one in columns):
        return None
    segments: list[dict[str, Any]] = [{"text": plain(between[0])}] if between else []
    right, mask = 0, Counter(map(str, columns[0])).most_common(1)
    for text, read, guessed, expected in list(zip(between[1:], *columns, strict=True))[:MOST_PLACES]:
        is_right = guessed == expected
        right += is_right
        segments.append(
            {
                "text": plain(guessed, 60),
                "marks": ["right" if is_right else "wrong"],
                "read": None if mask[0][0] == str(read) else plain(read, 60),
                "expected": plain(expected, 60),
            }
        )
        segments.append({"text": plain(text)})
    return {"places": segments, "right": right, "of": (len(segments) - 1) // 2}


def _bases(bases: str, guessed: str) -> dict[str, Any]:
    """A sequence as stretches that were guessed right or wrong: the letters, and what was guessed in their places."""
    pairs = list(zip(plain(bases, MOST_TEXT), plain(guessed, MOST_TEXT), strict=False))
    segments: list[dict[str, Any]] = []
    for base, guess in pairs:
        mark = "right" if base == guess else "wrong"
        if not segments or segments[-1]["marks"] != [mark]:
            segments.append({"text": "", "guessed": "", "marks": [mark]})
        segments[-1]["text"] += base
        segments[-1]["guessed"] += guess
    right = sum(base == guess for base, guess in pairs)
    return {"bases": segments, "right": right, "of": len(pairs)}


def _uri(value: Any, kind: str, begin: bytes) -> str | None:
    """A URI that holds a file of this kind, and nothing else; None for anything else."""
    found = (
        re.fullmatch(rf"data:{re.escape(kind)};base64,([A-Za-z0-9+/]+=*)", value) if isinstance(value, str) else None
    )
    try:
        data = b"" if found is None else base64.b64decode(found[1], validate=True)
    except ValueError:
        return None
    return value if data.startswith(begin) else None
