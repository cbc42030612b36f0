"""Masked language modelling of genomes: what is masked is counted in bases, and letters that are none are refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from genome_files import fasta, random_genome, write
from refusals import refusing
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from asterism.errors import ConfigurationError, DataError
from asterism.shape import ModelConfig
from asterism.training import RunConfig, evaluate, open_run, train
from asterism.training.data.corpora.tokenization import bytes_of_tokens, make_tokenizer
from asterism.training.objectives.masked import MaskedRows

pytestmark = pytest.mark.model

MODEL = ModelConfig(mixers="window(4, 4)", hidden_size=16, num_hidden_layers=1, num_attention_heads=2)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("genome")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTERISM_CACHE", str(folder / "cache"))
        path = write(folder, "genome.fa", fasta(random_genome(3, {"chr1": 30_000, "chr2": 4_000, "chr3": 3_000})))
        yield RunConfig(
            model=MODEL,
            objective="mlm",
            modality='genome(validation="chr2", test="chr3", passes=2)',
            data=str(path),
            context=64,
            batch_size=4,
            steps=2,
            dtype="float32",
        )


@pytest.mark.parametrize("tokenizer", ["bases", "kmer:3", "dna-bpe:60"])
def test_a_run_on_a_genome_says_bits_per_base(config, tokenizer, tmp_path):
    found = train(replace(config, tokenizer=tokenizer), tmp_path / "run", progress=False)
    run = open_run(tmp_path / "run")
    for split, letters in (("validation", 4_000), ("test", 3_000)):
        scores = evaluate(run, split=split)
        rows = MaskedRows(run.config, run.config.reads().splits(run.config.data), split, run.tokenizer)
        assert "".join(run.tokenizer.convert_ids_to_tokens(rows.stream.tokens)).replace("[SEP]", "").isalpha()
        share = scores.tokens_masked / (len(rows.starts) * rows.content)
        assert scores.bytes_masked == pytest.approx(share * letters, rel=0.2)
        nats = scores.masked_loss * scores.tokens_masked
        assert scores.bits_per_byte == pytest.approx(nats / math.log(2) / scores.bytes_masked)
    assert found.validation_bits_per_byte == evaluate(run).bits_per_byte
    assert 1.5 < found.unigram_bits_per_byte < 2.3
    if tokenizer == "bases":
        assert found.bytes_masked == found.tokens_masked
        assert found.unigram_bits_per_byte == pytest.approx(2, abs=0.05)


def test_letters_that_are_no_bases_are_refused(config, tmp_path):
    text = tmp_path / "text"
    text.write_text("ACGT" * 2_000 + "x" + "ACGT" * 2_000)
    asked = replace(config, modality="bytes()", tokenizer="bases", data=str(text))
    with pytest.raises(DataError, match="the train split of .*text has 1 letters other than A, C, G, T and N"):
        train(asked, tmp_path / "run", progress=False)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_tokens_of_bytes_are_refused(config, tokenizer, tmp_path):
    with refusing(ConfigurationError, "tokenizer-of-genome"):
        train(replace(config, tokenizer=tokenizer), tmp_path / "run", progress=False)


def test_tokens_stand_for_bytes_or_do_not_say():
    for name, text in (("bpe:300", "größer than"), ("bytes", "größer"), ("kmer:2", "ACGTN"), ("bases", "ACN")):
        tokenizer = make_tokenizer(name, ["größer than that"], 64)
        tokens = tokenizer(text)["input_ids"]
        assert bytes_of_tokens(tokenizer)[tokens].sum() == len(text.encode()), name
        assert not bytes_of_tokens(tokenizer)[tokenizer.all_special_ids].any()
    words = Tokenizer(models.WordLevel({"a": 0, "##b": 1}, unk_token="a"))
    assert bytes_of_tokens(PreTrainedTokenizerFast(tokenizer_object=words, pad_token="a")) is None
    assert isinstance(bytes_of_tokens(make_tokenizer("bases", [], 8)), np.ndarray)
