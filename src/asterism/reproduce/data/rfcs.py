"""RFCs as documents to summarise, and summaries that are made of a document's own sentences, without a model.

A file of RFCs is JSONL, compressed with xz, with the fields `id`, `title`, `abstract` (may be null) and `text`.

An RFC is text for a printer of 1969: pages of 58 lines, each with a header and a footer, paragraphs of 72 columns, and
figures made of characters. Cleaning leaves one paragraph, or heading, in a line: the title, and the body without its
front matter (authors, status, copyright, notes of editors, contents, and the abstract, which is the summary), its
figures and tables, and its end (references, authors, licences). An RFC is left out if its abstract does not stand where
it can be removed, or if little is left of it.

Invariants: splits depend on the RFC's name alone: 80 of 100 to train, 10 to choose, 10 to test; no document contains
the part of the RFC from which its summary comes; equal files give equal lines.
"""

import hashlib
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from asterism.errors import DataError, shown
from asterism.reproduce.experiment import Source
from asterism.training.readers.bm25 import words_of

Split = Literal["train", "validation", "test"]

RFCS = "rfc-sample.jsonl.xz"
SOURCES = (Source(RFCS, "RFCs (rfc-editor.org) as JSONL with `id`, `title`, `abstract` and `text`"),)

FEWEST_WORDS = 300
"""Of a body."""

_FOOTER = re.compile(r"\[page [\divxlc]+\]\s*$", re.IGNORECASE)
_HEADER = re.compile(r"^RFC \d+\s.*\b(19|20)\d\d\s*$")
_NUMBER = re.compile(r"^\s{0,3}(appendix\s+[A-Z]|[A-Z]\.|[A-Z]?\d+)(\.\d+)*[.:]?\s+(?=\S)", re.IGNORECASE)
_CONTENTS = re.compile(r"(\.\s?){3,}\s*\d+\s*$|\s{3,}\d+\s*$")
_TAIL = 200
"""Characters at the end of a line that are searched for the page number of a list of contents."""
_FRONT = re.compile(
    r"abstract|status of this (memo|document)|copyright( and license)? (notice|statement)|(table of )?contents"
    r"|table of figures|list of (figures|tables)|(iesg|irtf|iab|editor'?s?|rfc editor'?s?|irsg) note|note"
)
_BACK = re.compile(
    r"(normative |informative )?references?( \(normative\)| \(informative\))?|(non-?)?normative references?"
    r"|references?.*|bibliography|acknowledge?ments?|(authors?|editors?|chairs?)('s?|s')?( and contact)? address(es)?"
    r"|contact information|full copyright statement|intellectual property( rights?)?( statement| notice)?|contributors"
    r"|disclaimer( of validity)?|acknowledge?ments? and .*|index|copyright( notice| statement)?"
)


@dataclass(frozen=True)
class Paragraph:
    """Lines of an RFC without a blank one between them, each with its indentation."""

    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """In one line; a word that a line end divides after its hyphen is one again."""
        joined = " ".join(line.strip() for line in self.lines)
        return re.sub(r"\s+", " ", re.sub(r"(?<=\w[-/]) (?=\w)", "", joined)) if len(self.lines) > 1 else joined.strip()

    @property
    def name(self) -> str:
        """What a heading says, without its number, in lower case."""
        return re.sub(r"\s+", " ", _NUMBER.sub("", self.lines[0])).strip(" .:").lower()

    @property
    def is_heading(self) -> bool:
        """One short line at the margin, or the name of a front part wherever it stands."""
        if len(self.lines) > 1 or _is_listed(self.lines[0]):
            return False
        line = self.lines[0]
        if _FRONT.fullmatch(self.name):
            return True
        return not line.startswith("    ") and len(line.strip()) <= 72 and not re.search(r"[.,;:]\s*$", line[-2:])

    @property
    def starts_a_section(self) -> bool:
        """A heading at the very margin, or with a number."""
        return self.is_heading and (not self.lines[0].startswith(" ") or bool(_NUMBER.match(self.lines[0])))

    @property
    def is_prose(self) -> bool:
        """Mostly letters, and no list of contents."""
        letters = sum(character.isalpha() for character in self.text)
        listed = sum(map(_is_listed, self.lines))
        drawn = re.search(r"[-=+_~*#.]{4,}|[|].*[|]|-->|<--|::=", self.text)
        return letters >= 0.7 * len(self.text.replace(" ", "")) and 2 * listed < len(self.lines) and not drawn


def _is_listed(line: str) -> bool:
    """Whether a line ends as those of a list of contents do."""
    return bool(_CONTENTS.search(line[-_TAIL:]))


def paragraphs(text: str) -> list[Paragraph]:
    """Those of an RFC without its page breaks; a paragraph that a page break divides is one again."""
    blocks: list[list[str]] = [[]]
    broken = False
    for line in text.lstrip("\ufeff").replace("\f", "\n").splitlines():
        if _FOOTER.search(line) or _HEADER.match(line):
            broken = True
        elif not line.strip():
            blocks.append([])
        else:
            if broken:
                while len(blocks) > 1 and not blocks[-1]:
                    blocks.pop()
                if blocks[-1] and not _goes_on(blocks[-1][-1], line):
                    blocks.append([])
            blocks[-1].append(line)
            broken = False
    return [Paragraph(tuple(block)) for block in blocks if block]


def _goes_on(above: str, below: str) -> bool:
    """Whether the line after a page break belongs to the paragraph before it."""
    indents = [len(line) - len(line.lstrip()) for line in (above, below)]
    return indents[0] == indents[1] > 0 and not re.search(r"[.:;!?]\s*$", above)


@dataclass(frozen=True)
class Parts:
    """An RFC in the three parts that matter here, each as paragraphs in a line."""

    abstract: list[str]
    body: list[str]


def parts(text: str) -> Parts:
    """The abstract and the body of an RFC; front matter, back matter, figures and tables are in neither."""
    abstract: list[str] = []
    body: list[str] = []
    place = "before"
    for paragraph in paragraphs(text):
        name = paragraph.name
        if paragraph.is_heading and _FRONT.fullmatch(name) and not (place == "body" and len(body) > 3):
            place = "abstract" if name == "abstract" else "front"
        elif paragraph.starts_a_section and (place != "before" or re.match(r"1\.?\s", paragraph.lines[0])):
            place = "back" if _BACK.fullmatch(name) else "body"
            if place == "body":
                body.append(paragraph.text)
        elif place == "abstract":
            abstract.append(paragraph.text)
        elif place == "body" and paragraph.is_prose:
            body.append(paragraph.text)
    return Parts(abstract, body)


def document_of(rfc: Mapping[str, Any]) -> dict[str, str] | None:
    """`id`, `document` and `summary` of a row of the data; None if the RFC is left out."""
    found = parts(rfc["text"])
    summary = _without_status(" ".join((rfc["abstract"] or "").split()))
    body = "\n".join(found.body)
    if not _is_of(" ".join(found.abstract), summary) or len(body.split()) < FEWEST_WORDS:
        return None
    return {"id": rfc["id"], "document": f"{rfc['title'].strip()}\n{body}", "summary": summary}


_STATUS = re.compile(
    r"\[STANDARDS-TRACK\]|this (memo|document|rfc) (provides information for the internet|defines an experimental proto"
    r"|documents an internet best|specifies an internet best|specifies an iab standards|specifies an internet standards"
    r"|is not an internet standards|specifies a standard|is a product of)|it does not specify an internet standard"
    r"|(and requests )?discussion and suggestions for improvement|distribution of this memo is unlimited",
    re.IGNORECASE,
)


def _without_status(abstract: str) -> str:
    """The data add to an abstract what status the RFC has, in its last sentences."""
    from asterism.training.objectives.gap_sentences import sentences_of  # which imports transformers

    sentences = sentences_of(abstract)
    while sentences and _STATUS.match(sentences[-1].strip()):
        sentences.pop()
    return _STATUS.sub("", "".join(sentences)).strip() if len(sentences) == 1 else "".join(sentences).strip()


def _is_of(removed: str, summary: str) -> bool:
    """Whether what was removed is what the data call the abstract: nine tenths of the words of one are in the other."""
    words, there = (Counter(word for word, _ in words_of(text)) for text in (summary, removed))
    return summary != "" and (words & there).total() >= 0.9 * words.total()


def split_of(name: str) -> Split:
    """Where an RFC belongs."""
    bucket = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 100
    return "train" if bucket < 80 else "validation" if bucket < 90 else "test"


def rfcs(source: Path) -> Iterator[dict[str, str]]:
    """The RFCs of a file. Raises DataError for a file that is not as the module docstring says."""
    try:
        with lzma.open(source, "rt", encoding="utf-8-sig") as lines:
            for line in lines:
                if not line.isspace():
                    yield _rfc(json.loads(line))
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            "rfcs-file", f"cannot read {source} as RFCs with id, title, abstract and text: {reason}"
        ) from error


def _rfc(entry: Any) -> dict[str, str]:
    """Its fields, with "" for no abstract. Raises ValueError and others for an entry that is not an RFC."""
    names = ("id", "title", "abstract", "text")
    if missing := [name for name in names if name not in entry]:
        raise ValueError(f"{shown(entry)} has no {missing[0]}")
    found = {name: entry[name] for name in names}
    found["abstract"] = "" if found["abstract"] is None else found["abstract"]
    for name, value in found.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} must be text, got {shown(value)}")
        value.encode()  # raises ValueError for half of a surrogate pair
    return found


def documents(source: Path, split: Split, words: range | None = None) -> list[dict[str, str]]:
    """`id`, `document` and `summary` of the RFCs of a split, in the order of the file.

    `words` are the numbers of words that a document may have, None for any.

    Raises DataError for a file that is not as the module docstring says or that has no such document.
    """
    rows = [row for rfc in rfcs(source) if split_of(rfc["id"]) == split and (row := document_of(rfc)) is not None]
    found = [row for row in rows if words is None or len(row["document"].split()) in words]
    if not found:
        lengths = "" if words is None else f" of {words.start:,} to {words.stop - 1:,} words"
        got = f"{len(rows):,} of other lengths" if rows else "none"
        raise DataError(
            "no-rfcs",
            f"{source} must have RFCs of split {split} with an abstract{lengths}, got {got}",
        )
    return found


def write_documents(
    path: Path, source: Path, split: Split, count: int | None = None, words: range | None = None
) -> None:
    """Write the first `count` documents of a split (None: all) as JSONL, with `id`, `document` and `summary`.

    Raises DataError, as `documents` does.
    """
    write(path, documents(source, split, words)[:count])


def write(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(path: Path) -> Iterator[dict[str, str]]:
    """The inverse of `write`."""
    with open(path) as lines:
        yield from map(json.loads, lines)


# --- summaries without a model --------------------------------------------------------------------------------------

MOST_SENTENCES = 10
"""Of a summary that is made of sentences of the document."""


def candidates(document: str) -> list[str]:
    """The sentences of a body that a summary can be made of, in order: no title, no headings, no scraps."""
    from asterism.training.objectives.gap_sentences import sentences_of  # which imports transformers

    lines = document.split("\n")[1:]
    found = [sentence.strip() for line in lines for sentence in sentences_of(line)]
    return [one for one in found if len(one.split()) >= 5 and one[-1] in ".!?"]


def lead(sentences: Sequence[str], count: int) -> list[int]:
    """The first."""
    return list(range(min(count, len(sentences))))


def oracle(sentences: Sequence[str], wanted: str) -> list[int]:
    """Taken one by one, each time the one that raises ROUGE-1 + ROUGE-2 (F1) most.

    An upper bound, nearly, of what can be said in sentences of the document: it reads the summary.
    """
    there = [_grams(wanted, size) for size in (1, 2)]
    grams = [[_grams(sentence, size) for size in (1, 2)] for sentence in sentences]
    have: list[Counter[tuple[str, ...]]] = [Counter(), Counter()]
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < MOST_SENTENCES:
        scored = [
            (sum(_f1(mine + own, want) for mine, own, want in zip(have, grams[number], there, strict=True)), -number)
            for number in range(len(sentences))
            if number not in chosen
        ]
        score, number = max(scored, default=(0.0, 0))
        if score <= best:
            break
        best = score
        chosen.append(-number)
        have = [mine + own for mine, own in zip(have, grams[-number], strict=True)]
    return sorted(chosen)


def best_count(score: Callable[[int], float]) -> int:
    """How many sentences score best, the fewest of equals."""
    return max(range(1, MOST_SENTENCES + 1), key=score)


def rouge1(said: str, wanted: str) -> float:
    """ROUGE-1 (F1), in a tenth of the time that `rouge-score` takes for all of its scores."""
    return _f1(_grams(said, 1), _grams(wanted, 1))


def _f1(said: Mapping[tuple[str, ...], int], wanted: Mapping[tuple[str, ...], int]) -> float:
    both = sum(min(count, said.get(gram, 0)) for gram, count in wanted.items())
    return 2 * both / (sum(said.values()) + sum(wanted.values())) if both else 0.0


def _grams(text: str, size: int) -> Counter[tuple[str, ...]]:
    """Sequences of so many words, as rouge-score sees and stems them."""
    words = [_stem(word) for word in re.findall(r"[a-z0-9]+", text.lower())]
    return Counter(zip(*(words[at:] for at in range(size)), strict=False))


@cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer  # comes with rouge-score

    return PorterStemmer()


@cache
def _stem(word: str) -> str:
    stem: str = _stemmer().stem(word) if len(word) > 3 else word
    return stem
