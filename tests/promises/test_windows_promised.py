"""`check_windows` finds every planted fault on the paths that it changes, and nothing where there is none."""

import json
import warnings

import native_models
import planted_windows as planted
import pytest
import torch
from planted_windows import LEFT, PACKED, PADDED_PIECES, PIECES, STATIC, TRAINED, TRAINED_PACKED, Plant
from refusals import refusing
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, masking_utils

from asterism.cli.main import main
from asterism.errors import ConfigurationError
from asterism.promises import PATHS, check_windows, small_model

pytestmark = pytest.mark.model

EVERY = frozenset(path.name for path in PATHS)
CACHED = frozenset(path.name for path in PATHS if path.needs_cache)
FEW = frozenset(("prefill", "padded left", "cache in short chunks"))
GENERATED = frozenset(("generate with static cache",))  # its masks are made by generate
CONTINUED = PIECES | {"full cache", "generate with chunked prefill"}
MISTRAL, GEMMA = "MistralForCausalLM", "Gemma3ForCausalLM"
LLAMA4, MODERNBERT = "Llama4ForCausalLM", "ModernBertForMaskedLM"
PLANTS = {
    "full mask": Plant(MISTRAL, planted.full_mask, EVERY),
    "wider by one": Plant(MISTRAL, planted.wider_by_one, EVERY),
    "narrower by one": Plant(MISTRAL, planted.narrower_by_one, EVERY),
    "dropped while a cache continues": Plant(MISTRAL, planted.where(planted.continues), CONTINUED),
    "dropped with a static cache": Plant(MISTRAL, planted.where(planted.is_static), STATIC - GENERATED),
    "dropped with padding on the left": Plant(MISTRAL, planted.where(planted.is_padded_left), LEFT),
    "chunks ignored": Plant(LLAMA4, planted.chunks_ignored, EVERY),
    "documents leak": Plant(MISTRAL, planted.documents_leak, PACKED),
    "one layer swapped": Plant(GEMMA, planted.one_layer_swapped, EVERY),
    "sees no future": Plant(MODERNBERT, planted.sees_no_future, EVERY - CACHED),
    "padding on the right read": Plant(MODERNBERT, planted.right_padding_read, PACKED | {"padded right"}),
    "dropped in chunks of padded rows": Plant(MISTRAL, planted.where(planted.continues_padded), PADDED_PIECES),
    "dropped with gradients": Plant(MISTRAL, planted.where(planted.has_gradients), TRAINED),
    "documents leak in training": Plant(MISTRAL, planted.training_documents_leak, TRAINED_PACKED),
    "padding of the first row for all": Plant(MISTRAL, planted.padding_of_the_first_row, LEFT),
    "dropped by generate": Plant(MISTRAL, planted.only_generate, GENERATED),
}


def dropped_paths(report):
    assert not [one for one in report.verdicts if one.state in ("refused", "undecided")]
    return {verdict.path for verdict in report.dropped}


@pytest.mark.parametrize("name", list(PLANTS))
def test_a_planted_fault_is_found_where_it_is(name, monkeypatch):
    """On one path that it changes and, where there is one, on one that it leaves alone."""
    plant = PLANTS[name]
    model = small_model(plant.model).model
    plant.put(monkeypatch, model)
    paths = [*sorted(plant.paths & FEW or plant.paths)[:1], *sorted(FEW - plant.paths)[:1]]
    assert dropped_paths(check_windows(model, attention=["sdpa"], paths=paths)) == plant.paths & set(paths)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("name", list(PLANTS))
def test_a_planted_fault_is_found_on_every_path_that_it_changes(name, attention, monkeypatch):
    plant = PLANTS[name]
    model = small_model(plant.model).model
    plant.put(monkeypatch, model)
    report = check_windows(model, attention=[attention])
    known = set()
    if attention == "flex_attention":
        # In generate with a static cache it is refused by transformers, and reads the future in its chunks. PyTorch
        # refuses to train with it on a CPU.
        known = {"generate with static cache", "static cache in chunks"} | TRAINED
    assert {one.path for one in report.verdicts if one.state in ("refused", "undecided")} <= known
    leaking = PACKED if plant.model == MODERNBERT else set()  # of encoders, transformers keeps no documents apart
    assert {one.path for one in report.dropped} - known == (plant.paths | leaking) - known


@pytest.mark.parametrize("name", [MISTRAL, GEMMA, LLAMA4])
def test_nothing_is_found_where_there_is_nothing(name):
    paths = ["prefill", "training", "padded left", "packed by position_ids", "cache in short chunks", "static cache"]
    report = check_windows(small_model(name).model, attention=["sdpa"], paths=paths)
    assert [one for one in report.verdicts if one.state != "applied"] == []


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [MISTRAL, GEMMA, LLAMA4])
def test_nothing_is_found_on_any_path(name, attention):
    report = check_windows(small_model(name).model, attention=[attention])
    assert [one for one in report.verdicts if one.state != "applied"] == []


def mistral(**more):
    sizes = dict(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**sizes, num_key_value_heads=2, **more))


def test_the_model_is_left_as_it_was():
    model = mistral(sliding_window=6).train()
    before, fields = {name: x.clone() for name, x in model.state_dict().items()}, dict(vars(model.config))
    state = torch.get_rng_state()
    check_windows(model, attention=["eager", "asterism"], paths=["prefill", "cache"])
    after = model.state_dict()
    assert all(x.dtype is after[name].dtype and torch.equal(x, after[name]) for name, x in before.items())
    assert model.training and vars(model.config) == fields and torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.model.layers)


def test_a_refusal_is_no_drop():
    report = check_windows(mistral(sliding_window=6), attention=["asterism"], paths=["prefill", "static cache"])
    assert [one.state for one in report.verdicts] == ["applied", "refused"]
    assert "PatternCache" in report.verdicts[1].seen and not report.dropped


def test_the_witness_is_a_pair_that_the_window_hides(monkeypatch):
    model = mistral(sliding_window=6)
    planted.wider_by_one(monkeypatch, model)
    (verdict,) = check_windows(model, attention=["sdpa"], paths=["prefill"]).verdicts
    layer, query, key = verdict.witness
    assert layer == 0 and query - key == 6
    assert f"token {query} reads token {key}, which is hidden from it" in verdict.seen


def test_a_faint_leak_is_undecided(monkeypatch):
    model = mistral(sliding_window=6)
    planted.faint_leak(monkeypatch, model)
    (verdict,) = check_windows(model, attention=["sdpa"], paths=["prefill"]).verdicts
    layer, query, key = verdict.witness
    assert verdict.state == "undecided" and layer == 0 and query - key >= 6
    assert f"with token {key}, which is hidden from it" in verdict.seen


def test_what_two_replacements_move_alike_is_not_read(monkeypatch):
    model = mistral(sliding_window=6)
    planted.rounded_by_company(monkeypatch, model)
    (verdict,) = check_windows(model, attention=["sdpa"], paths=["prefill"]).verdicts
    assert verdict.state == "applied"


def test_rows_that_are_not_treated_alike_are_undecided(monkeypatch):
    model = mistral(sliding_window=6)
    planted.second_row_dropped(monkeypatch, model)
    (verdict,) = check_windows(model, attention=["sdpa"], paths=["prefill"]).verdicts
    assert verdict.state == "undecided" and "rows are not treated alike" in verdict.seen


def test_a_warning_is_no_refusal(recwarn):
    model = mistral(sliding_window=6)
    hook = model.model.layers[1].register_forward_hook(lambda *_: warnings.warn("deprecated", stacklevel=1))
    (verdict,) = check_windows(model, paths=["prefill"]).verdicts
    hook.remove()
    assert verdict.state == "applied" and not recwarn


def test_long_windows_are_refused_or_sampled(monkeypatch):
    model = mistral(sliding_window=4096, max_position_embeddings=8192)
    with refusing(ConfigurationError, "window-too-long"):
        check_windows(model)
    with refusing(ConfigurationError, "tokens-below-window"):
        check_windows(model, tokens=4100)
    model = mistral(sliding_window=90)
    assert not check_windows(model, attention=["sdpa"], paths=["prefill"]).dropped
    planted.wider_by_one(monkeypatch, model)
    assert check_windows(model, attention=["sdpa"], paths=["prefill"]).dropped


def test_a_window_that_no_code_applies_is_dropped():
    """The configuration of Llama ignores a window that somebody writes into it."""
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    config.sliding_window = 6
    assert check_windows(LlamaForCausalLM(config), paths=["prefill"]).dropped


class Averaging(nn.Module):
    """Averages over `size` tokens up to a token, in two layers."""

    def __init__(self, size, size_inside):
        super().__init__()
        self.embedding = nn.Embedding(32, 8)
        self.layers = nn.ModuleList([nn.AvgPool1d(one, stride=1) for one in (size, size_inside)])
        self.mixers = nn.ModuleList([Mixer(layer) for layer in self.layers])

    def forward(self, ids):
        hidden = self.embedding(ids)
        for mixer in self.mixers:
            hidden = mixer(hidden)
        return hidden


class Mixer(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def forward(self, hidden):
        padded = nn.functional.pad(hidden.transpose(1, 2), (self.pool.kernel_size[0] - 1, 0))
        return hidden + self.pool(padded).transpose(1, 2)


def test_modules_of_others_are_checked_by_what_they_should_read():
    model = Averaging(4, 6)
    given = {"layers": model.mixers, "patterns": ["window(left=3)", "window(left=5)"]}
    assert [one.state for one in check_windows(model, **given).verdicts] == ["applied"] * 4
    given["patterns"] = ["window(left=3)", "window(left=4)"]
    assert [one.state for one in check_windows(model, **given).verdicts] == ["applied", "dropped"] * 2
    with refusing(ConfigurationError, "patterns-per-layer"):
        check_windows(model, layers=model.mixers, patterns=["window(left=3)"])
    with refusing(ConfigurationError, "not-a-model"):
        check_windows(model)


def test_a_model_that_draws_random_numbers_is_undecided(monkeypatch):
    model = mistral(sliding_window=6)
    hook = model.model.layers[1].mlp.register_forward_hook(lambda module, args, out: out + torch.randn_like(out))
    (verdict,) = check_windows(model, paths=["prefill"]).verdicts
    hook.remove()
    assert verdict.state == "undecided" and "random" in verdict.seen


def test_a_folder_is_checked_small_or_as_it_is(tmp_path, capsys):
    mistral(sliding_window=20).save_pretrained(tmp_path)
    words = ["promises", str(tmp_path), "--attention", "sdpa", "--paths", "prefill, static cache"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "sliding_window is 5 in place of 20" in out and out.count("applied") == 2
    assert main([*words, "--full", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["tokens"] == 50 and {one["pattern"] for one in record["verdicts"]} == {"window(left=19)"}


def test_the_command_fails_where_anything_is_dropped(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda position_ids: None)
    words = ["promises", MISTRAL, "--attention", "sdpa", "--paths", "prefill,packed by position_ids"]
    assert main([*words, "--record", str(tmp_path / "record.json")]) == 1
    out, err = capsys.readouterr()
    assert "SILENTLY DROPPED" in out and "reads token" in out
    assert err.splitlines()[-1] == (f"asterism: error: {MISTRAL} silently dropped a rule: sdpa, packed by position_ids")
    assert json.loads((tmp_path / "record.json").read_text())["verdicts"][1]["state"] == "dropped"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nothing"], 2),
        (["MistralForCausaLM"], 2),
        (["AutoModelForCausalLM"], 2),
        (["LlamaConfig"], 2),
        ([MISTRAL, "--paths", "prefil"], 2),
        ([MISTRAL, "--full"], 2),
        ([MISTRAL, "--tokens", "8"], 2),
        (["T5ForConditionalGeneration"], 2),
        (["VoxtralRealtimeEncoder"], 2),
        (["--tokens", "30"], 2),
        (["."], 2),
    ],
)
def test_what_cannot_be_checked_is_refused_in_a_line(words, code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["promises", *words]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_whose_configuration_contradicts_itself_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "mistral", "architectures": ["MistralForCausalLM"]')
    assert main(["promises", str(tmp_path)]) == 4
    model = mistral(sliding_window=6)
    model.config.sliding_window = 0
    with refusing(ConfigurationError, "native-window-size"):
        check_windows(model)


UNSEEN = {
    "VoxtralRealtimeEncoder": "it reads no tokens",
    "DiffusionGemmaEncoderTextModel": "its last layer is undecided: attention of random weights is too sharp there",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({row.split(" | ")[1] for row in native_models.read_table()[1].values()}))
def test_every_class_with_windows_is_built_small(name):
    if name in UNSEEN:
        pytest.skip(UNSEEN[name])
    report = check_windows(small_model(name).model, paths=["prefill"])
    assert {one.state for one in report.verdicts} == {"applied"}
