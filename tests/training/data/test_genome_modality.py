"""Genomes to train on: every base in one split, blocks and regions, both strands, and what is written."""

import json
import lzma
import zlib

import numpy as np
import pytest
from genome_files import fasta, random_genome, write
from refusals import refusing

from asterism.cli.main import main
from asterism.errors import ConfigurationError, DataError
from asterism.training.data.corpora.modality import parse_modality
from asterism.training.data.corpora.splits import SPLITS
from asterism.training.data.corpora.windows import WindowCorpus
from asterism.training.data.genomes import index, regions
from asterism.training.data.genomes.genome import GenomeSplits, compressed
from asterism.training.data.genomes.letters import reverse_complement
from asterism.training.data.genomes.ngram import yardsticks
from asterism.training.data.genomes.sequences import open_sequences
from asterism.training.pipeline import evaluate, train
from asterism.training.settings.configuration import ModelConfig, RunConfig

BLOCK = 256


@pytest.fixture(scope="module", autouse=True)
def small_blocks(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        kept = tmp_path_factory.mktemp("cache")
        patch.setattr(index, "_place", lambda: kept)  # ASTERISM_CACHE would have kernels built anew, too
        for module in (index, regions):
            patch.setattr(module, "GRID", BLOCK)
        yield


@pytest.fixture(scope="module")
def genome():
    return random_genome(5, {"chr1": 40_000, "chr2": 10_100, "chr3": 5_000})


@pytest.fixture(scope="module")
def path(genome, tmp_path_factory):
    return str(write(tmp_path_factory.mktemp("genome"), "genome.fa.gz", fasta(genome)))


def places(splits: GenomeSplits, split: str) -> dict[str, np.ndarray]:
    """How often each letter of each sequence is in a split; that its letters are those of the genome is checked."""
    pieces, counts = splits.pieces(split), {}
    for owner, start, size in zip(*(vars(pieces.parts)[name] for name in ("owners", "starts", "sizes")), strict=True):
        name = splits.sequences.names[owner]
        counts.setdefault(name, np.zeros(splits.sequences.length(name), dtype=int))[start : start + size] += 1
    return counts


def test_every_base_is_in_one_split_and_a_block_is_in_it_whole(genome, path):
    splits = parse_modality("genome()").splits(path)
    for name, letters in genome.items():
        zero = np.zeros(len(letters), dtype=int)
        counts = [places(splits, split).get(name, zero) for split in SPLITS]
        assert (sum(counts) == 1).all()
        for at in range(0, len(letters), BLOCK):
            assert sum(count[at] for count in counts) == 1
            assert all(len(set(count[at : at + BLOCK])) == 1 for count in counts)
    lengths = {split: splits.length(split) for split in SPLITS}
    assert sum(lengths.values()) == 55_100
    assert 0.85 < lengths["train"] / 55_100 < 0.95 and lengths["test"] and lengths["validation"]


def test_pieces_read_the_letters_of_their_places(genome, path):
    splits = parse_modality("genome()").splits(path)
    pieces = splits.pieces("train")
    assert len(pieces) == pieces.bounds[-1] and (np.diff(pieces.bounds) <= BLOCK).all()
    for piece in (0, 7, len(pieces.bounds) - 2):
        begin, end = pieces.bounds[piece : piece + 2].tolist()
        name, start = splits.sequences.names[pieces.parts.owners[piece]], pieces.parts.starts[piece]
        letters = genome[name][start : start + end - begin]
        assert pieces.read(begin, end).tobytes().decode() == letters
        assert pieces.read(begin + 3, end - 1).tobytes().decode() == letters[3:-1]


def test_documents_hold_every_letter_of_their_split_and_none_of_another(path):
    """What is scored stands in documents once; training passes over its own so often that nothing is missed."""
    splits = parse_modality("genome(reverse_complement=False)").splits(path)
    held_out = {split: list(splits.pieces(split).stretches(0, splits.length(split))) for split in SPLITS}
    for split in ("validation", "test"):
        letters = "".join(splits.documents(split)).replace("\n", "")
        assert letters == b"".join(one.tobytes() for one in held_out[split]).decode()
    training = "\n".join(splits.documents("train"))
    blocks = {split: [one.tobytes().decode() for one in held_out[split]] for split in SPLITS}
    words = {split: {one[at : at + 32] for one in blocks[split] for at in range(len(one) - 31)} for split in SPLITS}
    read = {one[at : at + 32] for one in training.split("\n") for at in range(len(one) - 31)}
    assert not read & (words["validation"] | words["test"])
    assert len(read & words["train"]) > 0.95 * len(words["train"])
    assert list(splits.documents("train")) == list(splits.documents("train"))
    fewer = parse_modality("genome(reverse_complement=False, passes=2)").splits(path)
    assert sum(map(len, fewer.documents("train"))) < 0.3 * len(training)


def test_copies_of_a_block_are_in_one_split(tmp_path):
    unit = random_genome(6, {"u": BLOCK})["u"]
    genome = random_genome(7, {"a": 60 * BLOCK})
    genome["b"], genome["c"] = unit * 20, unit.lower() * 20
    splits = parse_modality("genome()").splits(str(write(tmp_path, "g.fa", fasta(genome))))
    assert sum({"b", "c"} <= set(places(splits, split)) for split in SPLITS) == 1


def test_regions_are_their_splits_and_the_rest_is_divided(genome, path):
    modality = parse_modality('genome(validation="chr1:1,001-3000 chr3", test="chr2")')
    splits = modality.splits(path)
    found = places(splits, "validation")
    assert set(found) == {"chr1", "chr3"} and found["chr3"].all()
    assert np.flatnonzero(found["chr1"]).tolist() == list(range(1000, 3000))
    assert set(places(splits, "test")) == {"chr2"} and places(splits, "test")["chr2"].all()
    assert np.flatnonzero(places(splits, "train")["chr1"] == 0).tolist() == list(range(1000, 3000))
    only = parse_modality('genome(test="chr2:1-5")').splits(path)
    assert only.length("test") == 5 and 0.02 < only.length("validation") / 55_100 < 0.09


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('genome(test="chr4")', r"has no sequence 'chr4'\. Did you mean 'chr"),
        ('genome(test="chr1:0-5")', r"region 'chr1:0-5' is not within chr1:1-40,000"),
        ('genome(test="chr1:9-5")', "is not within"),
        ('genome(test="chr1:1-40001")', "is not within"),
        ('genome(test="chr2", validation="chr2:5-9")', r"named regions overlap at chr2:5"),
        ('genome(test="chr1 chr2 chr3")', "a split is empty; name regions"),
    ],
)
def test_regions_that_cannot_be_are_refused(path, text, message):
    with pytest.raises(DataError, match=message):
        parse_modality(text).splits(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("genome(test=3)", "test=3 must name regions"),
        ('genome(validation=" ")', "must name regions"),
        ("genome(passes=0)", "passes=0 must be from 1 to 1000"),
        ("genome(masked=lower)", "masked='lower' must be 'upper' or 'N'"),
        ("genome(most_unknown=2)", "most_unknown=2 must be from 0 to 1"),
        ("genome(most_unknown=True)", "must be from 0 to 1"),
        ("genome(reverse_complement=0.5)", "must be True or False"),
        ("genome(width=3)", "no argument 'width'"),
    ],
)
def test_settings_that_cannot_be_are_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_modality(text)


def test_a_modality_of_genomes_is_its_text():
    text = "genome(test='chr8 chr9', masked='N')"
    assert str(parse_modality(text)) == text
    assert str(parse_modality("genome(masked=N)")) == "genome(masked='N')"


def test_folders_are_splits(tmp_path):
    genome = random_genome(8, {"a": 30 * BLOCK, "b": 300, "c": 400})
    for folder, names in (("train", "a"), ("val", "b"), ("test", "c")):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "one.fa", fasta({name: genome[name] for name in names}))
    splits = parse_modality("genome()").splits(str(tmp_path))
    assert {split: set(places(splits, split)) for split in SPLITS} == {
        "train": {"a"},
        "validation": {"b"},
        "test": {"c"},
    }
    with refusing(DataError, "splits-and-regions"):
        parse_modality('genome(test="a")').splits(str(tmp_path))


def test_identity_says_which_folder_is_which_split(tmp_path):
    """The same files in the same order, once as train and val, once as test and train."""
    genome = random_genome(12, {"a": 30 * BLOCK, "b": 150 * BLOCK})
    found = []
    for folders in (("train", "val"), ("test", "train")):
        root = tmp_path / folders[0]
        for folder, name in zip(folders, genome, strict=True):
            (root / folder).mkdir(parents=True)
            write(root / folder, "one.fa", fasta({name: genome[name]}))
        found.append(parse_modality("genome()").splits(str(root)))
    assert [file.contents.sha256 for file in found[0].sequences.files] == [
        file.contents.sha256 for file in found[1].sequences.files
    ]
    assert found[0].sha256 != found[1].sha256


def test_blocks_that_are_mostly_unknown_are_left_out_and_said(tmp_path):
    genome = random_genome(9, {"a": 40 * BLOCK})
    letters = genome["a"]
    half = BLOCK // 2
    genome["a"] = (
        "N" * (BLOCK + half + 1) + letters[BLOCK + half + 1 : 3 * BLOCK - half] + "N" * half + letters[3 * BLOCK :]
    )
    path = write(tmp_path, "g.fa", fasta(genome))
    splits = parse_modality("genome()").splits(str(path))
    used = sum(places(splits, split).get("a", 0) for split in SPLITS)
    # The third block is half N, no more.
    assert np.flatnonzero(used == 0).tolist() == list(range(2 * BLOCK))
    assert splits.notes == (f"{path}: {2 * BLOCK} bases in blocks that are mostly N are left out (most_unknown)",)
    assert sum(map(parse_modality("genome(most_unknown=1)").splits(str(path)).length, SPLITS)) == 40 * BLOCK
    # Where a region cuts a block, each part is counted for itself.
    cut = parse_modality(f'genome(test="a:1-{BLOCK + half}")').splits(str(path))
    used = sum(places(cut, split).get("a", 0) for split in SPLITS)
    assert np.flatnonzero(used == 0).tolist() == list(range(BLOCK + half))


def test_training_reads_both_strands_and_scoring_one(path):
    splits = parse_modality("genome()").splits(path)
    turned = WindowCorpus(splits, 64, seed=3)
    plain = WindowCorpus(parse_modality("genome(reverse_complement=False)").splits(path), 64, seed=3)
    assert splits.sha256 == plain.sha256
    seen = []
    for ours, theirs in zip(turned.draw(4, 200), plain.draw(4, 200), strict=True):
        values, letters = (row[int(row[0] == 0) :].clamp(min=0).numpy().astype(np.uint8) for row in (ours, theirs))
        values, letters = values[values > 0], letters[letters > 0]
        seen.append(not np.array_equal(values, letters))
        assert np.array_equal(values, reverse_complement(letters) if seen[-1] else letters)
    assert 70 < sum(seen) < 130
    assert np.array_equal(turned.draw(4, 200), turned.draw(4, 200))
    assert not splits.pieces("validation").both_strands and not splits.pieces("test").both_strands


def test_identity_is_of_letters_and_of_how_they_are_read(genome, tmp_path):
    def identity(text: str, contents: str) -> str:
        return parse_modality(text).splits(str(write(tmp_path, "g.fa", contents))).sha256

    same = identity("genome()", fasta(genome))
    assert same == identity("genome()", fasta(genome, 30, "\r\n"))
    others = [identity(text, fasta(genome)) for text in ("genome(masked=N)", 'genome(test="chr2")')]
    others.append(identity("genome()", fasta({**genome, "chr3": genome["chr3"][:-1]})))
    assert len({same, *others}) == 4


def test_what_is_written_is_read_again(tmp_path):
    genome = parse_modality("genome()")
    first = np.frombuffer(b"ACGTN" * 25, dtype=np.uint8)
    second = np.frombuffer(b"AC\0gT", dtype=np.uint8)
    path = tmp_path / "new.fa"
    assert genome.write([first, second], path) == [path]
    rows = path.read_text().splitlines()
    assert rows[0] == ">sample1 125 bases" and [len(row) for row in rows[1:4]] == [60, 60, 5]
    assert rows[4:] == [">sample2 5 bases of which 2 were no letters and became N", "ACNNT"]
    with refusing(DataError, "prompt-sequences", "2"):
        genome.read_prompt(path)
    genome.write([first], path)
    assert np.array_equal(genome.read_prompt(path), first)
    with pytest.raises(ConfigurationError, match=r"the name of a file of bases must end in \.fa, .* or \.txt"):
        genome.write([first], tmp_path / "new.png")


def test_completions_are_written_beside_their_originals(tmp_path):
    first, second = (np.frombuffer(text, dtype=np.uint8) for text in (b"ACGT", b"ACTT"))
    path = tmp_path / "new.fa"
    parse_modality("genome()").write_completions([first, second], [2, 3], [[second, second], [first]], path)
    named = ["original1", "completion1.1 given=2", "completion1.2 given=2", "original2", "completion2.1 given=3"]
    letters = ["ACGT", "ACTT", "ACTT", "ACTT", "ACGT"]
    rows = [f">{name} 4 bases\n{text}\n" for name, text in zip(named, letters, strict=True)]
    assert path.read_text() == "".join(rows)


@pytest.mark.model
def test_a_run_trains_on_a_genome_and_writes_sequences(genome, path, tmp_path, capsys):
    run, prompt = tmp_path / "run", write(tmp_path, "prompt.fa", ">a\n" + genome["chr1"][:40] + "\n")
    model = ModelConfig(mixers="fixed(stride=8)", hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    config = RunConfig(model=model, data=path, modality="genome()", context=64, batch_size=4, steps=3, warmup_steps=1)
    report = train(config, run, progress=False)
    assert {"zlib", "order 2", "order 16"} <= report.baselines.keys()
    (sample,) = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    pieces = parse_modality("genome()").splits(path).pieces("validation")
    assert sample["bases"].encode() == pieces.read(0, 64).tobytes() and len(sample["guessed"]) == 64
    assert set(sample["guessed"]) <= set("ACGTN?")
    assert "bases" in json.loads((run / "run.json").read_text())["corpus"]
    assert evaluate(run, split="test").bytes_scored == parse_modality("genome()").splits(path).length("test")
    for number, extra in enumerate(
        (["--count", "2"], ["--prompt", str(prompt), "--length", "24"], ["--complete", "2"])
    ):
        output = tmp_path / f"{number}.fasta"
        assert main(["generate", str(run), "--output", str(output), *extra]) == 0
        assert "bases of" in capsys.readouterr().out
        made = open_sequences(output)
        assert len(made.names) == (2, 1, 4)[number]
    assert made.names == ("original1", "completion1.1", "original2", "completion2.1")
    continued = open_sequences(tmp_path / "1.fasta")
    assert continued.read("sample1", 0, 40).tobytes().decode() == genome["chr1"][:40]
    assert continued.length("sample1") == 64
    assert main(["generate", str(run), "--output", str(tmp_path / "x.png")]) == 2


def test_compressors_score_the_same_bases():
    bases = np.frombuffer(random_genome(10, {"a": 20_000})["a"].encode(), dtype=np.uint8)
    bits = compressed(bases)
    assert 2 <= bits["xz of 2 bits a base"] < 2.1 and 2 < bits["zlib"] < 2.6
    assert bits["zlib"] == 8 * len(zlib.compress(bases.tobytes(), 9)) / 20_000
    repeated = np.tile(bases[:100], 200)
    letters = 8 * len(lzma.compress(repeated.tobytes(), preset=9 | lzma.PRESET_EXTREME)) / 20_000
    assert compressed(repeated).get("xz of letters", letters) == letters


def test_baselines_are_of_the_places_that_are_scored(path):
    genome = parse_modality("genome()")
    splits = genome.splits(path)
    pieces = splits.pieces("validation")
    bases = np.concatenate([pieces.read(*pieces.bounds[at : at + 2].tolist()) for at in range(len(pieces.bounds) - 1)])
    assert np.array_equal(np.concatenate([*pieces.stretches(10, 700)]), bases[10:700])
    found = genome.baselines(splits, "validation", 10, 700)
    assert compressed(bases[10:700]).items() <= found.items()
    train = splits.pieces("train")
    counted = [train.read(*train.bounds[at : at + 2].tolist()) for at in range(len(train.bounds) - 1)]
    assert found["order 11"] == pytest.approx(yardsticks(counted, [bases[10:700]])["order 11"], rel=0.01)
    few = [*train.sampled(len(train) // 4)]
    assert 0.2 < sum(map(len, few)) / len(train) < 0.3 and np.array_equal(few[0], counted[0])


def test_text_of_a_genome_needs_a_path():
    with refusing(DataError, "genome-needs-file"):
        parse_modality("genome()").splits(None)
