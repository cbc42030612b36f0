"""The formats of files of examples: each reads records one line at a time, and writes them followed by predictions.

    jsonl   a JSON object per line                        a prediction adds fields to the object
    csv     names in the first row, then a row each       a prediction adds columns
    conll   a line per token, a blank one per document    a prediction adds a column, the last
    json    SQuAD's JSON, a document of questions         comes out as JSONL, an object per question
    text    a text per line; two files, SOURCE,TARGET,    a prediction adds a column, behind a tab
            whose lines belong together
    fasta   sequences behind headers                      comes out as JSONL
    sequences  a sequence per line                        comes out as JSONL
    intervals  BED, GFF, GTF, GenBank, or a table of genes   comes out as JSONL, an object per interval
    files   a folder of files                             comes out as JSONL, an object per file

The input is written back unchanged, byte for byte; only the predictions are new. So a written row can be matched with
the row from which it was made.
"""

import csv
import io
import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from asterism.errors import ConfigurationError, DataError
from asterism.presence import pair_of
from asterism.training.data.corpora.folders import list_folder
from asterism.training.data.genomes.annotation import read_annotation
from asterism.training.data.genomes.unpacking import lines
from asterism.training.data.records.record import STDIN, Record, Source, json_object, source_of

LARGEST_FIELD = 2**31 - 1
"""Characters in a field of a CSV file; the csv module's own limit, 131,072, is less than a long document."""

LONGEST_LINE = 1 << 24
"""Bytes of a line of FASTA that is read a record at a time."""

COMPRESSED = (".gz", ".bgz", ".xz")

LIST_SEPARATOR = ";"
"""What stands between the members of a list in a cell of a CSV file, unless the cell is a list in JSON."""

_FIELD_LIMIT = threading.Lock()
"""The csv module has one limit for all of its readers; who raises it puts it back before another does."""

Prediction = Mapping[str, Any]
"""What is added to a record: names and values, among them lists and mappings."""


class Format(ABC):
    """How records stand in a file."""

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    unpacks: ClassVar[bool] = False
    """Whether a file may be compressed, which its suffix then says behind the format's."""

    @abstractmethod
    def read(self, source: Source) -> Iterator[Record]:
        """The records, one after another. Raises DataError at the first that cannot be read."""

    def head(self, record: Record, prediction: Prediction) -> str:
        """The head of the output above the records, given the first of them."""
        return ""

    @abstractmethod
    def body(self, record: Record, prediction: Prediction) -> str:
        """A record with its prediction, as it is written, with an end of line."""

    @abstractmethod
    def is_made_of(self, written: Record, record: Record) -> bool:
        """Whether a record that `body` wrote, and `written_format` read back, was made of this record."""

    @property
    def written_format(self) -> "Format":
        """The format of what is written."""
        return self

    def is_whole(self, written: Record) -> bool:
        """Whether all of a record was written that ends with a whole line."""
        return True

    def written_value(self, written: Record, name: str, like: Any) -> Any:
        """The value of a field of the prediction in a written record; a list if `like` is one."""
        return written.fields.get(name)

    def kept(self, value: Any) -> Any:
        """A value of a prediction after it is written and read again."""
        return value


class JsonLines(Format):
    """A JSON object per line; blank lines are passed over."""

    name: ClassVar[str] = "jsonl"
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl",)

    def read(self, source: Source) -> Iterator[Record]:
        for number, line in enumerate(source.lines(), start=1):
            if line.strip():
                place = f"{source.name}, line {number}"
                yield Record(place, json_object(place, line), line, folder=source.folder)

    def body(self, record: Record, prediction: Prediction) -> str:
        return f"{_opened(record)}{json_line(prediction)[1:]}\n"

    def is_made_of(self, written: Record, record: Record) -> bool:
        return written.raw.startswith(_opened(record))


class WrittenAsJson(Format):
    """A format whose records come out as JSONL."""

    def body(self, record: Record, prediction: Prediction) -> str:
        return f"{json_line({**record.fields, **prediction})}\n"

    def is_made_of(self, written: Record, record: Record) -> bool:
        return written.raw.startswith(json_line(record.fields)[:-1])

    @property
    def written_format(self) -> Format:
        return JsonLines()


class Squad(WrittenAsJson):
    """One JSON document: articles (`data`) of `paragraphs`, each a `context` with questions (`qas`).

    A record is a question with its context. A question that `is_impossible` has no answers, whatever stands there.
    """

    name: ClassVar[str] = "json"
    suffixes: ClassVar[tuple[str, ...]] = (".json",)

    def read(self, source: Source) -> Iterator[Record]:
        document = Record(source.name, json_object(source.name, "".join(source.lines())))
        for article in _children(document, "data"):
            for paragraph in _children(article, "paragraphs"):
                context = paragraph.text("context")
                for question in _children(paragraph, "qas"):
                    fields = {**question.fields, "context": context}
                    if fields.get("is_impossible"):
                        fields["answers"] = []
                    yield Record(question.place, fields)


class Csv(Format):
    """Names in the first row, then a row per record; blank lines are passed over. A record's line is its last one.

    A list is written with ";" between its members, a mapping as a column for each of its keys.
    """

    name: ClassVar[str] = "csv"
    suffixes: ClassVar[tuple[str, ...]] = (".csv",)

    def read(self, source: Source) -> Iterator[Record]:
        names: list[str] | None = None
        head = ""
        for number, raw, row in _csv_rows(source):
            if names is None:
                names, head = row, raw
                if len(set(names)) < len(names):
                    raise DataError(
                        "column-twice", f"{source.name}, line {number}: two columns have one name: {', '.join(names)}"
                    )
                continue
            place = f"{source.name}, line {number}"
            if len(row) != len(names):
                raise DataError("fields-per-row", f"{place}: the row does not have the {len(names)} fields of line 1")
            yield Record(place, dict(zip(names, row, strict=True)), raw, head, source.folder)

    def head(self, record: Record, prediction: Prediction) -> str:
        columns = dict(_cells(prediction))
        if twice := sorted(columns.keys() & record.fields.keys()):
            raise _present(record, twice[0])
        return self._joined(record.head, columns)

    def body(self, record: Record, prediction: Prediction) -> str:
        return self._joined(record.raw, [value for _, value in _cells(prediction)])

    def is_made_of(self, written: Record, record: Record) -> bool:
        return written.raw.startswith(f"{_line(record.raw)},")

    def written_value(self, written: Record, name: str, like: Any) -> Any:
        if isinstance(like, Mapping):
            return {key: float(written.fields[f"{_singular(name)}_{key}"]) for key in like}
        value = written.fields.get(name, "")
        return split_list(value) if isinstance(like, list) else value

    def _joined(self, raw: str, more: Iterator[Any] | Sequence[Any] | Mapping[str, Any]) -> str:
        added = io.StringIO()
        csv.writer(added, lineterminator=_end(raw)).writerow(more)
        return f"{_line(raw)},{added.getvalue()}"


class Conll(Format):
    """A line per token and a blank line behind each document, as in the shared tasks of CoNLL 2000 to 2003.

    A record has `tokens`, the first column, and `tags`, the last one, if every line has two columns. Lines that begin
    with -DOCSTART- belong to no document. A prediction's `tags` are written as the last column, as conlleval reads it.
    """

    name: ClassVar[str] = "conll"
    suffixes: ClassVar[tuple[str, ...]] = (".conll", ".bio", ".txt")

    def read(self, source: Source) -> Iterator[Record]:
        lines: list[str] = []  # of the document, and what stands before it
        rows: list[tuple[int, list[str]]] = []
        for number, line in enumerate(source.lines(), start=1):
            lines.append(line)
            columns = line.split()
            if is_token_line(columns):
                rows.append((number, columns))
            elif rows:
                yield self._record(source.name, rows, lines)
                lines, rows = [], []
        if rows:
            yield self._record(source.name, rows, lines)

    def _record(self, name: str, rows: list[tuple[int, list[str]]], lines: list[str]) -> Record:
        fields: dict[str, Any] = {"tokens": [columns[0] for _, columns in rows]}
        alone = [(number, columns[0]) for number, columns in rows if len(columns) < 2]
        if not alone:
            fields["tags"] = [columns[-1] for _, columns in rows]
        elif len(alone) < len(rows):
            number, token = alone[0]
            raise DataError(
                "tags-missing", f"{name}, line {number}: field 'tags' is missing: the line is {token!r} alone"
            )
        return Record(f"{name}, line {rows[0][0]}", fields, "".join(lines))

    def body(self, record: Record, prediction: Prediction) -> str:
        tags = iter(next(value for name, value in prediction.items() if name.endswith("tags")))
        lines = []
        for line in _lines(record.raw):
            if is_token_line(line.split()):
                between = "\t" if "\t" in line else " "
                lines.append(f"{line.rstrip()}{between}{next(tags)}{_end(line)}")
            else:
                lines.append(line)
        closed = not is_token_line(lines[-1].split())
        return "".join([*lines, *([] if closed else [_end(record.raw)])])

    def is_whole(self, written: Record) -> bool:
        return not is_token_line(_lines(written.raw)[-1].split())

    def written_value(self, written: Record, name: str, like: Any) -> Any:
        return written.fields["tags"]

    def is_made_of(self, written: Record, record: Record) -> bool:
        pairs = zip(_lines(written.raw), _lines(record.raw), strict=False)
        return len(written.fields["tokens"]) == len(record.fields["tokens"]) and all(
            one.startswith(other.rstrip()) for one, other in pairs
        )


@dataclass(frozen=True)
class Lines(Format):
    """A text per line; of two files, the lines of one number belong together.

    `names` are the fields of the first text and of the second. A prediction is the last column, behind a tab; white
    space in it becomes single spaces.
    """

    name: ClassVar[str] = "text"
    suffixes: ClassVar[tuple[str, ...]] = (".txt",)

    names: tuple[str, str] = ("source", "target")

    def read(self, source: Source) -> Iterator[Record]:
        for number, rows in enumerate(source.rows(), start=1):
            texts = [_line(row) for row in rows]
            yield Record(
                f"{source.name}, line {number}",
                dict(zip(self.names, texts, strict=False)),
                "\t".join([*texts[:-1], rows[-1]]),
            )

    def body(self, record: Record, prediction: Prediction) -> str:
        (answer,) = prediction.values()
        return f"{_line(record.raw)}\t{self.kept(answer)}{_end(record.raw)}"

    def is_made_of(self, written: Record, record: Record) -> bool:
        return _line(written.raw).rpartition("\t")[0] == _line(record.raw)

    def written_value(self, written: Record, name: str, like: Any) -> Any:
        return _line(written.raw).rpartition("\t")[2]

    def kept(self, value: Any) -> Any:
        return " ".join(value.split())


class GenomeIntervals(WrittenAsJson):
    """Stretches of a genome: BED, GFF, GTF or GenBank, or a table of genes, as `genomes/annotation.py` reads them.

    A record has `id`, `chromosome`, `start`, `end` and `strand`; places are 0-based and half-open, whatever the file
    counts.
    """

    name: ClassVar[str] = "intervals"
    suffixes: ClassVar[tuple[str, ...]] = (".bed", ".gff", ".gff3", ".gtf", ".gb", ".gbk", ".gbff", ".tsv")
    unpacks: ClassVar[bool] = True

    def read(self, source: Source) -> Iterator[Record]:
        for one in read_annotation(source.path):
            fields = {"id": one.name, "chromosome": one.sequence, "start": one.start, "end": one.end}
            yield Record(one.place, {**fields, "strand": one.strand})


class Fasta(WrittenAsJson):
    """Sequences behind headers. A record has `id`, the first word of the header, and `sequence`.

    Raises DataError for letters before the first header, a header without a name, and one without a sequence.
    """

    name: ClassVar[str] = "fasta"
    suffixes: ClassVar[tuple[str, ...]] = (".fa", ".fasta", ".fna")
    unpacks: ClassVar[bool] = True

    def read(self, source: Source) -> Iterator[Record]:
        header, place, parts = "", "", list[str]()
        packed = enumerate(source.lines(), start=1) if source.path == STDIN else lines(source.path, LONGEST_LINE)
        for number, line in packed:
            text = line.strip()
            if text.startswith(">"):
                if header:
                    yield self._record(place, header, parts)
                place, parts = f"{source.name}, line {number}", []
                header = text[1:].strip()
                if not header:
                    raise DataError("name-missing", f"{place}: the header has no name after '>'")
            elif text and not header:
                raise DataError(
                    "fasta-header",
                    f"{source.name}, line {number}: must be a header that begins with '>', got {text[:40]!r}",
                )
            elif text:
                parts.append(text)
        if header:
            yield self._record(place, header, parts)

    def _record(self, place: str, header: str, parts: Sequence[str]) -> Record:
        if not parts:
            raise DataError("sequence-missing", f"{place}: {header.split()[0]!r} has no sequence")
        return Record(place, {"id": header.split()[0], "sequence": "".join(parts)})


class SequenceLines(WrittenAsJson):
    """A sequence per line; blank lines are passed over."""

    name: ClassVar[str] = "sequences"
    suffixes: ClassVar[tuple[str, ...]] = (".txt",)

    def read(self, source: Source) -> Iterator[Record]:
        for number, line in enumerate(source.lines(), start=1):
            if line.strip():
                yield Record(f"{source.name}, line {number}", {"sequence": line.strip()})


class FileNames(WrittenAsJson):
    """The files of a folder, by their names below it: a record has `file`. What begins with a dot is skipped."""

    name: ClassVar[str] = "files"
    suffixes: ClassVar[tuple[str, ...]] = ()

    def read(self, source: Source) -> Iterator[Record]:
        for name in list_folder(Path(source.path)):
            yield Record(f"{source.name}/{name}", {"file": name}, folder=str(source.path))


FORMATS: dict[str, Format] = {
    one.name: one
    for one in (JsonLines(), Csv(), Conll(), Squad(), Lines(), Fasta(), SequenceLines(), FileNames(), GenomeIntervals())
}
"""By the name that `--format` gives them."""


def format_of(path: str | Path, allowed: Sequence[str], asked: str | None = None) -> Format:
    """The format of a file: the one that was asked for by its name in FORMATS, else what its suffix says.

    Raises ConfigurationError for a format that is not allowed, and for standard input without a format. Raises
    DataError for an unknown suffix. Two files are always lines of text. The content of a file does not matter.
    """
    if pair_of(path) is not None:
        if Lines.name not in allowed or asked not in (None, Lines.name):
            raise ConfigurationError(
                "pair-of-files", f"data: {path} is a pair of text files, which this task does not read"
            )
        return FORMATS[Lines.name]
    if asked is None and FileNames.name in allowed and Path(path).is_dir():
        return FORMATS[FileNames.name]
    if asked is not None:
        if asked not in allowed:
            raise ConfigurationError(
                "unsupported-format", f"format: got {asked!r}; this task reads {', '.join(allowed)}"
            )
        return FORMATS[asked]
    if path == STDIN:
        raise ConfigurationError("format-unsaid", f"format: stdin needs a format, one of {', '.join(allowed)}")
    suffixes = {suffix: FORMATS[name] for name in allowed for suffix in FORMATS[name].suffixes}
    suffix = Path(path).suffix.lower()
    if suffix in COMPRESSED:
        inner = Path(Path(path).stem).suffix.lower()
        suffix = inner if inner in suffixes and suffixes[inner].unpacks else suffix
    if suffix not in suffixes:
        raise DataError("unsupported-format", f"data: {path}: the name must end in one of {', '.join(suffixes)}")
    return suffixes[suffix]


def read_records(path: str | Path, allowed: Sequence[str]) -> list[Record]:
    """All records of a file. Raises DataError if there is none, or one that cannot be read."""
    return read_all(format_of(path, allowed), path)


def read_all(kind: Format, path: str | Path) -> list[Record]:
    """All records of a file in a format. Raises DataError if there is none, or one that cannot be read."""
    records = list(kind.read(source_of(path)))
    if not records:
        raise DataError("no-records", f"data: {path} holds no record")
    return records


def refuse_present(record: Record, prediction: Prediction) -> None:
    """Raises DataError if a record already has a field that the prediction would add."""
    for name in prediction:
        if name in record.fields:
            raise _present(record, name)


def is_token_line(columns: Sequence[str]) -> bool:
    """Whether the columns of a line of CoNLL are a token's."""
    return bool(columns) and columns[0] != "-DOCSTART-"


def _present(record: Record, name: str) -> DataError:
    return record.error(name, "is there already: what is read seems to hold predictions; rename the field, or drop it")


def _csv_rows(source: Source) -> Iterator[tuple[int, str, list[str]]]:
    """For each row that is not blank the number of its last line, its text and its cells."""
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in source.lines():
            taken.append(line)
            yield line

    rows = csv.reader(lines(), strict=True)
    while True:
        with _FIELD_LIMIT:
            limit = csv.field_size_limit(LARGEST_FIELD)
            try:
                row = next(rows, None)
            except csv.Error as error:
                raise DataError(
                    "not-csv", f"{source.name}, line {rows.line_num}: cannot be read as CSV: {error}"
                ) from None
            finally:
                csv.field_size_limit(limit)
        if row is None:
            return
        raw = "".join(taken)
        taken.clear()
        if row:
            yield rows.line_num, raw, row


def _cells(prediction: Prediction) -> Iterator[tuple[str, Any]]:
    """Names and values of columns: `probabilities` of labels become a column `probability_LABEL` each."""
    for name, value in prediction.items():
        if isinstance(value, Mapping):
            yield from ((f"{_singular(name)}_{key}", one) for key, one in value.items())
        else:
            yield name, _joined_list(value) if isinstance(value, list) else value


def _joined_list(members: Sequence[str]) -> str:
    """A list in a cell: in JSON where joined members would be read as others, else joined."""
    joined = LIST_SEPARATOR.join(members)
    return joined if split_list(joined) == list(members) else json.dumps(list(members), ensure_ascii=False)


def split_list(cell: str) -> list[str]:
    """The members of a list in a cell of a CSV file."""
    if cell.lstrip().startswith("["):
        try:
            members = json.loads(cell)
        except (ValueError, RecursionError):
            members = None
        if isinstance(members, list) and all(isinstance(one, str) for one in members):
            return members
    return [one for one in map(str.strip, cell.split(LIST_SEPARATOR)) if one]


def _singular(name: str) -> str:
    return re.sub(r"ies$", "y", name)


def _children(record: Record, field: str) -> Iterator[Record]:
    values = record.get(field)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise record.error(field, "must be a list of JSON objects")
    for number, value in enumerate(values):
        yield Record(f"{record.place}, {field}[{number}]", value)


def _opened(record: Record) -> str:
    """A line of JSON as it stood, up to where another field can be put."""
    inside = record.raw.strip()[:-1].rstrip()
    return f"{inside}, " if record.fields else inside


def json_line(value: Mapping[str, Any]) -> str:
    """One line of JSON that can be written as UTF-8: half of a surrogate pair stays the escape that it came from.

    What a record had that is no JSON, such as NaN, stays as it stood, too.
    """
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()


def _lines(text: str) -> list[str]:
    """Lines with their ends. `str.splitlines` would also cut where a token holds a rarer separator."""
    return list(io.StringIO(text, newline="\n"))


def _line(raw: str) -> str:
    return raw.removesuffix("\n").removesuffix("\r")


def _end(raw: str) -> str:
    return "\r\n" if raw.endswith("\r\n") else "\n"
