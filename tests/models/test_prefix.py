"""A prefix that was read once, saved, loaded and continued writes what the model writes when it reads everything."""

import copy
import json
from pathlib import Path

import pytest
import torch
from followed_models import CAUSAL, batch, build
from refusals import refusing
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_models import CAUSAL_MIXERS, random_tokens, small_model
from transformers import DynamicCache

from asterism.errors import CheckpointError, ConfigurationError
from asterism.models import Prefix, use_pattern
from asterism.models.cache.cache import PatternCache
from asterism.models.cache.naming import cache_of, with_cache

pytestmark = pytest.mark.model
TEXT = "interleave(fixed(stride=6, summary=1), window(left=4), sinks(first=1, window=3))"
MORE = {"max_new_tokens": 6, "do_sample": False}


def state(cache) -> list[torch.Tensor]:
    return [x for layer in cache.layers for slots in layer.groups for x in (slots.keys, slots.values)]


def continued(prefix: Prefix, ids: torch.Tensor, **more) -> torch.Tensor:
    return prefix.model.generate(ids, **with_cache(prefix.cache_for(ids)), **MORE, **more)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("side", ["none", "left"])
def test_a_loaded_prefix_continues_as_the_one_that_was_saved(name: str, side: str, tmp_path: Path) -> None:
    model, inputs = use_pattern(build(name), TEXT, native_window="replace"), batch(side)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    prefix = Prefix.read(model, ids[:, :-4], mask[:, :-4])
    prefix.save(tmp_path / "prefix.safetensors")
    loaded = Prefix.load(tmp_path / "prefix.safetensors", model)
    for one, other in zip(state(prefix.cache), state(loaded.cache), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(loaded.input_ids, ids[:, :-4])
    asked = {"attention_mask": mask, "output_logits": True, "return_dict_in_generate": True}
    whole = model.generate(ids, **MORE, **asked)
    kept, read = continued(prefix, ids, **asked), continued(loaded, ids, **asked)
    assert torch.equal(torch.stack(kept.logits), torch.stack(read.logits))
    assert torch.equal(read.sequences, whole.sequences)
    torch.testing.assert_close(torch.stack(read.logits), torch.stack(whole.logits), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mixers", CAUSAL_MIXERS)
def test_our_models_too_with_every_pattern(mixers: str, tmp_path: Path) -> None:
    model, ids = small_model(mixers), random_tokens(2, 30)
    prefix = Prefix.read(model, ids[:, :23], chunk=9)
    prefix.save(tmp_path / "prefix.safetensors")
    expected = model.generate(ids, **MORE)
    assert torch.equal(continued(Prefix.load(tmp_path / "prefix.safetensors", model), ids), expected)
    assert torch.equal(continued(prefix, ids), expected)


@pytest.mark.parametrize("options", [{}, {"restorable": 0}, {"max_tokens": 60}, {"restorable": 9, "max_tokens": 40}])
def test_options_of_the_cache_and_its_room_are_restored(options: dict, tmp_path: Path) -> None:
    model, ids = small_model(TEXT), random_tokens(1, 30)
    Prefix.read(model, ids[:, :20], **options).save(tmp_path / "prefix.safetensors")
    loaded = Prefix.load(tmp_path / "prefix.safetensors", model)
    fresh = Prefix.read(model, ids[:, :20], **options)
    for one, other in zip(loaded.cache.layers, fresh.cache.layers, strict=True):
        assert (one.restorable, one.max_tokens, one.nbytes) == (other.restorable, other.max_tokens, other.nbytes)
        assert [slots.holds for slots in one.groups] in ([0] * len(one.groups), [s.holds for s in other.groups])
    assert torch.equal(continued(loaded, ids), model.generate(ids, **MORE))


def test_one_prefix_is_continued_by_many_rows_and_stays_as_it_was() -> None:
    model, ids = small_model(TEXT), random_tokens(1, 20)
    prefix = Prefix.read(model, ids)
    before = [x.clone() for x in state(prefix.cache)]
    asked = torch.cat([ids.expand(3, -1), random_tokens(3, 5, seed=2)], dim=1)
    assert torch.equal(continued(prefix, asked), model.generate(asked, **MORE))
    assert all(map(torch.equal, before, state(prefix.cache)))
    assert prefix.cache.get_seq_length() == 20


def test_turns_of_a_conversation_read_only_what_is_new() -> None:
    model, ids = use_pattern(build("llama"), TEXT), random_tokens(1, 12).clamp(min=1)
    seen: list[int] = []
    model.model.register_forward_pre_hook(
        lambda module, given, named: seen.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    said = model.generate(ids, return_dict_in_generate=True, **MORE)
    for turn in range(3):
        prefix = Prefix(model, cache_of(said), said.sequences)
        assert prefix.input_ids.shape[1] == said.sequences.shape[1] - 1, "the last token was not read"
        asked = torch.cat([said.sequences, random_tokens(1, 4, seed=turn).clamp(min=1)], dim=1)
        seen.clear()
        cache = prefix.cache_for(asked)
        said = model.generate(asked, **with_cache(cache), return_dict_in_generate=True, **MORE)
        assert seen == [5, 1, 1, 1, 1, 1]
        assert torch.equal(said.sequences, model.generate(asked, **MORE))


def test_an_answer_that_was_edited_goes_back_to_the_common_beginning() -> None:
    model, ids = small_model("window(left=4)"), random_tokens(1, 20)
    prefix = Prefix.read(model, ids, restorable=5)
    other = ids.clone()
    other[0, 16] = (other[0, 16] + 1) % 40
    cache = prefix.cache_for(other)
    assert cache.get_seq_length() == 16
    assert torch.equal(model.generate(other, **with_cache(cache), **MORE), model.generate(other, **MORE))
    assert prefix.cache_for(ids).get_seq_length() == 19, "the last token is read again, to have logits"
    other[0, 3] = (other[0, 3] + 1) % 40
    with refusing(ConfigurationError, "prefix-forgotten", "share 3 of the 20"):
        prefix.cache_for(other)
    other[0, 0] = (other[0, 0] + 1) % 40
    with refusing(ConfigurationError, "prefix-not-shared", "20"):
        prefix.cache_for(other)
    with refusing(ConfigurationError, "prefix-rows", "2 rows"):
        Prefix.read(model, ids.expand(2, -1)).cache_for(ids.expand(3, -1))


def test_a_copied_cache_shares_plans_and_no_memory() -> None:
    model, ids = small_model(TEXT), random_tokens(1, 20)
    cache = Prefix.read(model, ids).cache
    other = copy.deepcopy(cache)
    for one, two in zip(cache.layers, other.layers, strict=True):
        for slots, copied in zip(one.groups, two.groups, strict=True):
            assert slots.plan is copied.plan
            assert slots.keys.data_ptr() != copied.keys.data_ptr()
        assert two._latest is other.layers[0]._latest
        assert two._latest is not one._latest


def test_what_a_prefix_cannot_be(tmp_path: Path) -> None:
    dense, ids = build("llama"), random_tokens(1, 8)
    said = dense.generate(ids, return_dict_in_generate=True, **MORE)
    with refusing(ConfigurationError, "prefix-without-pattern", "layer 0", "DynamicLayer", "use_pattern"):
        Prefix(dense, cache_of(said), said.sequences)
    model = small_model(TEXT)
    cache = Prefix.read(model, ids).cache
    for wrong in (ids[:, :-1], ids[0], ids.double(), ids.expand(2, -1)):
        with refusing(ConfigurationError, "prefix-tokens", "8 tokens of 1 rows"):
            Prefix(model, cache, wrong)
    for empty in (PatternCache(model.config), DynamicCache()):
        with refusing(ConfigurationError, "prefix-tokens", "0 tokens"):
            Prefix(model, empty, ids)


def test_a_file_of_another_model_or_pattern_is_refused(tmp_path: Path) -> None:
    path, ids = tmp_path / "prefix.safetensors", random_tokens(1, 20)
    Prefix.read(use_pattern(build("llama"), TEXT), ids).save(path)
    with refusing(ConfigurationError, "prefix-of-other-model", "another class", "LlamaForCausalLM", "Qwen2ForCausalLM"):
        Prefix.load(path, use_pattern(build("qwen2"), TEXT))
    with refusing(ConfigurationError, "prefix-of-other-model", "another pattern", "window(left=2, right=0"):
        Prefix.load(path, use_pattern(build("llama"), "window(left=2)"))
    with refusing(ConfigurationError, "prefix-of-other-model", "other weights"):
        Prefix.load(path, use_pattern(build("llama"), TEXT).float())
    trained = use_pattern(build("llama"), TEXT)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter += 1e-9
    with refusing(ConfigurationError, "prefix-of-other-model", "other weights"):
        Prefix.load(path, trained)
    turned = build("llama")
    turned.config.rms_norm_eps = 1e-3
    with refusing(ConfigurationError, "prefix-of-other-model", "another configuration"):
        Prefix.load(path, use_pattern(turned, TEXT))


def test_a_model_that_was_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    path, ids = tmp_path / "prefix.safetensors", random_tokens(1, 20)
    model = use_pattern(build("llama"), TEXT)
    Prefix.read(model, ids).save(path)
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model", dtype=torch.float64).eval()
    more = torch.cat([ids, random_tokens(1, 3, seed=3)], dim=1)
    assert torch.equal(continued(Prefix.load(path, again), more), model.generate(more, **MORE))


def damaged(path: Path, change) -> None:
    """Write the file anew with other notes or tensors."""
    with safe_open(path, framework="pt") as file:
        notes = json.loads(file.metadata()["asterism_prefix"])
    tensors = load_file(path)
    change(notes, tensors)
    save_file(tensors, path, metadata={"asterism_prefix": json.dumps(notes)})


DAMAGES = {
    "no layers": lambda notes, tensors: notes.pop("layers"),
    "a layer too few": lambda notes, tensors: notes["layers"].pop(0),
    "another pattern": lambda notes, tensors: notes["layers"][1].update(pattern="causal()"),
    "no pattern": lambda notes, tensors: notes["layers"][1].update(pattern=3),
    "a tensor too few": lambda notes, tensors: tensors.pop("1.0.keys"),
    "no tokens": lambda notes, tensors: tensors.pop("input_ids"),
    "fewer tokens": lambda notes, tensors: tensors.update(input_ids=tensors["input_ids"][:, :-1].clone()),
    "more rows of tokens": lambda notes, tensors: tensors.update(input_ids=tensors["input_ids"].repeat(2, 1)),
    "fewer slots": lambda notes, tensors: tensors.update({"1.0.keys": tensors["1.0.keys"][:, :, :-1].clone()}),
    "whole numbers as keys": lambda notes, tensors: tensors.update({"1.0.keys": tensors["1.0.keys"].long()}),
    "another number of heads": lambda notes, tensors: notes["layers"][0].update(heads=3),
    "heads as text": lambda notes, tensors: notes["layers"][0].update(heads="two"),
    "no width": lambda notes, tensors: notes["layers"][0].update(widths=[]),
    "a negative width": lambda notes, tensors: notes["layers"][0].update(widths=[-1]),
    "a width as text": lambda notes, tensors: notes["layers"][0].update(widths=["1"]),
    "an endless width": lambda notes, tensors: notes["layers"][0].update(widths=[2**60]),
    "negative lengths": lambda notes, tensors: notes["seen"].update(lengths=-20),
    "long rows": lambda notes, tensors: notes["seen"].update(lengths=21),
    "lengths of other rows": lambda notes, tensors: notes["seen"].update(lengths=[20, 19]),
    "no columns": lambda notes, tensors: notes["seen"].pop("columns"),
    "columns as text": lambda notes, tensors: notes["seen"].update(columns="20"),
    "padding that is none": lambda notes, tensors: notes["seen"].update(recent=["2"]),
    "an option that is none": lambda notes, tensors: notes["options"].update(restorable=-1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_notes_and_tensors_are_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "prefix.safetensors"
    model = small_model(TEXT) if damage == "another pattern" else use_pattern(build("llama"), TEXT)
    Prefix.read(model, random_tokens(1, 20)).save(path)
    damaged(path, DAMAGES[damage])
    with refusing(CheckpointError, "damaged-file", str(path)) as caught:
        Prefix.load(path, model)
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    path, model = tmp_path / "prefix.safetensors", small_model(TEXT)
    with refusing(CheckpointError, "missing-file", str(path)):
        Prefix.load(path, model)
    Prefix.read(model, random_tokens(1, 20)).save(path)
    whole = path.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with refusing(CheckpointError, "damaged-file", str(path)):
            Prefix.load(path, model)
    save_file({"input_ids": torch.zeros(1, 1)}, path)
    with refusing(CheckpointError, "damaged-file", str(path)):
        Prefix.load(path, model)
    path.write_bytes(whole)
    damaged(path, lambda notes, tensors: notes.update(version=2))
    with refusing(CheckpointError, "prefix-version", "2", "1"):
        Prefix.load(path, model)


def test_what_a_window_forgot_takes_no_room(tmp_path: Path) -> None:
    model, sizes = small_model("window(left=4)", position_type="rotary"), []
    for tokens in (200, 2000):
        Prefix.read(model, random_tokens(1, tokens), restorable=0).save(tmp_path / "prefix.safetensors")
        sizes.append((tmp_path / "prefix.safetensors").stat().st_size - 8 * tokens)
    assert abs(sizes[1] - sizes[0]) < 100
