"""RFCs as documents to summarise, and what can be said of them without a model.

An RFC is text for a printer of 1969: pages of 58 lines, each with a header and a footer, paragraphs of 72 columns, and
figures made of characters. What is left here is one paragraph, or heading, in a line: the title, and the body without
its front matter (authors, status, copyright, notes of editors, contents, and the abstract, which is the summary), its
figures and tables, and what stands at the end (references, authors, licences). An RFC is left out if its abstract does
not stand where it can be removed, or if little is left of it.

Splits are by a hash of the RFC's name: 80 of 100 to train, 10 to choose, 10 to test.
"""

import hashlib
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from extractive import centroid, lead
from extractive import oracle as nearest

from asterism.training.objectives.gap_sentences import sentences_of
from asterism.training.readers.bm25 import words_of

Split = Literal["train", "validation", "test"]

FEWEST_WORDS = 300
"""Of a body."""

_FOOTER = re.compile(r"\[page [\divxlc]+\]\s*$", re.IGNORECASE)
_HEADER = re.compile(r"^RFC \d+\s.*\b(19|20)\d\d\s*$")
_NUMBER = re.compile(r"^\s{0,3}(appendix\s+[A-Z]|[A-Z]\.|[A-Z]?\d+)(\.\d+)*[.:]?\s+(?=\S)", re.IGNORECASE)
_CONTENTS = re.compile(r"(\.\s?){3,}\s*\d+\s*$|\s{3,}\d+\s*$")
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
        if len(self.lines) > 1 or _CONTENTS.search(self.lines[0]):
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
        listed = sum(bool(_CONTENTS.search(line)) for line in self.lines)
        drawn = re.search(r"[-=+_~*#.]{4,}|[|].*[|]|-->|<--|::=", self.text)
        return letters >= 0.7 * len(self.text.replace(" ", "")) and 2 * listed < len(self.lines) and not drawn


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


def write_splits(source: Path, folder: Path) -> dict[str, Any]:
    """`{train,validation,test}.jsonl` in a folder; what is in them: documents, and their words and summaries'."""
    rows: dict[Split, list[dict[str, str]]] = {"train": [], "validation": [], "test": []}
    count = 0
    with lzma.open(source, "rt", encoding="utf-8") as lines:
        for line in lines:
            count += 1
            rfc = json.loads(line)
            if (row := document_of(rfc)) is not None:
                rows[split_of(rfc["id"])].append(row)
    folder.mkdir(parents=True, exist_ok=True)
    for split, some in rows.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    every = [row for some in rows.values() for row in some]
    return {
        "given": count,
        "left": {split: len(some) for split, some in rows.items()},
        "words": {name: quantiles([len(row[name].split()) for row in every]) for name in ("document", "summary")},
        "repeating": sum(repeats(row) for row in every) / len(every),
    }


def quantiles(values: Sequence[float]) -> list[float]:
    """What a tenth, a half and nine tenths of the values are below."""
    ordered = sorted(values)
    return [ordered[int(share * (len(ordered) - 1))] for share in (0.1, 0.5, 0.9)]


def repeats(row: Mapping[str, str]) -> bool:
    """Whether the authors wrote a sentence of the abstract a second time in the body."""
    body = " ".join(row["document"].split())
    return any(sentence in body for sentence in map(str.strip, sentences_of(row["summary"])) if len(sentence) > 40)


# --- summaries without a model --------------------------------------------------------------------------------------


def candidates(document: str) -> list[str]:
    """The sentences of a body that a summary can be made of, in order: no title, no headings, no scraps."""
    lines = document.split("\n")[1:]
    found = [sentence.strip() for line in lines for sentence in sentences_of(line)]
    return [one for one in found if len(one.split()) >= 5 and one[-1] in ".!?"]


def _chosen(choose: Callable[[Sequence[str], int], list[int]]) -> Callable[[str, int], str]:
    """A summary of so many sentences, in lines, that a choice of their numbers makes."""

    def say(document: str, count: int) -> str:
        sentences = candidates(document)
        return "\n".join(sentences[number] for number in choose(sentences, count))

    return say


BASELINES: Mapping[str, Callable[[str, int], str]] = {"lead": _chosen(lead), "centroid": _chosen(centroid)}


def oracle(document: str, summary: str) -> str:
    """The sentences of the body that come nearest to the summary, which it reads: about the most they can say."""
    sentences = candidates(document)
    return "\n".join(sentences[number] for number in nearest(sentences, summary))


def read(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a split."""
    with open(path) as lines:
        yield from map(json.loads, lines)
