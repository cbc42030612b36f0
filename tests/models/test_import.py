"""Imported checkpoints against the classes of Hugging Face they come from, in float64.

The models of Hugging Face are small and random, saved to folders and imported from there. What they do to the global
generators (BigBird seeds numpy's in every training step) is undone.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hugging_face_encoders import KINDS, PADDING, POSITIONS, SPARSE, VOCABULARY, batch, difference, original
from safetensors.torch import load_file, save_file
from small_checkpoints import edit, pattern_of, recorder, undone
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from asterism.errors import ConfigurationError
from asterism.models import AsterismForMaskedLM, AsterismForPreTraining, AsterismModel, import_checkpoint
from asterism.models.importing.checkpoint import ARCHITECTURES, extend_positions
from asterism.patterns import parse


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., nn.Module]:
    """A model of Hugging Face, saved, imported and loaded by a class of transformers."""

    def load(model: nn.Module, auto: type = AutoModel, **changes: Any) -> nn.Module:
        model.save_pretrained(tmp_path / "source")
        import_checkpoint(tmp_path / "source", tmp_path / "output", **changes)
        return auto.from_pretrained(tmp_path / "output").eval()

    return load


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
    sizes = "block=4, window_blocks=3, random=2, globals=(0, -1)"
    texts = [f"bigbird({sizes}, seed={layer}, heads=4)" for layer in range(2)]
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
    with pytest.raises(
        ConfigurationError, match=rf"position {globals[-1]:,} is beyond the model, which has 64 positions"
    ):
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
