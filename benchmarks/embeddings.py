"""Embed documents of 4,096 tokens, and find them again: a long MiniLM against cut texts, windows and BM25.

    python benchmarks/embeddings.py rfc-sample.jsonl.xz MINILM runs/embeddings benchmarks/results/embeddings.json
    python benchmarks/embeddings.py --report benchmarks/results/embeddings.json

The data file has an RFC in each line; `asterism/reproduce/data/rfcs.py` cleans it. MINILM is the folder of a BERT for
SentenceTransformers with 512 positions, such as all-MiniLM-L6-v2. `import_checkpoint` extends it to 4,096. Nothing is
trained.

Every document is the beginning of a body, `DOCUMENT` tokens, without title and abstract. Three kinds of questions have
one right document each: its title, its abstract, and sentences from between its tokens `DEEP`. Those sentences are
removed from the document. All ways read the same documents.

Columns: nDCG@10 and recall@10 for each kind, with the standard error over documents; tokens read per document, and CPU
seconds per document, in bfloat16, one document at a time. Vectors that are in the folder are not computed again.
"""

import argparse
import hashlib
import json
import lzma
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asterism.bench.machine import describe
from asterism.models import AsterismConfig, AsterismModel, import_checkpoint
from asterism.reproduce.data.rfcs import document_of
from asterism.system import sha256_of
from asterism.training.objectives.gap_sentences import sentences_of
from asterism.training.readers.bm25 import bm25
from asterism.training.readers.selected import counted

LENGTH = 4096
ROW = 512
"""Tokens that the checkpoint has positions for."""
PIECE = ROW - 2
"""Tokens of a text in such a row; the others begin and end it."""
DOCUMENT = 8 * PIECE
"""Tokens of each document: eight full windows, or one row of 4,082."""
DEEP = (1024, 3500)
"""Tokens between which sentences become questions."""
WORDS = (12, 40)
"""The fewest and the most words of such a sentence."""
PAIRS = (
    ("cut-256", "cut-512"),
    ("long-blocks", "cut-512"),
    ("long-blocks", "windows"),
    ("long-window", "long-blocks"),
    ("long-longformer", "long-blocks"),
    ("long-dense", "long-blocks"),
    ("windows-best", "long-blocks"),
    ("bm25", "windows-best"),
)
"""Ways that are compared on the same questions."""
KINDS = ("title", "abstract", "sentence")
AT = 10
K1, B = 1.2, 0.75


@dataclass(frozen=True)
class Way:
    """How a document becomes vectors: rows of so many tokens, at most so many rows, under a pattern."""

    pattern: str
    row: int
    rows: int | None = None
    best: bool = False
    """Keep a vector for each row, and compare with the nearest; otherwise with their mean."""


WAYS: Mapping[str, Way] = {
    "cut-512": Way("dense()", ROW, 1),
    "cut-256": Way("dense()", 256, 1),
    "windows": Way("dense()", ROW),
    "windows-best": Way("dense()", ROW, best=True),
    "long-blocks": Way(f"blocks({ROW})", LENGTH),
    "long-window": Way("window(left=256, right=256)", LENGTH),
    "long-longformer": Way("longformer(window=512)", LENGTH),
    "long-dense": Way("dense()", LENGTH),
}
BM25 = {"bm25-cut-512": PIECE, "bm25": DOCUMENT}
"""How many tokens of each document BM25 reads."""


class Tokenizer(Protocol):
    """The part of a fast tokenizer of BERT that is used here."""

    cls_token_id: int
    sep_token_id: int

    def __call__(self, text: str, **options: Any) -> Mapping[str, Any]: ...


def main() -> None:
    """Choose documents, embed them in every way, search, record, print."""
    arguments = _arguments()
    if arguments.report:
        report(json.loads(arguments.report.read_text()))
        return
    from transformers import AutoTokenizer

    report(_all(arguments, AutoTokenizer))


def _all(arguments: argparse.Namespace, auto_tokenizer: Any) -> dict[str, Any]:
    """The record; the file of results has what there is after each row."""
    folder = _folder_for(arguments)
    long = folder / "long"
    if not long.exists():
        import_checkpoint(arguments.model, long, length=LENGTH)
    tokenizer = auto_tokenizer.from_pretrained(long)
    documents, questions = collection(arguments.data, tokenizer, arguments.documents, arguments.sentences)
    record: dict[str, Any] = {
        "machine": describe("cpu"),
        "date": date.today().isoformat(),
        "dtype": "bfloat16",
        "documents": len(documents),
        "questions": {kind: sum(one["kind"] == kind for one in questions) for kind in KINDS},
        "rows": [],
    }
    found: dict[str, Tensor] = {}
    for name in (*WAYS, *BM25):
        print(name, file=sys.stderr)
        if name in WAYS:
            kept = folder / f"{name.removesuffix('-best')}-{len(documents)}-{len(questions)}"
            scores, costs = _by_vectors(WAYS[name], long, tokenizer, documents, questions, kept)
        else:
            texts = [text_of(tokenizer, text, BM25[name]) for text in documents]
            scores, costs = _by_words(texts, questions), {"tokens_per_document": BM25[name]}
        found[name] = ranks(scores, right(questions))
        record["rows"].append({"name": name, **costs, "kinds": measures(found[name], questions)})
        record["pairs"] = [
            {"name": one, "compared": other, "kinds": differences(found[one], found[other], questions)}
            for one, other in PAIRS
            if one in found and other in found
        ]
        if arguments.output:
            arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    return record


def _folder_for(arguments: argparse.Namespace) -> Path:
    """Where vectors of these data by this model are kept; others have another folder."""
    weights = arguments.model / "model.safetensors"
    if missing := [str(path) for path in (arguments.data, weights) if not path.is_file()]:
        raise SystemExit(f"{missing[0]} is not a file: give a file of RFCs and the folder of a BERT")
    digest = hashlib.sha256(sha256_of(arguments.data) + sha256_of(weights)).hexdigest()
    return Path(arguments.folder) / digest[:12]


# --- the collection -------------------------------------------------------------------------------------------------


def collection(data: Path, tokenizer: Tokenizer, count: int, deep: int) -> tuple[list[str], list[dict[str, Any]]]:
    """`count` documents, and their questions, each with `kind`, `text` and the number of its `document`.

    RFCs come in the order of a hash of their id; those with too little text or too few sentences are left out.
    """
    with lzma.open(data, "rt", encoding="utf-8") as lines:
        rfcs = [json.loads(line) for line in lines]
    rfcs.sort(key=lambda rfc: hashlib.sha256(rfc["id"].encode()).digest())
    documents: list[str] = []
    questions: list[dict[str, Any]] = []
    for rfc in rfcs:
        if len(documents) == count:
            return documents, questions
        if (row := document_of(rfc)) is None:
            continue
        title, _, body = row["document"].partition("\n")
        asked, rest = take_sentences(tokenizer, body, deep)
        if len(asked) < deep or len(rest := text_of(tokenizer, rest, DOCUMENT)) == 0:
            continue
        texts = [("title", title), ("abstract", row["summary"]), *(("sentence", one) for one in asked)]
        questions += [{"kind": kind, "text": text, "document": len(documents)} for kind, text in texts]
        documents.append(rest)
    raise SystemExit(f"{data} has {len(documents)} documents of {DOCUMENT:,} tokens, not {count}: --documents")


def text_of(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """The text of the first tokens; empty if the text has fewer."""
    ends = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    return text[: ends[tokens - 1][1]] if len(ends) >= tokens else ""


def take_sentences(tokenizer: Tokenizer, body: str, count: int) -> tuple[list[str], str]:
    """At most `count` sentences of those between the tokens `DEEP`, evenly spread; and the body without them."""
    first, last = (len(text_of(tokenizer, body, tokens)) for tokens in DEEP)
    found = [] if last == 0 else [one for one in _sentences(body) if first <= one[0] and one[1] <= last]
    chosen = [found[number * len(found) // count] for number in range(count)] if len(found) >= count else found
    pieces, place = [], 0
    for begin, end in chosen:
        pieces.append(body[place:begin])
        place = end
    return [body[begin:end] for begin, end in chosen], "".join([*pieces, body[place:]])


def _sentences(body: str) -> Iterator[tuple[int, int]]:
    """Where whole sentences of the right number of words begin and end; none that the body repeats."""
    begin = len(body) - len(body.lstrip())
    for piece in sentences_of(body):
        sentence, end = piece.strip(), begin + len(piece)
        is_whole = sentence[:1].isupper() and sentence.endswith(".")
        if is_whole and WORDS[0] <= len(sentence.split()) <= WORDS[1] and body.count(sentence) == 1:
            yield end - len(sentence), end
        begin = end


# --- vectors --------------------------------------------------------------------------------------------------------


def rows_of(tokenizer: Tokenizer, text: str, way: Way) -> list[Tensor]:
    """The rows of a text, int64 `[tokens]` each, with the tokens that begin and end a row."""
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    pieces = [ids[at : at + way.row - 2] for at in range(0, len(ids), way.row - 2)][: way.rows]
    return [torch.tensor([tokenizer.cls_token_id, *piece, tokenizer.sep_token_id]) for piece in pieces]


@torch.no_grad()
def embed(model: Any, rows: Sequence[Tensor]) -> Tensor:
    """A unit vector for each row, float32 `[rows, hidden]`: the mean of its last hidden states."""
    states = (model(row[None]).last_hidden_state[0].float().mean(0) for row in rows)
    return torch.nn.functional.normalize(torch.stack(list(states)), dim=-1)


def _by_vectors(
    way: Way,
    folder: Path,
    tokenizer: Tokenizer,
    documents: Sequence[str],
    questions: Sequence[Mapping[str, Any]],
    kept: Path,
) -> tuple[Tensor, dict[str, Any]]:
    """The cosines of a way, `[questions, documents]`, and its costs; vectors and costs are kept."""
    file, costs = kept.with_suffix(".safetensors"), kept.with_suffix(".json")
    if not costs.exists():
        config = AsterismConfig.from_pretrained(folder, mixers=way.pattern)
        model = AsterismModel.from_pretrained(folder, config=config, dtype=torch.bfloat16).eval()
        asked = [embed(model, rows_of(tokenizer, one["text"], Way("", ROW, 1)))[0] for one in questions]
        read = [rows_of(tokenizer, text, way) for text in documents]
        embed(model, read[0])  # kernels and plans are made
        begun = time.process_time()
        vectors = torch.stack([embed(model, rows) for rows in read])
        seconds = time.process_time() - begun
        save_file({"documents": vectors, "questions": torch.stack(asked)}, file)
        tokens = sum(len(row) for rows in read for row in rows)
        found = {"tokens_per_document": tokens / len(read), "seconds_per_document": seconds / len(read)}
        costs.write_text(json.dumps({"pattern": way.pattern, **found}))
    vectors = load_file(file)
    return similarities(vectors["questions"], vectors["documents"], way.best), json.loads(costs.read_text())


def similarities(asked: Tensor, documents: Tensor, best: bool) -> Tensor:
    """Cosines `[questions, documents]` of unit vectors `[questions, hidden]` and `[documents, rows, hidden]`."""
    if best:
        return torch.einsum("qh,drh->qdr", asked, documents).amax(-1)
    return asked @ torch.nn.functional.normalize(documents.mean(1), dim=-1).T


def _by_words(documents: Sequence[str], questions: Sequence[Mapping[str, Any]]) -> Tensor:
    words = [counted(text) for text in documents]
    return torch.tensor([bm25(counted(one["text"]), words, k1=K1, b=B) for one in questions])


# --- scores ---------------------------------------------------------------------------------------------------------


def right(questions: Sequence[Mapping[str, Any]]) -> Tensor:
    """The number of the right document of each question."""
    return torch.tensor([one["document"] for one in questions])


def ranks(scores: Tensor, right: Tensor) -> Tensor:
    """The rank of the right document for each question, from 1; among equal scores it is the last.

    `scores` is `[questions, documents]`, `right` int64 `[questions]`.
    """
    mine = scores.gather(1, right[:, None])
    return (scores >= mine).sum(1)


def gains(ranks: Tensor) -> Tensor:
    """nDCG@10 of each question with one right document: 1 / log2(1 + rank) up to rank 10, then 0 (Jarvelin 2002)."""
    return torch.where(ranks <= AT, 1 / torch.log2(1.0 + ranks), 0.0)


def measures(ranks: Tensor, questions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """For each kind `ndcg`, its standard error over documents `error`, and `recall`."""
    found = {}
    for kind, asked in _kinds(questions):
        ndcg, error = over_documents(gains(ranks)[asked], right(questions)[asked])
        recall = (ranks[asked] <= AT).double().mean().item()
        found[kind] = {"ndcg": ndcg, "error": error, "recall": recall}
    return found


def differences(ranks: Tensor, compared: Tensor, questions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """For each kind how much more nDCG some ranks have than others, `gain`, and its standard error `error`."""
    found, values = {}, gains(ranks) - gains(compared)
    for kind, asked in _kinds(questions):
        gain, error = over_documents(values[asked], right(questions)[asked])
        found[kind] = {"gain": gain, "error": error}
    return found


def _kinds(questions: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """Each kind, and which questions are of it, bool `[questions]`."""
    for kind in KINDS:
        yield kind, torch.tensor([one["kind"] == kind for one in questions])


def over_documents(values: Tensor, documents: Tensor) -> tuple[float, float]:
    """The mean of the documents' means, and its standard error; questions about one document are not independent."""
    means = torch.stack([values[documents == one].mean() for one in documents.unique()]).double()
    return means.mean().item(), (means.std() / len(means) ** 0.5).item()


# --- the table ------------------------------------------------------------------------------------------------------


def report(record: Mapping[str, Any]) -> None:
    """Print the results in Markdown."""
    print(f"| way | {' | '.join(f'{kind}: nDCG@{AT} | recall@{AT}' for kind in KINDS)} | tokens | CPU s / document |")
    print(f"|{'---|' * (2 * len(KINDS) + 3)}")
    for row in record["rows"]:
        cells = [f"`{row['name']}`"]
        for kind in KINDS:
            found = row["kinds"][kind]
            cells += [f"{found['ndcg']:.3f} ± {found['error']:.3f}", f"{found['recall']:.3f}"]
        cells.append(f"{row['tokens_per_document']:,.0f}")
        cells.append(f"{row['seconds_per_document']:.2f}" if "seconds_per_document" in row else "")
        print(f"| {' | '.join(cells)} |")
    print(f"\n| way | compared with | {' | '.join(f'{kind}: nDCG gain' for kind in KINDS)} |")
    print(f"|{'---|' * (len(KINDS) + 2)}")
    for pair in record["pairs"]:
        found = [pair["kinds"][kind] for kind in KINDS]
        cells = [f"{one['gain']:+.3f} ± {one['error']:.3f}" for one in found]
        print(f"| `{pair['name']}` | `{pair['compared']}` | {' | '.join(cells)} |")
    print(f"\n{record['documents']} documents, questions: {record['questions']}, {record['dtype']}, {record['date']}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="RFCs as JSONL, compressed with xz")
    parser.add_argument("model", type=Path, nargs="?", help="the folder of a BERT with 512 positions")
    parser.add_argument("folder", type=Path, nargs="?", help="where the long model and the vectors are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument(
        "--report", type=Path, metavar="JSON", help="print the tables of a file of results, and no more"
    )
    parser.add_argument("--documents", type=int, default=64, help="how many documents to search (default 64)")
    parser.add_argument("--sentences", type=int, default=4, help="sentences of each that are questions (default 4)")
    arguments = parser.parse_args()
    if arguments.folder is None and arguments.report is None:
        parser.error("data, model and folder are needed, or --report")
    if arguments.documents < 2 or arguments.sentences < 1:
        parser.error("--documents must be at least 2, and --sentences at least 1")
    return arguments


if __name__ == "__main__":
    main()
