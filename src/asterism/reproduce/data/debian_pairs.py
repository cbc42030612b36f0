"""Pairs of English and German text: the descriptions of Debian's packages, which volunteers translate.

    http://deb.debian.org/debian/dists/bookworm/main/i18n/Translation-en.xz
    http://deb.debian.org/debian/dists/bookworm/main/i18n/Translation-de.bz2

A description is a short line and paragraphs. Where both languages have as many paragraphs, the n-th belong together.
Many packages share paragraphs, and many others have nearly the same, so held-out texts need care. Invariant: no text
that is trained on is, in either language, nearly one that is held out; equal files give equal pairs.
"""

import bz2
import hashlib
import json
import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from asterism.errors import DataError, shown

ENGLISH, GERMAN = "Translation-en.xz", "Translation-de.bz2"
MOST_WORDS = 24
"""Of a text; the longest has fewer than 160 tokens in a BPE of 4,000 pieces."""
VALIDATED, TESTED = 50, 500
"""Pairs to watch training by, and to score."""
MATCHING, OTHER = "translation", "other"
"""Labels of texts that say the same, and of texts that do not."""
OPENED: dict[str, Callable[..., IO[str]]] = {".bz2": bz2.open, ".xz": lzma.open}
ALIKE = 0.5
"""From which share of common word pairs on texts are nearly one."""


class Pair(NamedTuple):
    """A text, and the same in another language."""

    source: str
    target: str


@dataclass(frozen=True)
class Splits:
    """Pairs to train on, to watch training by, and to score in the end; `near` counts those left out of training."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]
    near: int


def descriptions(path: Path) -> dict[tuple[str, str], list[str]]:
    """The short line and the paragraphs of each description of a Translation file, by package and md5 of the English.

    Lines of a paragraph are joined, unless one begins with a mark or a space, as those of lists and of code do: such a
    paragraph is "" here, and takes part in the count alone. Raises DataError for a file that is not like that.
    """
    found = {}
    try:
        with OPENED[path.suffix](path, "rt", encoding="utf-8-sig") as file:
            for stanza in file.read().split("\n\n"):
                fields = _fields(stanza)
                long = [name for name in fields if name.startswith("Description-") and name != "Description-md5"]
                if long:
                    head, *rest = fields[long[0]]
                    key = tuple(fields.get(name, [""])[0] for name in ("Package", "Description-md5"))
                    if not all(key):
                        raise ValueError(f"a stanza with {long[0]} must have a Package and a Description-md5")
                    found[key[0], key[1]] = [head, *_paragraphs(rest)]
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError("descriptions-file", f"cannot read {path} as descriptions of packages: {reason}") from error
    return found


def _fields(stanza: str) -> dict[str, list[str]]:
    """The lines of each field. Raises ValueError for lines that belong to none, and for a field that is there twice."""
    fields: dict[str, list[str]] = {}
    name = ""
    for line in filter(None, stanza.split("\n")):
        if line[0] in " \t" and name:
            fields[name].append(line[1:])
            continue
        name, colon, value = line.partition(":")
        if not colon or line[0] in " \t" or name in fields:
            raise ValueError(f"a line must begin a new field, or go on with one, got {shown(line)}")
        fields[name] = [value.strip()]
    return fields


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Paragraphs end with a line that is a dot."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line == ".":
            paragraphs.append([])
        else:
            paragraphs[-1].append(line)
    for paragraph in filter(None, paragraphs):
        is_prose = all(re.match(r"[\w\"'(»„]", line) for line in paragraph)
        yield " ".join(" ".join(paragraph).split()) if is_prose else ""


def pairs(english: Path, german: Path, *, most_words: int) -> list[Pair]:
    """All pairs of at most `most_words` words a side, each English text once, in the order of the hash of its words.

    Of several German texts for one English the most frequent stays. Pairs are left out that are equal, that have fewer
    than two words, and of which one side has more than twice as many letters as the other: they are no translations.
    """
    there, here = descriptions(english), descriptions(german)
    targets: dict[str, Counter[str]] = defaultdict(Counter)
    for key in sorted(there.keys() & here.keys()):
        if len(there[key]) == len(here[key]):
            for source, target in zip(there[key], here[key], strict=True):
                targets[source][target] += 1
    chosen = [Pair(source, max(sorted(some), key=some.__getitem__)) for source, some in targets.items()]
    kept: dict[str, Pair] = {}
    for pair in sorted(filter(lambda pair: _is_translation(pair, most_words), chosen)):
        kept.setdefault(_key(pair.source), pair)
    return [kept[key] for key in sorted(kept)]


def _is_translation(pair: Pair, most_words: int) -> bool:
    words = [len(text.split()) for text in pair]
    letters = sorted(map(len, pair))
    return pair.source != pair.target and min(words) >= 2 and max(words) <= most_words and letters[1] <= 2 * letters[0]


def _key(text: str) -> str:
    """Equal for texts of equal words; its order is that of nothing else."""
    return hashlib.sha256(" ".join(words_of(text)).encode()).hexdigest()


def words_of(text: str) -> list[str]:
    """Words in lower case, without their marks; numbers are all alike."""
    return ["0" if word[0].isdecimal() else word for word in re.findall(r"\w+", text.lower())]


def split(pairs: Sequence[Pair], *, validation: int, test: int) -> Splits:
    """The first pairs to score, the next to watch, and of the others those that are not nearly one of these."""
    held_out, others = pairs[: test + validation], pairs[test + validation :]
    near = [Near(column) for column in zip(*held_out, strict=True)]
    train = [
        pair
        for pair in others
        if not any(index.nearest(text)[0] >= ALIKE for index, text in zip(near, pair, strict=True))
    ]
    return Splits(train, list(held_out[test:]), list(held_out[:test]), len(others) - len(train))


class Near:
    """Texts that can be asked which of them is nearest to another: the one that shares most of both's word pairs."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.shingles = [_shingles(text) for text in texts]
        self.having: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, some in enumerate(self.shingles):
            for one in some:
                self.having[one].append(number)

    def nearest(self, text: str) -> tuple[float, int]:
        """The share (Jaccard's coefficient), and the number of the text; (0, -1) if none shares any."""
        mine = _shingles(text)
        shared = Counter(number for one in mine for number in self.having.get(one, ()))
        return max(
            ((count / len(mine | self.shingles[number]), number) for number, count in shared.items()), default=(0.0, -1)
        )


def _shingles(text: str) -> set[tuple[str, str]]:
    """Each two words that follow one another, the ends of the text among them."""
    words = ["", *words_of(text), ""]
    return set(zip(words, words[1:], strict=False))


def write_pairs(path: Path, part: str) -> None:
    """Write a part of the pairs, "train", "validation" or "test", as JSONL with `source` and `target`.

    The two files lie beside `path`. Raises DataError for damaged files, and for files with too few pairs.
    """
    write(_part(path.parent, part), path)


def write_matches(path: Path, part: str) -> None:
    """Write a part as `write_pairs` does, but as JSONL with `text` and `label`: what matches, and what does not.

    A text is the English and the German one, each in a line. Every text is there twice, once with its translation
    (MATCHING) and once with another text of about as many words (OTHER), so that only both together tell which it is.
    """
    rows = [
        json.dumps({"text": f"{english}\n{german}", "label": label}, ensure_ascii=False) + "\n"
        for english, german, label in matches(_part(path.parent, part))
    ]
    path.write_text("".join(rows), encoding="utf-8")


def matches(pairs: Sequence[Pair]) -> list[tuple[str, str, str]]:
    """Each English text with its translation, and with the one that follows it in the order of lengths; and the label.

    Of texts with the same translation the last stays. Needs two translations or more.
    """
    sources = {pair.target: pair.source for pair in pairs}
    order = sorted(sources, key=lambda target: len(target.split()))
    following = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [
        (source, text, label)
        for target, source in sources.items()
        for text, label in ((target, MATCHING), (following[target], OTHER))
    ]


def _part(folder: Path, part: str) -> list[Pair]:
    every = pairs(folder / ENGLISH, folder / GERMAN, most_words=MOST_WORDS)
    if len(every) < 2 * (VALIDATED + TESTED):
        raise DataError(
            "too-few-pairs",
            f"{ENGLISH} and {GERMAN} must have {2 * (VALIDATED + TESTED):,} pairs or more, got {len(every):,}",
        )
    chosen: list[Pair] = getattr(split(every, validation=VALIDATED, test=TESTED), part)
    if len({pair.target for pair in chosen}) < 2:
        raise DataError("no-pairs", f"all pairs of {ENGLISH} and {GERMAN} are near those that are held out")
    return chosen


def write(pairs: Iterable[Pair], path: Path) -> None:
    """Pairs as `finetune --task translate` reads them."""
    path.write_text("".join(json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in pairs), encoding="utf-8")


def read(path: Path) -> list[Pair]:
    """The inverse of `write`."""
    return [Pair(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]
