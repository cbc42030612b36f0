"""English to German with dense and sparse encoders: the comparison of Yun 2020, section 5, on a small scale.

    python benchmarks/translation.py runs/translation benchmarks/results/translation.json \\
        --english Translation-en.xz --german Translation-de.bz2
    python benchmarks/translation.py --report benchmarks/results/translation.json

`asterism/reproduce/data/debian_pairs.py` says where the two files are, and which pairs are made of them. One BPE for
both languages, one decoder, causal, that reads all of the source, one seed, equal batches in equal order and equally
many steps: only the patterns of the encoder differ. Beside the dense one stand STRIDED and FIXED in the three forms of
Yun 2020. In UNION every head reads both parts of a pattern; in MULTIHEAD one half of the heads reads one part, the
other half the other; in SEQUENTIAL layers take turns. UNION reads about twice as many keys at the same w, so the others
have a greater w, at which they read as many; one more has the w of UNION. The record has how many keys a token reads,
over all test texts, and what theory certifies.

Scores are BLEU and chrF of sacrebleu, from 0 to 100, of test texts that are in no way near those trained on. Beside the
models stand the untranslated source, and the translation of the nearest source in training. What is finished in the
folder is not done again, and what was stopped goes on; every stage is a process of its own.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
import torch
from sacrebleu.significance import PairedTest

from asterism.bench.machine import describe
from asterism.models import AsterismConfig
from asterism.patterns import Pattern, as_schedule, yun_fixed, yun_strided
from asterism.reproduce.data.debian_pairs import Pair, pairs, read, split, words_of, write
from asterism.theory import certify
from asterism.training import FineTuneConfig, Run, open_run, predict, train
from asterism.training.data.corpora.tokenization import make_tokenizer

HEADS = 4
UNION_W, OTHERS_W = 5, 20
"""The w of UNION, and that of the forms whose heads and layers read one part each, at about as many keys."""
LENGTH = 160
"""More tokens than any text of so many words has."""
CERTIFIED = 40
"""The length at which theory is asked, a multiple of every w: FIXED never reads what stands behind the last block."""
SETTINGS = ("steps", "batch_size", "learning_rate", "seed", "threads", "words", "vocabulary", "tested")
SHOWN = 8
SURE = 0.05
"""Below this p a difference is marked."""


def encoders() -> dict[str, str]:
    """The patterns of each encoder by its name; those of the last tell what is due to the form, and what to the w."""
    found = {"dense": "dense()"}
    for name, make in (("strided", yun_strided), ("fixed", yun_fixed)):
        one, other = (str(part) for part in make(OTHERS_W).parts)
        per_head = ", ".join([one] * (HEADS // 2) + [other] * (HEADS // 2))
        found[f"{name} union"] = str(make(UNION_W))
        found[f"{name} multihead"] = f"per_head([{per_head}])"
        found[f"{name} sequential"] = f"interleave({one}, {other})"
    one, other = (str(part) for part in yun_strided(UNION_W).parts)
    return {**found, "strided sequential narrow": f"interleave({one}, {other})"}


def main() -> None:
    """Write, train, ask, record, print."""
    arguments = _arguments()
    if arguments.report:
        report(json.loads(arguments.report.read_text()))
    elif arguments.stage:
        stage, name = arguments.stage
        _stage(stage, name, arguments)
    else:
        report(_all(arguments))


def _all(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rows; the file of results has those that there are after each."""
    folder = arguments.folder
    if not (counts := folder / "pairs.json").exists():
        _child("pairs", "")
    record: dict[str, Any] = {
        "machine": describe("cpu"),
        "settings": {name: getattr(arguments, name) for name in SETTINGS},
        "pairs": json.loads(counts.read_text()),
        "baselines": json.loads(_child("baselines", "")),
        "rows": [],
    }
    for name, text in encoders().items():
        _child("train", name)
        row = json.loads(_child("ask", name))
        record["rows"].append({"encoder": name, "mixers": text, **row})
        _keep(record, arguments.output)
    record["compared"] = json.loads(_child("compare", ""))
    _keep(record, arguments.output)
    return record


def _keep(record: Mapping[str, Any], output: Path | None) -> None:
    if output:
        output.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


# --- one stage, in a process of its own -----------------------------------------------------------------------------


def _child(stage: str, name: str) -> str:
    """What a stage prints."""
    print(stage, name, file=sys.stderr)
    words = [sys.executable, *sys.argv, "--stage", stage, name]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def _stage(stage: str, name: str, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    folder = arguments.folder
    if stage == "pairs":
        _pairs(folder, arguments)
    elif stage == "baselines":
        print(json.dumps(baselines(read(folder / "train.jsonl"), read(folder / "test.jsonl"))))
    elif stage == "compare":
        written = {name: _asked(name, folder)["beams_1"]["written"] for name in encoders()}
        print(json.dumps(compared(written, read(folder / "test.jsonl"))))
    elif stage == "train":
        run = _run(name, folder)
        train(configuration(name, folder, arguments), run, resume=(run / "run.json").exists())
    else:
        found = _asked(name, folder)
        for beams in ("beams_1", "beams_4"):
            found.get(beams, {}).pop("written", None)
        print(json.dumps(found, ensure_ascii=False))


def _run(name: str, folder: Path) -> Path:
    return folder / name.replace(" ", "-")


def _pairs(folder: Path, arguments: argparse.Namespace) -> None:
    """The files of pairs, the tokenizer, and of each encoder the shape; last of all, how many pairs there are."""
    folder.mkdir(parents=True, exist_ok=True)
    every = pairs(arguments.english, arguments.german, most_words=arguments.words)
    splits = split(every, validation=arguments.tested // 10, test=arguments.tested)
    for name in ("train", "validation", "test"):
        write(getattr(splits, name), folder / f"{name}.jsonl")
    texts = [text for pair in splits.train for text in pair]
    tokenizer = make_tokenizer(f"bpe:{arguments.vocabulary}", texts, LENGTH)
    for name, text in encoders().items():
        shape = folder / "shapes" / name.replace(" ", "-")
        tokenizer.save_pretrained(shape)
        AsterismConfig(
            mixers=text,
            decoder_mixers="causal()",
            vocab_size=len(tokenizer),
            hidden_size=128,
            num_hidden_layers=4,
            num_decoder_layers=2,
            num_attention_heads=HEADS,
            position_type="rotary",
            max_position_embeddings=LENGTH,
            hidden_act="gelu",
            initializer_gain=0.354,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.sep_token_id,
            decoder_start_token_id=tokenizer.cls_token_id,
        ).save_pretrained(shape)
    lengths = [len(row) for row in tokenizer(texts)["input_ids"]]
    counts = {
        "all": len(every),
        "train": len(splits.train),
        "near": splits.near,
        "tokens_per_source": float(np.mean(lengths[::2])),
        "tokens_per_target": float(np.mean(lengths[1::2])),
        "most_tokens": max(lengths),
    }
    (folder / "pairs.json").write_text(json.dumps(counts))


def configuration(name: str, folder: Path, arguments: argparse.Namespace) -> FineTuneConfig:
    """A new model of the shape of an encoder, learning to translate."""
    return FineTuneConfig(
        task="translate",
        model=str(folder / "shapes" / name.replace(" ", "-")),
        from_scratch=True,
        data=str(folder / "train.jsonl"),
        validation=str(folder / "validation.jsonl"),
        length=LENGTH,
        target_length=LENGTH,
        group_by_length=True,
        batch_size=arguments.batch_size,
        epochs=1000.0,
        steps=arguments.steps,
        optimizer="muon",
        learning_rate=arguments.learning_rate,
        warmup_steps=50,
        dtype=arguments.dtype,
        evaluation_every=arguments.steps,
        checkpoint_every=200,
        seed=arguments.seed,
    )


def _asked(name: str, folder: Path) -> dict[str, Any]:
    """What a finished model writes for the test texts; by beams, too, where the encoder is dense."""
    run = _run(name, folder)
    asked = run.with_suffix(".asked.json")
    if asked.exists():
        found: dict[str, Any] = json.loads(asked.read_text())
        return found
    opened, test, text = open_run(run), read(folder / "test.jsonl"), encoders()[name]
    learned, tokenizer = opened.record["result"], opened.tokenizer
    assert tokenizer is not None  # a task's run has one
    lengths = [len(row) for row in tokenizer([pair.source for pair in test])["input_ids"]]
    found = {
        "keys_per_token": keys_per_token(text, lengths),
        "theory": theory(text),
        **{key: learned[key] for key in ("steps", "minutes", "parameters")},
    }
    for beams in (1, 4) if name == "dense" else (1,):
        began = time.perf_counter()
        written = translated(opened, test, beams)
        seconds = time.perf_counter() - began
        found[f"beams_{beams}"] = {**scores(written, test), "seconds": seconds, "written": written}
        found["shown"] = [[*pair, text] for pair, text in zip(test[:SHOWN], written[:SHOWN], strict=True)]
    asked.write_text(json.dumps(found, ensure_ascii=False))
    return found


def translated(run: Run, pairs: Sequence[Pair], beams: int) -> list[str]:
    """What the model of a run writes for each source."""
    asked: Any = run.objective  # of a task
    asked.task = replace(asked.task, num_beams=beams)
    rows = ({"source": pair.source} for pair in pairs)
    return [row["predicted_target"] for row in predict(run, rows)]


def scores(written: Sequence[str], pairs: Sequence[Pair]) -> dict[str, Any]:
    """BLEU and chrF from 0 to 100, each with its signature."""
    wanted = [[pair.target for pair in pairs]]
    found: dict[str, Any] = {}
    for metric in (sacrebleu.BLEU(), sacrebleu.CHRF()):
        name = type(metric).__name__.lower()
        found[name] = metric.corpus_score(list(written), wanted).score
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


def compared(written: Mapping[str, Sequence[str]], pairs: Sequence[Pair]) -> dict[str, Any]:
    """How sure the scores of each are, by resampling the test texts in pairs with the first, 1,000 times (Koehn 2004).

    `ci` is half the width of the interval that has 95% of the samples; `p` is that of a difference to the first.
    """
    metrics: dict[str, Any] = {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF()}
    wanted = [[pair.target for pair in pairs]]
    systems = list(written.items())
    results: dict[str, Any] = PairedTest(systems, metrics, wanted, test_type="bs", n_samples=1000)()[1]
    del results["System"]  # their names, in this order
    found: dict[str, Any] = {name: {} for name in written}
    for metric, each in zip(metrics, results.values(), strict=True):
        for name, one in zip(written, each, strict=True):
            found[name] |= {f"{metric}_ci": float(one.ci), f"{metric}_p": one.p_value and float(one.p_value)}
    return found


# --- patterns ---------------------------------------------------------------------------------------------------------


def keys_per_token(text: str, lengths: Sequence[int]) -> float:
    """How many keys a token reads, in the mean over the tokens of texts, over heads, and over layers."""
    patterns = as_schedule(text).patterns
    read = sum(count * _pairs_read(pattern, n) for n, count in Counter(lengths).items() for pattern in patterns)
    return read / sum(lengths) / len(patterns)


def _pairs_read(pattern: Pattern, n: int) -> float:
    """How many pairs a head allows at length n, in the mean over heads."""
    places = np.arange(n)
    each = [pattern.allows(places[:, None], places[None], n, head).sum() for head in range(pattern.heads)]
    return float(np.mean(each))


def theory(text: str) -> dict[str, Any]:
    """What Yun 2020 asks of the patterns, at length CERTIFIED: its three conditions, and the s of the third."""
    certificate = certify(text, CERTIFIED)
    return {
        "universal": certificate.yun,
        "self_loops": certificate.self_loops,
        "hamiltonian_path": certificate.hamiltonian_path,
        "layers_to_reach_all": certificate.hops,
        "star": certificate.star,
    }


# --- without a model ------------------------------------------------------------------------------------------------


def baselines(train: Sequence[Pair], test: Sequence[Pair]) -> dict[str, Any]:
    """Scores of the source as it is, and of the translation whose source is nearest by the cosine of TF-IDF."""
    memory = [train[number].target for number in nearest([one.source for one in train], [one.source for one in test])]
    return {"copy of the source": scores([pair.source for pair in test], test), "TF-IDF memory": scores(memory, test)}


def nearest(there: Sequence[str], asked: Sequence[str]) -> Iterator[int]:
    """The number of the text that is nearest to each: the cosine of TF-IDF vectors of words; the first if none is."""
    counts = [Counter(words_of(text)) for text in there]
    having = Counter(word for one in counts for word in one)
    weight = {word: math.log((1 + len(there)) / (1 + number)) for word, number in having.items()}
    index: dict[str, list[tuple[int, float]]] = {}
    for number, one in enumerate(counts):
        norm = math.sqrt(sum((count * weight[word]) ** 2 for word, count in one.items())) or 1.0
        for word, count in one.items():
            index.setdefault(word, []).append((number, count * weight[word] / norm))
    for text in asked:
        near = np.zeros(len(there))
        for word, count in Counter(words_of(text)).items():
            for number, value in index.get(word, ()):
                near[number] += count * weight[word] * value
        yield int(near.argmax())


# --- the table ------------------------------------------------------------------------------------------------------


def report(record: Mapping[str, Any]) -> None:
    """The comparison in Markdown."""
    print("| encoder | keys per token | layers to reach all | BLEU | chrF |")
    print("|---|---|---|---|---|")
    for row in record["rows"]:
        hops, compared = row["theory"]["layers_to_reach_all"], record["compared"][row["encoder"]]
        for beams in (1, 4):
            if (found := row.get(f"beams_{beams}")) is not None:
                name = row["encoder"] + (f", {beams} beams" if beams > 1 else "")
                cells = [f"{row['keys_per_token']:.1f}", f"{hops}", *_scores(found, compared if beams == 1 else {})]
                print(f"| {name} | {' | '.join(cells)} |")
    for name, found in record["baselines"].items():
        print(f"| no model: {name} | | | {' | '.join(_scores(found, {}))} |")
    first = record["rows"][0]
    print(f"\n{first['beams_1']['bleu_signature']}\n{first['beams_1']['chrf_signature']}")
    print(", ".join(f"{name} {value:,g}" for name, value in {**record["settings"], **record["pairs"]}.items()))
    for source, target, written in first["shown"]:
        print(f"\n> {source}\n>\n> {target}\n>\n> **{written}**")


def _scores(found: Mapping[str, Any], compared: Mapping[str, Any]) -> Iterator[str]:
    """BLEU and chrF, how sure they are if that is known, and a star where the difference to the first is sure."""
    for name in ("bleu", "chrf"):
        interval, p = compared.get(f"{name}_ci"), compared.get(f"{name}_p")
        sure = f" ± {interval:.1f}" if interval is not None else ""
        yield f"{found[name]:.1f}{sure}{'*' if p is not None and p < SURE else ''}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where pairs and runs are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--report", type=Path, metavar="JSON", help="print the table of a file of results, and no more")
    parser.add_argument("--english", type=Path, help="Debian's Translation-en.xz")
    parser.add_argument("--german", type=Path, help="Debian's Translation-de.bz2")
    parser.add_argument("--words", type=int, default=24, help="of a text, at most (default 24)")
    parser.add_argument("--vocabulary", type=int, default=4000, help="pieces of the BPE of both languages")
    parser.add_argument("--tested", type=int, default=500, help="pairs held out to be scored (default 500)")
    parser.add_argument("--steps", type=int, default=600, help="of each run (default 600)")
    parser.add_argument("--batch-size", type=int, default=64, help="pairs a step (default 64)")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.report is None and None in (arguments.folder, arguments.english, arguments.german):
        parser.error("a folder, --english and --german are needed, or --report")
    return arguments


if __name__ == "__main__":
    main()
