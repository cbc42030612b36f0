"""Imported checkpoints against the classes of Hugging Face they come from, in float64; and everything that is refused.

The models of Hugging Face are small and random, saved to folders and imported from there. What they do to the global
generators (BigBird seeds numpy's in every training step) is undone.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from small_checkpoints import change_tensors, draw_weights, edit, pattern_of, recorder, undone
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError, PatternError
from asterism.models import AsterismForMaskedLM, AsterismForPreTraining, AsterismModel, import_checkpoint
from asterism.models.importing.checkpoint import ARCHITECTURES, extend_positions
from asterism.patterns import parse

VOCABULARY, PADDING, POSITIONS = 40, 1, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "intermediate_size": 28,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "pad_token_id": PADDING,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
ATTENTION = {"num_attention_heads": 4, "attention_probs_dropout_prob": 0.0}
KINDS: dict[str, dict[str, Any]] = {
    "Bert": ATTENTION | {"max_position_embeddings": POSITIONS},
    "Roberta": ATTENTION | {"max_position_embeddings": POSITIONS + PADDING + 1, "layer_norm_eps": 1e-5},
    "XLMRoberta": ATTENTION | {"max_position_embeddings": POSITIONS + PADDING + 1},
    "Camembert": ATTENTION | {"max_position_embeddings": POSITIONS + PADDING + 1},
    "Longformer": ATTENTION | {"max_position_embeddings": POSITIONS + PADDING + 1, "attention_window": [4, 8]},
    "BigBird": ATTENTION | {"max_position_embeddings": POSITIONS, "attention_type": "original_full", "sep_token_id": 2},
    "FNet": {"max_position_embeddings": POSITIONS},
}
SPARSE = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 2}


def original(kind: str, head: str = "Model", **fields: Any) -> nn.Module:
    """A model of Hugging Face in float64, with weights, biases and norms that all matter."""
    with undone():
        config = getattr(transformers, f"{kind}Config")(**(SIZES | KINDS[kind] | fields))
        model = getattr(transformers, kind + head)(config).double().eval()
    draw_weights(model, spread_of=lambda name: 1.0 if "embeddings.weight" in name else 0.3)
    return model


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., nn.Module]:
    """A model of Hugging Face, saved, imported and loaded by a class of transformers."""

    def load(model: nn.Module, auto: type = AutoModel, **changes: Any) -> nn.Module:
        model.save_pretrained(tmp_path / "source")
        import_checkpoint(tmp_path / "source", tmp_path / "output", **changes)
        return auto.from_pretrained(tmp_path / "output").eval()

    return load


def batch(rows: int, length: int, padded: Sequence[int] = ()) -> dict[str, torch.Tensor]:
    """Random tokens and types; the last `padded[i]` tokens of row i are padding."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(3, VOCABULARY, (rows, length), generator=generator)
    types = torch.randint(0, 2, (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.long)
    for row, padding in enumerate(padded):
        mask[row, length - padding :] = 0
    tokens, types = tokens.masked_fill(mask == 0, PADDING), types * mask
    return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": types}


def difference(ours: torch.Tensor, theirs: torch.Tensor, mask: torch.Tensor) -> float:
    """The largest over the real tokens; both sides must be finite and not all alike."""
    assert ours.dtype == theirs.dtype == torch.float64
    assert ours.shape == theirs.shape
    assert theirs[mask.bool()].std() > 0.1
    return (ours - theirs).detach()[mask.bool()].abs().max().item()


# --- hidden states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [(), (0, 5, 19)], ids=["full", "padded"])
@pytest.mark.parametrize("length", [20, 33, POSITIONS])
@pytest.mark.parametrize("kind", ["Bert", "Roberta", "XLMRoberta", "Camembert", "BigBird"])
def test_dense_encoders(kind, length, padded, imported):
    theirs, inputs = original(kind), batch(3, length, padded)
    ours = imported(theirs)
    assert isinstance(ours, AsterismModel)
    with torch.no_grad():
        worst = difference(
            ours(**inputs).last_hidden_state, theirs(**inputs).last_hidden_state, inputs["attention_mask"]
        )
    assert worst < 1e-10


@pytest.mark.parametrize("length", [1, 20, 33, POSITIONS])
def test_fnet(length, imported):
    theirs, inputs = original("FNet", type_vocab_size=4), batch(2, length)
    ours, mask = imported(theirs), inputs.pop("attention_mask")
    with torch.no_grad():
        worst = difference(ours(**inputs).last_hidden_state, theirs(**inputs).last_hidden_state, mask)
    assert worst < 1e-10


@pytest.mark.parametrize("globals", [None, (0, 3, 17), ()], ids=["first", "three", "none"])
@pytest.mark.parametrize(("length", "padded"), [(8, ()), (31, (0, 7)), (POSITIONS, ()), (POSITIONS, (3, 40))])
def test_longformer(globals, length, padded, imported, softmax_in_double):
    theirs, inputs = original("Longformer"), batch(2, length, padded)
    ours = imported(theirs, globals=globals)
    places = [place for place in ((0,) if globals is None else globals) if place < length]
    where = torch.zeros_like(inputs["input_ids"])
    where[:, places] = 1
    with torch.no_grad():
        expected = theirs(**inputs, global_attention_mask=where).last_hidden_state
        assert difference(ours(**inputs).last_hidden_state, expected, inputs["attention_mask"]) < 1e-10


def test_the_activation_and_the_epsilon_of_norms_are_imported(imported):
    theirs, inputs = original("Bert", hidden_act="gelu_fast", layer_norm_eps=0.1), batch(2, 12)
    ours = imported(theirs)
    assert (ours.config.hidden_act, ours.config.layer_norm_eps) == ("gelu_new", 0.1)
    with torch.no_grad():
        theirs, ours = theirs(**inputs).last_hidden_state, ours(**inputs).last_hidden_state
    assert difference(ours, theirs, inputs["attention_mask"]) < 1e-10


# --- BigBird with its blocks ------------------------------------------------------------------------------------------


def train_with_recorded_blocks(
    model: nn.Module, inputs: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, list[list[np.ndarray]]]:
    """Hidden states in training mode, and per layer and head the random blocks int [blocks - 2, count] of that call."""
    drawn: list[list[np.ndarray]] = []
    for layer in model.encoder.layer:
        attention = layer.attention.self
        attention._bigbird_block_rand_mask_with_head = recorder(attention._bigbird_block_rand_mask_with_head, drawn)
    model.train()
    with undone():
        hidden = model(**inputs).last_hidden_state
    model.eval()
    return hidden, drawn


@pytest.mark.parametrize(("length", "padded"), [(40, ()), (60, ()), (58, ()), (60, (0, 9)), (64, (21, 3))])
def test_bigbird_block_sparse_given_the_same_random_blocks(length, padded, imported):
    """In training mode, without dropout. In evaluation mode Hugging Face points every random block at block 0.

    The pattern is laid over the padded length, as theirs is.
    """
    theirs, inputs = original("BigBird", **SPARSE), batch(2, length, padded)
    expected, drawn = train_with_recorded_blocks(theirs, inputs)
    n_blocks = -(-length // 4)
    assert len({str(rows) for layer in drawn for rows in layer}) == 8, "every layer and head draws its own"
    ours = imported(theirs, pattern=[pattern_of(blocks, n_blocks, 4) for blocks in drawn])
    hidden = ours(**inputs).last_hidden_state
    assert difference(hidden, expected, inputs["attention_mask"]) < 1e-10


def test_gradients_of_bigbird_block_sparse(imported):
    theirs, inputs = original("BigBird", **SPARSE), batch(2, 60, (0, 9))
    generator = torch.Generator().manual_seed(3)
    wanted = torch.randn(2, 60, 24, dtype=torch.float64, generator=generator) * inputs["attention_mask"][:, :, None]
    expected, drawn = train_with_recorded_blocks(theirs, inputs)
    (expected * wanted).sum().backward()
    ours = imported(theirs, pattern=[pattern_of(blocks, 15, 4) for blocks in drawn])
    (ours(**inputs).last_hidden_state * wanted).sum().backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    renamed = ARCHITECTURES["big_bird"].rename(gradients, "Model", tied=False).tensors
    own = dict(ours.named_parameters())
    assert renamed.keys() == own.keys()
    for name, gradient in renamed.items():
        scale = gradient.abs().max()
        # The gradient of the keys' bias is 0: it adds the same to all scores of a query.
        assert scale > 1e-3 or name.endswith("mixer.key.bias"), name
        assert (own[name].grad - gradient).abs().max() < 1e-10 * max(1.0, float(scale)), name


def test_bigbird_block_sparse_has_the_sizes_of_the_checkpoint_and_its_layers_as_seeds(imported):
    ours = imported(original("BigBird", **SPARSE))
    texts = [f"bigbird(block=4, window=3, random=2, globals=(0, -1), seed={layer}, heads=4)" for layer in range(2)]
    assert ours.config.mixers == texts
    assert [block.mixer.pattern for block in ours.layers] == [parse(text) for text in texts]


# --- heads ------------------------------------------------------------------------------------------------------------

HEADS = [
    *((kind, head) for kind in ("Bert", "Roberta", "Longformer", "FNet") for head in ("MaskedLM", "QuestionAnswering")),
    *((kind, "SequenceClassification") for kind in ("Bert", "Roberta", "Longformer", "BigBird", "FNet")),
    *((kind, "TokenClassification") for kind in ("Bert", "Roberta", "Longformer", "BigBird", "FNet")),
    ("BigBird", "MaskedLM"),
    *((kind, "PreTraining") for kind in ("Bert", "BigBird", "FNet")),
]
AUTO = {
    "MaskedLM": AutoModelForMaskedLM,
    "PreTraining": transformers.AutoModelForPreTraining,
    "QuestionAnswering": AutoModelForQuestionAnswering,
    "SequenceClassification": AutoModelForSequenceClassification,
    "TokenClassification": AutoModelForTokenClassification,
}


@pytest.mark.parametrize(("kind", "head"), HEADS)
def test_heads(kind, head, imported, softmax_in_double):
    labels = {"num_labels": 5} if head.endswith("Classification") else {}
    theirs, inputs = original(kind, f"For{head}", **labels), batch(2, 24, () if kind == "FNet" else (0, 6))
    mask = inputs["attention_mask"]
    if kind == "FNet":
        del inputs["attention_mask"]
    ours = imported(theirs, AUTO[head])
    globals = {}
    if kind == "Longformer":
        globals = {"global_attention_mask": torch.zeros_like(mask).index_fill(1, torch.tensor([0]), 1)}
    with torch.no_grad():
        expected, seen = theirs(**inputs, **globals), ours(**inputs)
    names = [name for name in expected if "logits" in name]
    assert names
    assert names == [name for name in seen if "logits" in name]
    for name in names:
        by_token = seen[name].shape[:2] == mask.shape and head != "SequenceClassification"
        assert difference(seen[name], expected[name], mask if by_token else torch.ones(2)) < 1e-10


@pytest.mark.parametrize(("kind", "name"), [("Bert", "cls.predictions"), ("Roberta", "lm_head")])
def test_a_decoder_that_is_not_tied_stays_so(kind, name, imported):
    theirs, inputs = original(kind, "ForMaskedLM", tie_word_embeddings=False), batch(2, 9)
    ours = imported(theirs, AutoModelForMaskedLM)
    assert not torch.equal(ours.lm_head.decoder.weight, ours.model.embed_tokens.weight)
    with torch.no_grad():
        assert difference(ours(**inputs).logits, theirs(**inputs).logits, inputs["attention_mask"]) < 1e-10


def test_a_tied_decoder_is_tied(imported):
    ours = imported(original("Roberta", "ForMaskedLM"), AutoModelForMaskedLM)
    assert isinstance(ours, AsterismForMaskedLM)
    assert ours.lm_head.decoder.weight is ours.model.embed_tokens.weight


def test_labels_and_settings_of_a_classifier_come_along(imported):
    theirs = original(
        "Roberta",
        "ForSequenceClassification",
        id2label={0: "no", 1: "yes", 2: "maybe"},
        problem_type="multi_label_classification",
        classifier_dropout=0.25,
        attention_probs_dropout_prob=0.1,
    )
    config = imported(theirs, AutoModelForSequenceClassification).config
    assert config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    assert (config.problem_type, config.classifier_dropout, config.pad_token_id) == (
        "multi_label_classification",
        0.25,
        PADDING,
    )


def test_the_pooler_of_a_backbone_is_kept_for_a_classifier(imported, tmp_path):
    theirs = original("BigBird")
    assert isinstance(imported(theirs), AsterismModel)
    with undone():
        classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "output")
    assert torch.equal(classifier.pooler.dense.weight, theirs.pooler.weight)
    assert torch.equal(classifier.pooler.dense.bias, theirs.pooler.bias)


def test_a_masked_lm_with_all_of_pre_training_keeps_all(tmp_path):
    """The published BERT names BertForMaskedLM and holds the tensors of both heads, some under their first names."""
    theirs = original("Bert", "ForPreTraining")
    theirs.save_pretrained(tmp_path / "source")
    edit(tmp_path / "source", architectures=["BertForMaskedLM"])
    path = tmp_path / "source" / "model.safetensors"
    old_names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = load_file(path)
    for new, old in old_names.items():
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    save_file(tensors | {"bert.embeddings.position_ids": torch.arange(POSITIONS)[None]}, path)
    report = import_checkpoint(tmp_path / "source", tmp_path / "output")
    assert (report.source, report.model) == ("BertForPreTraining", "AsterismForPreTraining")
    ours = AsterismForPreTraining.from_pretrained(tmp_path / "output")
    norm = theirs.bert.encoder.layer[1].attention.output.LayerNorm
    assert torch.equal(ours.next_sentence.weight, theirs.cls.seq_relationship.weight)
    assert torch.equal(ours.model.layers[1].mixer_norm.weight, norm.weight)
    assert torch.equal(ours.model.layers[1].mixer_norm.bias, norm.bias)


def test_a_checkpoint_that_names_no_class_is_known_by_its_tensors(tmp_path):
    for kind, head, model in [
        ("Longformer", "ForMaskedLM", "AsterismForMaskedLM"),
        ("FNet", "ForPreTraining", "AsterismForPreTraining"),
        ("Roberta", "Model", "AsterismModel"),
    ]:
        source = tmp_path / kind
        original(kind, head).save_pretrained(source)
        edit(source, architectures=None)
        assert import_checkpoint(source, tmp_path / f"{kind}-output").model == model


# --- longer and sparse ------------------------------------------------------------------------------------------------


def test_positions_are_copied_one_after_the_other():
    table = torch.arange(12.0).reshape(6, 2)
    extended = extend_positions(table, 15)
    assert torch.equal(extended, table[[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2]])
    assert torch.equal(extend_positions(table, 6), table)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Longformer", "BigBird", "FNet"])
def test_a_longer_model_equals_theirs_with_the_same_table(kind, imported, softmax_in_double):
    """Under 64 tokens nothing changes; over it, they agree when their table is made longer in the same way."""
    longer, short = 150, original(kind)
    ours = imported(short, length=longer)
    offset = KINDS[kind]["max_position_embeddings"] - POSITIONS
    theirs = original(kind, max_position_embeddings=longer + offset)
    table = short.embeddings.position_embeddings.weight
    with torch.no_grad():
        rows = theirs.embeddings.position_embeddings.weight
        theirs.load_state_dict(short.state_dict() | {"embeddings.position_embeddings.weight": rows})
        for position in range(longer):
            rows[offset + position] = table[offset + position % POSITIONS]
        inputs = batch(1, longer)
        mask = inputs.pop("attention_mask")
        where = torch.zeros_like(mask).index_fill(1, torch.tensor([0]), 1)
        extra = {"global_attention_mask": where} if kind == "Longformer" else {}
        expected = theirs(**inputs, **extra).last_hidden_state
        assert difference(ours(**inputs).last_hidden_state, expected, mask) < 1e-10


def test_a_pattern_makes_a_dense_checkpoint_sparse(imported):
    theirs, inputs = original("Bert"), batch(2, 30)
    ours = imported(theirs, pattern="interleave(window(left=3, right=2), star())")
    with torch.no_grad():
        hidden = theirs.embeddings(inputs["input_ids"], inputs["token_type_ids"])
        for layer, block in zip(theirs.encoder.layer, ours.layers, strict=True):
            allowed = torch.from_numpy(block.mixer.pattern.dense(30))[None]
            hidden = layer(hidden, attention_mask=torch.zeros(1, 1, 30, 30).double().masked_fill(~allowed, -math.inf))
        assert difference(ours(**inputs).last_hidden_state, hidden, inputs["attention_mask"]) < 1e-10


def test_a_pattern_is_all_that_longformer_reads(imported, tmp_path):
    """Token 0 is not global any more: nothing beyond the window reaches it, nor does it reach beyond."""
    theirs, inputs = original("Longformer"), batch(1, 30)
    ours = imported(theirs, pattern="window(left=2, right=2)")
    assert ours.config.global_projections is None
    assert ours.config.layer_mixers()[0] == parse("window(left=2, right=2)")
    other = inputs["input_ids"].clone()
    other[0, 20] = (other[0, 20] + 1) % VOCABULARY
    with torch.no_grad():
        changed = ours(**inputs).last_hidden_state != ours(**inputs | {"input_ids": other}).last_hidden_state
    assert changed.any(-1)[0].nonzero().flatten().tolist() == list(range(16, 25))


def test_a_pattern_with_global_tokens_is_both(imported, softmax_in_double):
    """Longformer's own pattern, given as a pattern, with its global tokens named besides."""
    theirs, inputs = original("Longformer", attention_window=4), batch(2, 31, (0, 7))
    ours = imported(theirs, pattern="window(left=2, right=2)", globals=(0, 5))
    assert ours.config.global_projections == [0, 5]
    where = torch.zeros_like(inputs["input_ids"]).index_fill(1, torch.tensor([0, 5]), 1)
    with torch.no_grad():
        expected = theirs(**inputs, global_attention_mask=where).last_hidden_state
        assert difference(ours(**inputs).last_hidden_state, expected, inputs["attention_mask"]) < 1e-10


@pytest.mark.parametrize("globals", [[POSITIONS], [0, 99999], [-1]])
def test_a_global_token_that_the_model_never_reaches_is_refused(globals, tmp_path):
    original("Longformer").save_pretrained(tmp_path / "source")
    with pytest.raises(ConfigurationError, match=rf"no token at place {globals[-1]:,}; the model reaches 64 tokens"):
        import_checkpoint(tmp_path / "source", tmp_path / "output", globals=globals)
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("head", "changes", "here", "theirs"),
    [
        ("ForQuestionAnswering", {}, "the tokens at 0 are global", "all tokens of the question are"),
        ("ForMaskedLM", {}, "the tokens at 0 are global", "none is"),
        ("ForSequenceClassification", {"globals": [0, 3]}, "the tokens at 0, 3 are global", "the first one is"),
        ("Model", {"pattern": "dense()"}, "no token is global", "none is"),
    ],
)
def test_the_report_says_which_tokens_are_global(head, changes, here, theirs, tmp_path):
    original("Longformer", head).save_pretrained(tmp_path / "source")
    (note,) = import_checkpoint(tmp_path / "source", tmp_path / "output", **changes).notes
    assert note.startswith(here)
    assert f"in Longformer{head}, unless its caller names others, {theirs} " in note


# --- the folder -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BertForMaskedLM with a tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints") / "bert"
    original("Bert", "ForMaskedLM").save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "far", "near", "##er"]
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 64}')


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_the_tokenizer_comes_along_and_knows_the_length(checkpoint, tmp_path):
    report = import_checkpoint(checkpoint, tmp_path / "output", length=100)
    assert report.tokenizer == ["tokenizer.json", "vocab.txt", "tokenizer_config.json"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "output")
    assert tokenizer.model_max_length == 100
    assert tokenizer.tokenize("far nearer") == ["far", "near", "##er"]
    import_checkpoint(checkpoint, tmp_path / "as-long")
    assert AutoTokenizer.from_pretrained(tmp_path / "as-long").model_max_length == 64


def test_shards_are_read_by_their_index(tmp_path):
    theirs = original("Roberta")
    theirs.save_pretrained(tmp_path / "source", max_shard_size="20KB")
    assert len(list((tmp_path / "source").glob("*.safetensors"))) > 1
    import_checkpoint(tmp_path / "source", tmp_path / "output")
    ours = AsterismModel.from_pretrained(tmp_path / "output")
    assert torch.equal(ours.embed_tokens.weight, theirs.embeddings.word_embeddings.weight)
    assert torch.equal(ours.positions.weight, theirs.embeddings.position_embeddings.weight[PADDING + 1 :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_stay(dtype, tmp_path):
    original("Bert", "ForMaskedLM").to(dtype).save_pretrained(tmp_path / "source")
    import_checkpoint(tmp_path / "source", tmp_path / "output")
    assert {tensor.dtype for tensor in load_file(tmp_path / "output" / "model.safetensors").values()} == {dtype}
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "output").dtype == dtype


def test_no_global_generator_is_touched(checkpoint, tmp_path):
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    import_checkpoint(checkpoint, tmp_path / "output")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def to_pickle(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_a_pickle_is_read_when_that_is_allowed(checkpoint, copy, tmp_path):
    to_pickle(copy)
    import_checkpoint(copy, tmp_path / "output", allow_pickle=True)
    import_checkpoint(checkpoint, tmp_path / "expected")
    ours, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("output", "expected"))
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_a_pickle_that_runs_code_is_refused(copy, tmp_path):
    to_pickle(copy)
    torch.save({"bert.weight": Malicious(tmp_path / "ran")}, copy / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin cannot be read as tensors only"):
        import_checkpoint(copy, tmp_path / "output", allow_pickle=True)
    assert not (tmp_path / "ran").exists()


# --- refusals ---------------------------------------------------------------------------------------------------------


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        lambda folder: change_tensors(folder, lambda tensors: tensors.pop("bert.encoder.layer.1.output.dense.bias")),
        r"lacks encoder\.layer\.1\.output\.dense\.bias$",
    ),
    "extra": (
        lambda folder: change_tensors(folder, lambda tensors: tensors.update({"bert.extra.weight": torch.ones(2)})),
        r"it has, and the class does not bert\.extra\.weight$",
    ),
    "deeper": (
        lambda folder: edit(folder, num_hidden_layers=1),
        r"the class does not encoder\.layer\.1\..* and 12 more$",
    ),
    "wider": (lambda folder: edit(folder, vocab_size=41), r"embeddings\.word_embeddings\.weight \[40, 24\] instead of"),
    "not tied": (
        lambda folder: change_tensors(
            folder, lambda tensors: tensors.update({"cls.predictions.decoder.weight": torch.ones(40, 24).double()})
        ),
        r"says that decoder and embedding are tied, but they differ",
    ),
    "two biases": (
        lambda folder: change_tensors(
            folder, lambda tensors: tensors.update({"cls.predictions.decoder.bias": torch.ones(40).double()})
        ),
        r"differs from another that stands for the same",
    ),
    "another head": (
        lambda folder: edit(folder, architectures=["BertForMultipleChoice"]),
        r"BertForMultipleChoice has no exact counterpart; of model_type bert these are imported: BertModel, BertForM",
    ),
    "a causal head": (lambda folder: edit(folder, architectures=["BertLMHeadModel"]), r"BertLMHeadModel has no exact"),
    "a classifier without its class": (
        lambda folder: edit(folder, architectures=["BertForSequenceClassification"]),
        r"lacks classifier\.bias, classifier\.weight, pooler\.dense\.bias, pooler\.dense\.weight; it has",
    ),
    "model type": (
        lambda folder: edit(folder, model_type="gpt2"),
        r"model_type 'gpt2'; imported are bart, bert, big_bird",
    ),
    "nearly": (lambda folder: edit(folder, model_type="berd"), r"Did you mean 'bert'\?"),
    "no model type": (lambda folder: edit(folder, model_type=None), r"model_type None; imported are"),
    "decoder": (lambda folder: edit(folder, is_decoder=True), r"the checkpoint has is_decoder=True"),
    "positions": (
        lambda folder: edit(folder, position_embedding_type="relative_key"),
        r"position_embedding_type='relative_key', positions inside attention, which is not imported; 'absolute' is",
    ),
    "activation": (lambda folder: edit(folder, hidden_act="mish"), r"hidden_act 'mish' is unknown here"),
    "field": (lambda folder: edit(folder, hidden_size="wide"), r"config\.json is damaged"),
    "config": (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is damaged"),
    "list": (lambda folder: (folder / "config.json").write_text("[]"), r"must hold one JSON object"),
    "no config": (lambda folder: (folder / "config.json").unlink(), r"config\.json is missing"),
    "cut off": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"1234567"),
        r"model\.safetensors is damaged",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"has no weights: neither model\.safeten"),
    "pickle": (to_pickle, r"pickle only \(pytorch_model\.bin\), which can run code .* pass --allow-pickle"),
    "tokenizer": (lambda folder: (folder / "tokenizer_config.json").write_text("]"), r"tokenizer_config\.json is dam"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_checkpoint_that_cannot_be_imported_is_refused_in_one_line(what, copy, tmp_path):
    spoil, message = SPOILT[what]
    spoil(copy)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=message) as raised:
        import_checkpoint(copy, tmp_path / "output")
    assert "\n" not in str(raised.value)
    assert sorted(tmp_path.iterdir()) == before, "nothing is half-written"


@pytest.mark.parametrize(
    ("kind", "head", "fields", "message"),
    [
        ("BigBird", "ForQuestionAnswering", {}, "BigBirdForQuestionAnswering has no exact counterpart"),
        ("BigBird", "Model", {"rescale_embeddings": True}, "rescale_embeddings=True"),
        ("BigBird", "Model", {"use_bias": False}, "use_bias=False"),
        ("Roberta", "ForMaskedLM", {"hidden_act": "relu"}, "hidden_act='relu'"),
        ("XLMRoberta", "ForMultipleChoice", {}, "XLMRobertaForMultipleChoice has no exact counterpart"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(kind, head, fields, message, tmp_path):
    original(kind, head, **fields).save_pretrained(tmp_path / "source")
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(tmp_path / "source", tmp_path / "output")
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"length": 63}, ConfigurationError, "length 63 is less than the 64 positions of the checkpoint; leave it out"),
        ({"pattern": "windw(3)"}, PatternError, "windw"),
        ({"pattern": ["dense()"]}, ConfigurationError, "1 patterns are listed for 2 layers"),
        ({"pattern": "interleave(dense(), fourier())"}, ConfigurationError, "gives layer 1 fourier()"),
        ({"pattern": "fixed(stride=8, summary=2, heads=3)"}, PatternError, "3"),
        ({"globals": [0]}, ConfigurationError, "globals are for Longformer"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(changes, error, message, checkpoint, tmp_path):
    with pytest.raises(error, match=message.replace("(", r"\(").replace(")", r"\)")):
        import_checkpoint(checkpoint, tmp_path / "output", **changes)
    assert not list(tmp_path.iterdir())


def test_a_pattern_for_fnet_is_refused(tmp_path):
    original("FNet").save_pretrained(tmp_path / "source")
    with pytest.raises(ConfigurationError, match=r"layer 0 dense\(\), where the checkpoint has the weights of fourier"):
        import_checkpoint(tmp_path / "source", tmp_path / "output", pattern="dense()")


def test_what_is_there_is_not_overwritten(checkpoint, tmp_path):
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "thesis.txt").write_text("42")
    with pytest.raises(CheckpointError, match="exists and is not an empty folder"):
        import_checkpoint(checkpoint, tmp_path / "output")
    with pytest.raises(CheckpointError, match="exists and is not an empty folder"):
        import_checkpoint(checkpoint, checkpoint)
    assert [file.name for file in (tmp_path / "output").iterdir()] == ["thesis.txt"]
    with pytest.raises(CheckpointError, match="is not a folder; give one with config.json"):
        import_checkpoint("bert-base-uncased", tmp_path / "other")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "../model.safetensors"}}, "'../model.safetensors' is not the name of a file"),
        ({"weight_map": {"a": "model-1.safetensors"}}, "model-1.safetensors is missing"),
        ({"weight_map": {"a": "own.safetensors"}}, "lacks the tensor a that the index promises"),
        ({"weight_map": {}}, "must have a weight_map"),
        ([], "must have a weight_map"),
    ],
)
def test_a_damaged_index_is_refused(index, message, copy, tmp_path):
    (copy / "model.safetensors").rename(copy / "own.safetensors")
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(copy, tmp_path / "output")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_imports(checkpoint, tmp_path, capsys):
    words = ["import", str(checkpoint), "--output", str(tmp_path / "output"), "--length", "128"]
    assert main([*words, "--pattern", "window(left=8, right=8) | global_tokens(0)"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    ours = AutoModelForMaskedLM.from_pretrained(tmp_path / "output").eval()
    assert lines[0].startswith("BertForMaskedLM -> AsterismForMaskedLM, ")
    assert lines[1] == "positions  128, repeating the checkpoint's 64"
    assert lines[2].startswith("pattern    window(left=8, right=8) | global_tokens(")
    assert lines[-1] == f"saved in {tmp_path / 'output'}"
    assert ours(torch.full((1, 128), 5)).logits.shape == (1, 128, VOCABULARY)


def test_the_command_speaks_json(tmp_path, capsys):
    original("Longformer").save_pretrained(tmp_path / "source")
    words = ["import", str(tmp_path / "source"), "--output", str(tmp_path / "output"), "--globals", "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "AsterismModel"
    assert report["mixers"] == ["longformer(window=4, globals=())", "longformer(window=8, globals=())"]
    assert len(report["left_out"]) == 12
    assert report["positions"] == [POSITIONS, POSITIONS]


def test_the_command_reads_a_pickle_only_when_told_to(copy, tmp_path, capsys):
    to_pickle(copy)
    words = ["import", str(copy), "--output", str(tmp_path / "output")]
    assert main(words) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and "pass --allow-pickle" in err
    assert not (tmp_path / "output").exists()
    assert main([*words, "--allow-pickle"]) == 0
    assert capsys.readouterr().out.endswith(f"saved in {tmp_path / 'output'}\n")


def test_the_command_fails_in_one_line(checkpoint, tmp_path, capsys):
    output = ["--output", str(tmp_path / "output")]
    for words, code in [
        ([str(tmp_path / "nothing"), *output], 4),
        ([str(checkpoint), *output, "--length", "8"], 2),
        ([str(checkpoint), *output, "--globals", "99999"], 2),
        ([str(checkpoint), *output, "--pattern", "widow(1)"], 2),
        ([str(checkpoint), *output, "--lenght", "80"], 2),
        ([str(checkpoint)], 2),
    ]:
        assert main(["import", *words]) == code
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)


def test_the_report_says_what_is_otherwise(tmp_path):
    original("BigBird", "ForSequenceClassification", **SPARSE, attention_probs_dropout_prob=0.1).save_pretrained(
        tmp_path / "source"
    )
    report = asdict(import_checkpoint(tmp_path / "source", tmp_path / "output"))
    assert report["left_out"] == ["bert.pooler.bias", "bert.pooler.weight"]
    assert any("random blocks" in note for note in report["notes"])
    assert any("from_pretrained(FOLDER, attention_dropout=0.1)" in note for note in report["notes"])
    assert report["tokenizer"] == []
