"""Causal models from folders: what they read and write is what transformers and runs would."""

import json
import shutil

import pytest
import torch
from causal_folders import WINDOW, begins, save_causal, train_bytes
from reading_prompts import counted_bytes
from refusals import refusing
from small_checkpoints import change_tensors, edit
from small_encoders import save_tiny_bert
from tokenizers import normalizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from asterism.errors import CheckpointError, ConfigurationError
from asterism.evaluation import evaluate_ruler, open_causal
from asterism.evaluation.byte_tokens import byte_tokenizer
from asterism.quiet import quiet_transformers
from asterism.training import generate

pytestmark = pytest.mark.model

PROMPT = "The green castle is old. The brave castle is"


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    return save_causal(tmp_path_factory.mktemp("models") / "mistral")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return train_bytes(tmp_path_factory.mktemp("runs") / "bytes")


def test_bytes_are_tokens():
    tokenizer = byte_tokenizer(64)
    assert len(tokenizer) == tokenizer.vocab_size == 256
    for text in ("a brave castle", " two  spaces\n\ttab", "Ā Ġ ł über \x7f 🙂", "nul\0inside", "", "\0"):
        assert tokenizer(text)["input_ids"] == list(text.encode())
        assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.decode(list(range(128))) == bytes(range(128)).decode()
    assert tokenizer.decode([0xC4]) == "\ufffd"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 0, 0)


def test_a_byte_tokenizer_survives_saving(tmp_path):
    byte_tokenizer(64).save_pretrained(tmp_path)
    loaded = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert loaded("Ā\0")["input_ids"] == [0xC4, 0x80, 0]


def test_a_native_window_writes_what_transformers_writes(mistral):
    with quiet_transformers():
        theirs = AutoModelForCausalLM.from_pretrained(mistral, attn_implementation="eager", dtype="float64").eval()
    state = torch.random.get_rng_state()
    plain, native = open_causal(mistral), open_causal(mistral, pattern="native")
    assert torch.equal(torch.random.get_rng_state(), state)
    long = PROMPT * 12
    read = native.tokenizer(long, add_special_tokens=False, return_tensors="pt")["input_ids"]
    read = torch.cat([torch.tensor([[native.tokenizer.cls_token_id]]), read], dim=1)
    assert native.count(long) == read.shape[1] > 3 * WINDOW
    written = theirs.generate(read, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, read.shape[1] :]
    expected = native.tokenizer.decode(written, skip_special_tokens=True)
    assert expected == plain.continued(long, 12) == native.continued(long, 12)
    wider = open_causal(mistral, pattern="causal()", native_window="replace")
    assert wider.continued(long, 12) != expected
    assert (plain.identity()["pattern"], native.identity()["dtype"]) == (None, "float64")
    assert "positions" not in plain.identity()  # records of before go on
    sinks = {"pattern": "sinks(first=2, window=6)", "native_window": "replace"}
    near = open_causal(mistral, **sinks, positions="cache")
    assert near.identity() != open_causal(mistral, **sinks).identity()
    assert near.model.config.asterism_positions == near.identity()["positions"] == "cache"
    assert native.identity()["pattern"] != wider.identity()["pattern"]


def test_a_token_behind_the_prompt_is_left_out(mistral):
    """Some tokenizers end every text."""
    model, ending = open_causal(mistral), open_causal(mistral)
    ending.tokenizer.backend_tokenizer.post_processor = begins(ending.tokenizer, "[CLS] $A [SEP]")
    assert ending.tokenizer(PROMPT)["input_ids"][-1] == ending.tokenizer.eos_token_id
    assert ending.count(PROMPT) == model.count(PROMPT)
    assert ending.continued(PROMPT, 8) == model.continued(PROMPT, 8)


def test_settings_of_generation_in_the_folder_change_no_answer(mistral, tmp_path):
    """But the end of a text does."""
    hostile = shutil.copytree(mistral, tmp_path / "hostile")
    settings, long = json.loads((hostile / "generation_config.json").read_text()), PROMPT * 3
    penalties = {"repetition_penalty": 9.0, "no_repeat_ngram_size": 1, "max_time": 0.0, "suppress_tokens": [1, 2]}
    others = {"return_dict_in_generate": True, "stop_strings": ["a"], "token_healing": True}
    expected = open_causal(mistral).continued(long, 8)
    for given in (penalties, others):
        (hostile / "generation_config.json").write_text(json.dumps(settings | given))
        model = open_causal(hostile)
        assert model.continued(long, 8) == expected
        assert model.model.generation_config.to_dict().items() >= given.items()  # which generate still follows
    model = open_causal(mistral)
    with torch.no_grad():
        first = int(model.model(torch.tensor([model._read(long)])).logits[0, -1].argmax())
    (hostile / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [first]}))
    assert open_causal(hostile).continued(long, 8) == model.tokenizer.decode([first])


def test_a_model_that_computes_nothing_is_refused(mistral, tmp_path):
    def copied(name, **fields):
        edit(folder := shutil.copytree(mistral, tmp_path / name), **fields)
        return folder

    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": float("nan")}}
    with refusing(CheckpointError, "logits-not-numbers", "nan"):
        open_causal(copied("nan", **rope)).continued(PROMPT, 2)
    with refusing(CheckpointError, "model-cannot-continue", "window"):
        open_causal(copied("window", sliding_window=0)).continued(PROMPT, 2)
    with refusing(CheckpointError, "more-weights-than-model", "model.layers.1"):
        open_causal(copied("less", num_hidden_layers=1))
    change_tensors(more := copied("more"), lambda tensors: tensors.update({"score.weight": torch.zeros(2, 32)}))
    open_causal(more)  # a head that a causal model does not read


def test_a_run_writes_what_generate_writes(tiny):
    opened = open_causal(tiny)
    assert opened.count(PROMPT) == counted_bytes(PROMPT)
    expected = generate(tiny, PROMPT.encode(), 20, temperature=0).replace(b"\0", b"")
    assert opened.continued(PROMPT, 20) == expected.decode(errors="replace")
    assert opened.positions == 512


def test_a_run_is_asked_from_end_to_end(tiny, tmp_path):
    record = tmp_path / "record.json"
    scores = evaluate_ruler(open_causal(tiny), ["niah_single_1", "vt"], [512], samples=1, record=record, progress=False)
    assert [(cell.task, cell.recall) for cell in scores.cells] == [("niah_single_1", 0), ("vt", 0)]
    assert record.exists() and all(496 < cell.tokens[0] <= 512 for cell in scores.cells)


def test_prompts_hold_their_length_in_tokens_of_a_model(mistral):
    model = open_causal(mistral, pattern="native")
    scores = evaluate_ruler(model, ["niah", "vt", "fwe"], [900], samples=1, progress=False)
    assert len(scores.cells) == 10
    assert all(900 - 40 < cell.tokens[0] <= cell.tokens[1] <= 900 for cell in scores.cells)


def test_lengths_beyond_the_positions_are_refused(tiny):
    with refusing(ConfigurationError, "length-beyond-positions", "512", "513"):
        evaluate_ruler(open_causal(tiny), ["vt"], [513], progress=False)


def test_a_tokenizer_that_loses_text_is_refused(mistral):
    model = open_causal(mistral)
    model.tokenizer.backend_tokenizer.normalizer = normalizers.Replace("7", "")
    with refusing(ConfigurationError, "tokenizer-loses-text", "niah_single_3"):
        evaluate_ruler(model, ["niah_single_3"], [512], samples=1, progress=False)


def test_what_is_no_causal_model_is_refused(mistral, tiny, tmp_path):
    def copied(name):
        return shutil.copytree(mistral, tmp_path / name)

    with refusing(CheckpointError, "not-a-model-folder", "nowhere"):
        open_causal(tmp_path / "nowhere")
    with refusing(CheckpointError, "not-a-model-folder", str(tmp_path)):
        open_causal(tmp_path)
    with quiet_transformers():
        bert = save_tiny_bert(tmp_path / "bert")
    with refusing(ConfigurationError, "model-not-causal", "bert"):
        open_causal(bert)
    (bare := copied("bare")).joinpath("tokenizer.json").unlink()
    with refusing(CheckpointError, "tokenizer-missing", str(bare)):
        open_causal(bare)
    (pickled := copied("pickled")).joinpath("model.safetensors").rename(pickled / "pytorch_model.bin")
    with refusing(CheckpointError, "safetensors-missing", str(pickled)):
        open_causal(pickled)
    change_tensors(less := copied("less"), lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with refusing(CheckpointError, "incomplete-weights", "model.layers.1.mlp.up_proj.weight"):
        open_causal(less)
    edit(strange := copied("strange"), model_type="no-such-type", architectures=None)
    with refusing(CheckpointError, "unreadable-model", str(strange)):
        open_causal(strange)
    with refusing(ConfigurationError, "pattern-of-a-run", str(tiny)):
        open_causal(tiny, pattern="native")
    with refusing(ConfigurationError, "window-needs-pattern", "intersect"):
        open_causal(mistral, native_window="intersect")
    with refusing(ConfigurationError, "positions-need-pattern", "cache"):
        open_causal(mistral, positions="cache")
    with refusing(ConfigurationError, "unknown-dtype", "'int8'"):
        open_causal(mistral, dtype="int8")
