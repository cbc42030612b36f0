"""Imported encoder-decoders against the classes of Hugging Face they come from; and everything that is refused.

As in `test_import.py`, the models of Hugging Face are small and random, saved to folders and imported from there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from small_checkpoints import change_tensors, draw_weights, edit, pattern_of, recorder, undone
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError
from asterism.models import AsterismForConditionalGeneration, import_checkpoint
from asterism.models.importing.checkpoint import ARCHITECTURES
from asterism.patterns import in_full, parse

VOCABULARY, PADDING, END, START, POSITIONS = 40, 1, 2, 3, 64
TOKENS = {
    "vocab_size": VOCABULARY,
    "pad_token_id": PADDING,
    "bos_token_id": 0,
    "eos_token_id": END,
    "decoder_start_token_id": START,
    "d_model": 24,
}
STACKS = TOKENS | {
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 28,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": POSITIONS,
    "dropout": 0.0,
}
BUCKETS = TOKENS | {
    "d_kv": 5,
    "d_ff": 28,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "dropout_rate": 0.0,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("Bart", STACKS),
    "bart, scaled": ("Bart", STACKS | {"scale_embedding": True, "activation_function": "relu"}),
    "pegasus": ("Pegasus", STACKS | {"scale_embedding": True, "activation_function": "relu"}),
    "bigbird_pegasus": ("BigBirdPegasus", STACKS | {"attention_type": "original_full"}),
    "bigbird_pegasus, biased": ("BigBirdPegasus", STACKS | {"attention_type": "original_full", "use_bias": True}),
    "t5": ("T5", BUCKETS),
    "t5 v1.1": ("T5", BUCKETS | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "led": (
        "LED",
        STACKS
        | {"attention_window": [4, 8], "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 32},
    ),
}
SPARSE = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 2}
LAST = ("lm_head.weight", "final_logits_bias")
BOTH_SIDES = ("t5", "t5 v1.1")
"""Where Hugging Face keeps its promise of padding on the left, too: elsewhere its positions count columns."""


def original(name: str, **fields: Any) -> nn.Module:
    """A model of Hugging Face in float64, with weights, biases and norms that all matter."""
    kind, own = KINDS[name]
    with undone():
        config = getattr(transformers, f"{kind}Config")(**(own | fields))
        model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).double().eval()
    if config.to_dict().get("scale_decoder_outputs", True) is False:
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    draw_weights(model)
    return model


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Any]:
    """A model of Hugging Face, saved, imported and loaded."""

    def load(model: nn.Module, **changes: Any) -> Any:
        model.save_pretrained(tmp_path / "source")
        import_checkpoint(tmp_path / "source", tmp_path / "output", **changes)
        return AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "output").eval()

    return load


@pytest.fixture(autouse=True)
def everything_in_double(t5_in_double: None, softmax_in_double: None) -> None:
    """Classes that compute in float32 whatever the model do not."""


def pairs(name: str, padded: str, *, source: int = 21, target: int = 11) -> dict[str, torch.Tensor]:
    """Two rows of sources and targets with their masks; the second row of each is padded on that side."""
    generator = torch.Generator().manual_seed(source)
    batch = {}
    for prefix, length, padding in (("", source, 6), ("decoder_", target, 4)):
        tokens = torch.randint(4, VOCABULARY, (2, length), generator=generator)
        mask = torch.ones_like(tokens)
        if padded == "right":
            mask[1, length - padding :] = 0
        elif padded == "left":
            mask[1, :padding] = 0
        batch |= {f"{prefix}input_ids": tokens.masked_fill(mask == 0, PADDING), f"{prefix}attention_mask": mask}
    if KINDS[name][0] == "LED":
        batch["global_attention_mask"] = torch.zeros_like(batch["input_ids"]).index_fill(1, torch.tensor([0]), 1)
    return batch


def ours_of(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in batch.items() if name != "global_attention_mask"}


def cases() -> list[tuple[str, str]]:
    return [
        (name, padded)
        for name in KINDS
        for padded in ("none", "right", "left")
        if padded != "left" or name in BOTH_SIDES
    ]


# --- logits and gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "padded"), cases())
def test_logits_and_gradients(name, padded, dtype, imported):
    theirs, batch = original(name).to(dtype), pairs(name, padded)
    ours, real = imported(theirs), batch["decoder_attention_mask"].bool()
    labels = batch["decoder_input_ids"].roll(-1, dims=1).masked_fill(~real, -100)
    expected = theirs(**batch, labels=labels)
    seen = ours(**ours_of(batch), labels=labels)
    bound = 1e-10 if dtype == torch.float64 else 1e-4
    assert seen.logits.dtype == expected.logits.dtype == dtype
    assert expected.logits[real].std() > 0.1
    assert (seen.logits - expected.logits)[real].abs().max() < bound
    (expected.logits[real] ** 2).mean().backward()
    (seen.logits[real] ** 2).mean().backward()
    compare_gradients(theirs, ours, bound)


def compare_gradients(theirs: nn.Module, ours: nn.Module, bound: float) -> None:
    """Of all parameters, each relative to its largest where that is more than 1."""
    architecture = ARCHITECTURES[theirs.config.model_type]
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    prepared = architecture.prepare(theirs.config, gradients)
    renamed = architecture.rename(prepared, "ForConditionalGeneration", tied=True).tensors
    for table in ("encoder.positions.weight", "decoder.positions.weight"):
        if table in renamed:
            renamed[table] = renamed[table][architecture.offset(theirs.config) :]
    own = {name.removeprefix("model."): parameter.grad for name, parameter in ours.named_parameters()}
    assert own.pop("lm_head.bias", None) is not None or not hasattr(theirs, "final_logits_bias")
    assert own.keys() <= renamed.keys()
    for name, gradient in own.items():
        scale = float(renamed[name].abs().max())
        # The gradient of the keys' bias is 0: it adds the same to all scores of a query.
        assert scale > 1e-4 or name.endswith("key.bias"), name
        assert (gradient - renamed[name]).abs().max() < bound * max(1.0, scale), name


@pytest.mark.parametrize("name", KINDS)
def test_labels_are_shifted_as_there(name, imported):
    theirs, batch = original(name), pairs(name, "none")
    labels = batch.pop("decoder_input_ids")
    del batch["decoder_attention_mask"]
    ours = imported(theirs)
    with torch.no_grad():
        expected, seen = theirs(**batch, labels=labels), ours(**ours_of(batch), labels=labels)
    assert abs(seen.loss - expected.loss) < 1e-6 * expected.loss
    assert (seen.logits - expected.logits).abs().max() < 1e-10


# --- generation -------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"max_length": 12},
    "forced": {"max_length": 12, "forced_bos_token_id": 5, "forced_eos_token_id": END, "no_repeat_ngram_size": 2},
    "beams": {"max_length": 12, "num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2},
    "early": {"min_length": 4, "max_length": 14, "num_beams": 3, "length_penalty": 0.6, "early_stopping": True},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", KINDS)
def test_equal_tokens_are_generated(name, settings, imported):
    """By the settings that lie in the checkpoint, which come along."""
    # Their cache has as many layers as the encoder of T5.
    fields = {"num_layers": 3} if name in BOTH_SIDES else {}
    theirs, batch = original(name, **fields), pairs(name, "right")
    theirs.generation_config.update(**SETTINGS[settings])
    ours = imported(theirs)
    asked = {key: value for key, value in batch.items() if not key.startswith("decoder_")}
    assert {key: getattr(ours.generation_config, key) for key in SETTINGS[settings]} == SETTINGS[settings]
    expected, seen = theirs.generate(**asked), ours.generate(**ours_of(asked))
    assert torch.equal(seen, expected)
    assert seen.shape[1] > 4
    assert (seen[:, 0] == START).all()


def test_settings_of_generation_may_stand_in_config_json(tmp_path):
    """As old checkpoints have them."""
    original("bart").save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "generation_config.json").unlink()
    edit(tmp_path / "source", num_beams=4, length_penalty=2.0, no_repeat_ngram_size=3, max_length=30)
    import_checkpoint(tmp_path / "source", tmp_path / "output")
    theirs = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / "source").generation_config
    ours = AsterismForConditionalGeneration.from_pretrained(tmp_path / "output").generation_config
    for name in ("num_beams", "length_penalty", "no_repeat_ngram_size", "max_length", "decoder_start_token_id"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (ours.num_beams, ours.decoder_start_token_id, ours.forced_eos_token_id) == (4, START, 2)


# --- BigBird-Pegasus with its blocks, LED with its windows ------------------------------------------------------------


def test_bigbird_pegasus_has_the_sizes_of_the_checkpoint_and_its_layers_as_seeds(tmp_path):
    original("bigbird_pegasus", **SPARSE).save_pretrained(tmp_path / "source")
    report = import_checkpoint(tmp_path / "source", tmp_path / "output")
    sizes = "block=4, window_blocks=3, random=2, globals=(0, -1)"
    texts = [f"bigbird({sizes}, seed={layer}, heads=4)" for layer in range(2)]
    assert report.mixers == texts
    assert any("random blocks" in note for note in report.notes)
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "output")
    assert [block.mixer.pattern for block in ours.model.encoder.layers] == [parse(text) for text in texts]
    assert {block.mixer.pattern for block in ours.model.decoder.layers} == {parse("causal()")}


@pytest.mark.parametrize("padded", ["none", "right"])
def test_bigbird_pegasus_block_sparse_given_the_same_random_blocks(padded, imported):
    """In training mode, without dropout; in evaluation mode Hugging Face points every random block at block 0.

    The pattern is laid over the padded length, as theirs is.
    """
    theirs, batch = original("bigbird_pegasus", **SPARSE), pairs("bigbird_pegasus", padded, source=60)
    drawn: list = []
    for layer in theirs.model.encoder.layers:
        attention = layer.self_attn.self
        attention._bigbird_block_rand_mask_with_head = recorder(attention._bigbird_block_rand_mask_with_head, drawn)
    theirs.train()
    with undone():
        expected = theirs(**batch).logits
    ours = imported(theirs, pattern=[pattern_of(blocks, 15, 4) for blocks in drawn])
    real = batch["decoder_attention_mask"].bool()
    assert (ours(**batch).logits - expected)[real].abs().max() < 1e-10


@pytest.mark.parametrize("globals", [(0, 3, 17), ()], ids=["three", "none"])
def test_global_tokens_of_led(globals, imported):
    theirs, batch = original("led"), pairs("led", "right")
    ours = imported(theirs, globals=globals)
    batch["global_attention_mask"].zero_()[:, list(globals)] = 1
    if not globals:
        del batch["global_attention_mask"]
    real = batch["decoder_attention_mask"].bool()
    with torch.no_grad():
        assert (ours(**ours_of(batch)).logits - theirs(**batch).logits)[real].abs().max() < 1e-10


def test_the_report_on_led_says_which_tokens_are_global(tmp_path):
    original("led").save_pretrained(tmp_path / "source")
    report = import_checkpoint(tmp_path / "source", tmp_path / "output")
    assert report.mixers == ["longformer(window=4, globals=(0,))", "longformer(window=8, globals=(0,))"]
    (note,) = report.notes
    assert note.startswith("the tokens at 0 are global")
    assert "in LEDForConditionalGeneration, unless its caller names others, none is" in note


# --- longer and sparse ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bart", "bigbird_pegasus", "led"])
def test_a_longer_source_has_the_positions_of_the_table_again(name, imported):
    theirs = original(name)
    ours = imported(theirs, length=150)
    offset = 2 if name == "bart" else 0
    table = theirs.get_encoder().embed_positions.weight[offset:]
    rows = ours.model.encoder.positions.weight
    assert len(table) == POSITIONS and len(rows) == 150
    assert torch.equal(rows, table[torch.arange(150) % POSITIONS])
    own = theirs.get_decoder().embed_positions.weight[offset:]
    assert torch.equal(ours.model.decoder.positions.weight, own)


@pytest.mark.parametrize("name", ["pegasus", "t5"])
def test_positions_without_a_table_reach_as_far_as_theirs(name, imported):
    theirs = original(name, **({} if name == "t5" else {"max_position_embeddings": 150}))
    ours = imported(theirs, length=1000)
    assert ours.config.max_position_embeddings == 1000
    batch = pairs(name, "none", source=140)
    with torch.no_grad():
        assert (ours(**batch).logits - theirs(**batch).logits).abs().max() < 1e-10


@pytest.mark.parametrize("name", KINDS)
def test_a_pattern_is_all_that_the_encoder_reads(name, imported):
    ours, batch = imported(original(name), pattern="window(left=2, right=2)"), pairs(name, "none", source=30)
    assert (ours.config.mixers, ours.config.decoder_mixers) == (in_full("window(left=2, right=2)"), "causal()")
    other = batch["input_ids"].clone()
    other[0, 20] = 4 + (other[0, 20] - 3) % (VOCABULARY - 4)
    with torch.no_grad():
        before, after = (ours.model.encoder(ids).last_hidden_state for ids in (batch["input_ids"], other))
    assert (before != after).any(-1)[0].nonzero().flatten().tolist() == list(range(16, 25))


# --- embeddings that are one, or not ----------------------------------------------------------------------------------


def test_a_last_layer_of_its_own_stays_so(imported):
    ours = imported(original("t5 v1.1"))
    assert not ours.config.tie_word_embeddings and ours.config.logit_scale == 1
    assert ours.lm_head.weight is not ours.model.shared.weight
    assert ours.model.decoder.embed_tokens.weight is ours.model.encoder.embed_tokens.weight


def test_embeddings_that_are_one_stay_so(imported):
    ours = imported(original("bart"))
    assert ours.lm_head.weight is ours.model.shared.weight
    assert torch.equal(ours.lm_head.bias, original("bart").final_logits_bias[0])


def test_a_bias_of_zeros_is_none(imported):
    theirs = original("bart")
    theirs.final_logits_bias.zero_()
    assert imported(theirs).lm_head.bias is None


@pytest.mark.parametrize("names", [["model.shared.weight"], ["model.encoder.embed_tokens.weight", "lm_head.weight"]])
def test_an_embedding_may_have_any_of_its_names(names, tmp_path):
    original("bart").save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "model.safetensors"
    tensors = load_file(path)
    kept = tensors.pop("model.shared.weight")
    save_file(tensors | {name: kept.clone() for name in names}, path, metadata={"format": "pt"})
    import_checkpoint(tmp_path / "source", tmp_path / "output")
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "output")
    assert torch.equal(ours.model.decoder.embed_tokens.weight, kept)


@pytest.mark.parametrize("name", ["bart", "t5", "led"])
def test_a_tied_backbone_is_read_as_the_class_that_generates(name, tmp_path):
    """facebook/bart-base names BartModel, and AutoModelForSeq2SeqLM reads it."""
    kind = KINDS[name][0]
    whole, batch = original(name), pairs(name, "none")
    with undone():
        backbone = getattr(transformers, f"{kind}Model")(whole.config).double()
    prefix = ARCHITECTURES[name].prefix
    backbone.load_state_dict(
        {key.removeprefix(prefix): tensor for key, tensor in whole.state_dict().items() if key not in LAST}
    )
    backbone.save_pretrained(tmp_path / "source")
    assert import_checkpoint(tmp_path / "source", tmp_path / "output").model == "AsterismForConditionalGeneration"
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "source").eval()
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "output").eval()
    with torch.no_grad():
        assert (ours(**ours_of(batch)).logits - theirs(**batch).logits).abs().max() < 1e-10


def test_stacks_with_embeddings_of_their_own(imported):
    theirs = original("bart", tie_word_embeddings=False)
    batch, ours = pairs("bart", "right"), imported(theirs)
    assert ours.model.shared is None
    real = batch["decoder_attention_mask"].bool()
    with torch.no_grad():
        assert (ours(**batch).logits - theirs(**batch).logits)[real].abs().max() < 1e-10


# --- refusals ---------------------------------------------------------------------------------------------------------


def damage(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    change_tensors(folder, lambda tensors: tensors.update({name: change(tensors[name])}))


TABLE = "model.encoder.embed_positions.weight"
SPOILT: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "backbone": (
        "bart",
        lambda folder: edit(folder, architectures=["BartModel"], tie_word_embeddings=False),
        r"BartModel has no exact counterpart; of model_type bart these are imported: BartForConditionalGeneration$",
    ),
    "classifier": (
        "t5",
        lambda folder: edit(folder, architectures=["T5ForSequenceClassification"]),
        r"T5ForSequenceClassification has no exact counterpart",
    ),
    "missing": (
        "bart",
        lambda folder: change_tensors(folder, lambda tensors: tensors.pop("model.decoder.layers.2.fc1.bias")),
        r"lacks decoder\.layers\.2\.fc1\.bias$",
    ),
    "missing table": (
        "t5",
        lambda folder: change_tensors(
            folder, lambda tensors: tensors.pop("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
        ),
        r"lacks encoder\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight$",
    ),
    "no embeddings": (
        "bart",
        lambda folder: change_tensors(folder, lambda tensors: tensors.pop("model.shared.weight")),
        r"lacks decoder\.embed_tokens\.weight, encoder\.embed_tokens\.weight, lm_head\.weight$",
    ),
    "extra": (
        "pegasus",
        lambda folder: change_tensors(folder, lambda tensors: tensors.update({"model.extra.weight": torch.ones(2)})),
        r"it has, and the class does not extra\.weight$",
    ),
    "deeper": ("bart", lambda folder: edit(folder, decoder_layers=2), r"the class does not decoder\.layers\.2\."),
    "shorter": (
        "bart",
        lambda folder: damage(folder, TABLE, lambda table: table[:-1].clone()),
        r"encoder\.embed_positions\.weight \[65, 24\] instead of \[66, 24\]$",
    ),
    "not tied": (
        "bart",
        lambda folder: change_tensors(
            folder, lambda tensors: tensors.update({"lm_head.weight": torch.ones(VOCABULARY, 24).double()})
        ),
        r"ties the embeddings, but lm_head\.weight differs from decoder\.embed_tokens\.weight; write",
    ),
    "no last layer": ("bart", lambda folder: edit(folder, tie_word_embeddings=False), r"lacks lm_head\.weight$"),
    "heads": (
        "bart",
        lambda folder: edit(folder, decoder_attention_heads=2),
        r"encoder_attention_heads 4 and decoder_attention_heads 2; only stacks of equal width and heads",
    ),
    "widths": ("bart", lambda folder: edit(folder, decoder_ffn_dim=32), r"encoder_ffn_dim 28 and decoder_ffn_dim 32"),
    "activation": ("bart", lambda folder: edit(folder, activation_function="mish"), r"activation_function 'mish' is"),
    "gate": ("t5", lambda folder: edit(folder, is_gated_act=True), r"lacks decoder\.block\.0\.layer\.2\.\w+\.wi_0"),
    "sines": (
        "pegasus",
        lambda folder: damage(folder, TABLE, lambda table: table.roll(1, 0)),
        r"encoder\.embed_positions\.weight differs from the sinusoidal positions",
    ),
    "blocks": (
        "bigbird_pegasus",
        lambda folder: edit(folder, attention_type="sparse"),
        r"attention_type must be 'block_sparse' or 'original_full', got 'sparse'|is damaged",
    ),
    "a list of layers": (
        "bigbird_pegasus",
        lambda folder: edit(folder, attention_type="block_sparse", num_hidden_layers=[1]),
        r"config\.json is damaged: 'list' object",
    ),
    "no width": (
        "bart, scaled",
        lambda folder: edit(folder, d_model=-1),
        r"config\.json is damaged: math domain|shape",
    ),
    "windows": ("led", lambda folder: edit(folder, attention_window=[4]), r"attention_window \[4\] must be an even"),
    "generation": (
        "bart",
        lambda folder: (folder / "generation_config.json").write_text("[]"),
        r"generation_config\.json is damaged",
    ),
    "beams": (
        "bart",
        lambda folder: (folder / "generation_config.json").write_text('{"num_beams": 1, "length_penalty": 2.0}'),
        r"generation_config\.json is damaged: GenerationConfig is invalid: .*`length_penalty`",
    ),
    "class": (
        "bart",
        lambda folder: edit(folder, architectures=[5]),
        r"architectures must be a list of names of classes$",
    ),
    "classes": ("bart", lambda folder: edit(folder, architectures="Bart"), r"architectures must be a list of names of"),
    "layers": (
        "t5",
        lambda folder: edit(folder, num_layers=10**9),
        r"has num_layers 1,000,000,000 in its config\.json, more than its weights can have$",
    ),
    "width": (
        "bart",
        lambda folder: edit(folder, d_model=10**12),
        r"has d_model 1,000,000,000,000 in its config\.json, more than",
    ),
    "no sines": (
        "pegasus",
        lambda folder: change_tensors(folder, lambda tensors: tensors.update({TABLE: torch.ones(0, 24).double()})),
        r"encoder\.embed_positions\.weight differs from the sinusoidal positions",
    ),
    **{
        f"{dtype}": (
            "bart",
            lambda folder, dtype=dtype: damage(folder, "model.decoder.layers.0.fc1.bias", lambda bias: bias.to(dtype)),
            rf"of a dtype that is not imported \(save them as float32\) are decoder\.layers\.0\.fc1\.bias {dtype}$",
        )
        for dtype in (torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn)
    },
    "another": ("t5", lambda folder: edit(folder, model_type="umt5"), r"model_type 'umt5'; imported are bart, bert"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_checkpoint_that_cannot_be_imported_is_refused_in_one_line(what, tmp_path):
    name, spoil, message = SPOILT[what]
    original(name).save_pretrained(tmp_path / "source")
    spoil(tmp_path / "source")
    with pytest.raises(CheckpointError, match=message) as raised:
        import_checkpoint(tmp_path / "source", tmp_path / "output")
    assert "\n" not in str(raised.value)
    assert [file.name for file in tmp_path.iterdir()] == ["source"], "nothing is half-written"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bart", {"length": 63}, "length 63 is less than the 64 positions"),
        ("bart", {"globals": [0]}, "globals are for Longformer and LED"),
        ("led", {"globals": [64]}, "position 64 is beyond the model"),
        ("led", {"globals": "0"}, "globals must be a list of positions, whole numbers, got '0'"),
        ("bart", {"length": "64"}, r"length must be a whole number below 2\^31, got '64'"),
        ("bart", {"length": 2**31}, r"length must be a whole number below 2\^31, got"),
        ("t5", {"pattern": "fourier()"}, "attention and other mixers cannot replace each other"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(name, changes, message, tmp_path):
    original(name).save_pretrained(tmp_path / "source")
    with pytest.raises(ConfigurationError, match=message):
        import_checkpoint(tmp_path / "source", tmp_path / "output", **changes)
    assert not (tmp_path / "output").exists()


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_imports(tmp_path, capsys):
    original("pegasus", attention_dropout=0.1).save_pretrained(tmp_path / "source")
    words = ["import", str(tmp_path / "source"), "--output", str(tmp_path / "output"), "--length", "128"]
    capsys.readouterr()  # what saving wrote
    assert main([*words, "--pattern", "bigbird(block=4)"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith("PegasusForConditionalGeneration -> AsterismForConditionalGeneration, ")
    assert lines[1] == "positions  128, instead of the checkpoint's 64"
    assert lines[2].startswith("pattern    bigbird(block=4")
    assert lines[4].startswith("note       no dropout inside attention (the checkpoint's class has 0.1)")
    assert lines[-1] == f"saved in {tmp_path / 'output'}"
