"""Schedules within a budget: costs by counting pairs, losses by whole models, the same end however often stopped."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from causal_folders import WINDOW, save_causal
from refusals import refusing
from slow_cases import slow_except
from small_checkpoints import draw_weights, undone
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.evaluation import CausalModel, open_causal
from asterism.evaluation.words import prose
from asterism.models.drop_in.layers import describe_attention
from asterism.patterns import parse
from asterism.sparsify import parse_budget, sparsify, write_model
from asterism.sparsify.baselines import baselines
from asterism.sparsify.choosing import cheapest
from asterism.sparsify.grid import FIRST, Grid, grid_of
from asterism.sparsify.losses import Losses, Record
from asterism.sparsify.mass import lost_mass
from asterism.sparsify.prices import Prices, measure_prices
from asterism.sparsify.texts import read_texts
from asterism.training.run.integrity import seal
from asterism.training.run.lock import locked

LENGTH = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_causal(tmp_path_factory.mktemp("models") / "llama", windowed=False)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory) -> Path:
    return save_causal(tmp_path_factory.mktemp("models") / "mistral")


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    rows = [{"text": f"{number}. {' '.join(prose(np.random.default_rng(number), 150))}"} for number in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def choose(model: CausalModel, texts: Path, output: Path, budget: str = "keys=40%", *, seed: int = 0, **options):
    read = read_texts(model, texts, LENGTH, (2, 3), seed)
    return sparsify(model, read, parse_budget(budget), output, **{"window": 6, "trials": 6, **options})


def pairs(pattern: str, length: int) -> torch.Tensor:
    place = np.arange(length)
    allowed = parse(pattern).allows(place[:, None], place[None], length)
    return torch.from_numpy(np.broadcast_to(allowed, (length, length)).copy())


# --- budgets and costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("key=5", "unknown-budget"),
        ("512", "unknown-budget"),
        ("keys=", "bad-budget"),
        ("keys=0", "bad-budget"),
        ("keys=-5", "bad-budget"),
        ("cache=101%", "bad-budget"),
        ("keys=nan", "bad-budget"),
        ("keys=٥", "bad-budget"),
        ("keys=5_0", "bad-budget"),
        ("flops=1e9", "bad-budget"),
        ("flops=500", "bad-budget"),
        (f"keys={'9' * 400}", "bad-budget"),
    ],
)
def test_budgets_that_are_none(text, code):
    with refusing(ConfigurationError, code):
        parse_budget(text)


@pytest.mark.parametrize("text", ["keys=512", "keys=25%", "cache=40%", "flops=12.5%"])
def test_a_budget_is_its_text(text):
    assert str(parse_budget(text)) == text


@pytest.mark.parametrize("name", ["folder", "windowed"])
@pytest.mark.parametrize("seed", range(5))
def test_costs_are_those_of_counting(request, name, seed):
    """Keys by counting pairs, the cache by the tokens that a later query reads, both of every query or key head."""
    grid = grid_of(describe_attention(open_causal(request.getfixturevalue(name)).model.config), LENGTH, 6)
    drawn = random.Random(seed)
    choice = tuple(
        tuple(drawn.randrange(len(ladder)) for _ in range(heads))
        for ladder, heads in zip(grid.ladders, grid.key_heads, strict=True)
    )
    read, kept, query_heads, key_heads = 0, 0, 0, 0
    for layer, levels in enumerate(choice):
        for level in levels:
            text = grid.ladders[layer][level].text
            read += int(pairs(text, LENGTH).sum()) * grid.groups[layer]
            later = pairs(text, LENGTH * 3)[LENGTH:, :LENGTH]
            kept += int(later.any(dim=0).sum())
            query_heads += grid.groups[layer]
            key_heads += 1
    assert grid.mean(grid.total(choice, "keys"), "keys") == pytest.approx(read / query_heads / LENGTH)
    assert grid.mean(grid.total(choice, "cache"), "cache") == pytest.approx(kept / key_heads)
    assert grid.total(choice, "flops") == pytest.approx(grid.total(choice, "keys") * grid.widths[0])


def test_levels_begin_with_the_layers_own_pattern(windowed):
    grid = grid_of(describe_attention(open_causal(windowed).model.config), LENGTH, 6)
    assert [str(level) for level in grid.ladders[0]] == [
        f"window(left={WINDOW - 1})",
        "sinks(window=12)",
        "sinks(window=6)",
    ]
    read = [int(pairs(level.text, LENGTH).sum()) for level in grid.ladders[0]]
    assert read == sorted(read, reverse=True)


def test_groups_of_query_heads_share_a_level(folder):
    grid = grid_of(describe_attention(open_causal(folder).model.config), LENGTH, 6)
    own, least = grid.ladders[0][0].text, grid.ladders[0][-1].text
    (mixed, _) = grid.patterns(((0, len(grid.ladders[0]) - 1), (0, 0)))
    assert mixed == f"per_head(patterns=({own}, {own}, {least}, {least}))"


# --- choosing ---------------------------------------------------------------------------------------------------------


def drawn_prices(grid: Grid, seed: int) -> Prices:
    drawn = random.Random(seed)
    levels = tuple(
        tuple((0.0, *sorted(drawn.uniform(-0.05, 0.3) for _ in ladder[1:])) for _ in range(heads))
        for ladder, heads in zip(grid.ladders, grid.key_heads, strict=True)
    )
    nothing = (0.0,) * len(levels)
    return Prices(1.0, 2.0, nothing, nothing, tuple((0.0,) * heads for heads in grid.key_heads), 1.0, levels)


@pytest.mark.parametrize("kind", ["keys", "cache", "flops"])
@pytest.mark.parametrize("seed", range(8))
def test_the_price_list_is_spent_well(folder, seed, kind):
    """Against all choices: never above the limit, and dearer than the best by less than the dearest head."""
    grid = grid_of(describe_attention(open_causal(folder).model.config), LENGTH, 12)
    prices = drawn_prices(grid, seed)
    low, high = grid.total(grid.least, kind), grid.total(grid.own, kind)
    limit = low + random.Random(seed).random() * (high - low)
    chosen = cheapest(prices, grid, kind, limit)
    assert grid.total(chosen, kind) <= limit
    every = itertools.product(*(itertools.product(range(len(ladder)), repeat=2) for ladder in grid.ladders))
    best = min(prices.rise(one) for one in every if grid.total(one, kind) <= limit)
    dearest = max(one[-1] - min(one) for layer in prices.levels for one in layer)
    assert best <= prices.rise(chosen) <= best + dearest
    assert prices.rise(chosen) <= max(prices.rise(grid.least), best)


@pytest.mark.parametrize("kind", ["keys", "cache"])
def test_others_spend_what_they_may(folder, kind):
    grid = grid_of(describe_attention(open_causal(folder).model.config), LENGTH, 6)
    low, high = grid.total(grid.least, kind), grid.total(grid.own, kind)
    limit = (low + high) / 2
    found = baselines(grid, drawn_prices(grid, 0), kind, limit)
    assert {"uniform", "layers by loss"} <= found.keys()
    for name, (schedule, total) in found.items():
        counted = sum(
            int(pairs(text, LENGTH).sum()) * 4
            if kind == "keys"
            else int(pairs(text, LENGTH * 3)[LENGTH:, :LENGTH].any(dim=0).sum()) * 2 * grid.widths[0]
            for text in schedule
        )
        assert total == pytest.approx(counted), name
        assert total <= limit
    (first, _), _ = found["uniform"]
    wider = first.replace(f"first={FIRST}, window=", "").rstrip(")").split("(")[1]
    more = f"sinks(first={FIRST}, window={int(wider) + 1})"
    if kind == "keys":
        assert int(pairs(more, LENGTH).sum()) * 4 * 2 > limit


# --- losses -----------------------------------------------------------------------------------------------------------

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "head_dim": 8,
}


def small(name: str):
    made = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, sliding_window=16)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=32, n_layer=4, n_head=4)),
    }
    with undone():
        model = made[name]()
        with torch.no_grad():
            draw_weights(model)
    return model.eval()


def a_text(length: int = LENGTH, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 60, (1, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_what_is_not_run_again_changes_no_bit(tmp_path, name):
    schedules = [("causal()",) * 4]
    schedules += [(*("causal()",) * at, "sinks(first=4, window=6)", *("causal()",) * (3 - at)) for at in range(4)]
    found = {}
    for way in ("reused", "whole"):
        losses = Losses(CausalModel(tmp_path, small(name), None), {"one": a_text()}, Record(tmp_path / way, {}))
        if way == "whole":
            losses.reuses = False
        found[way] = losses.means(schedules[0], schedules, ["one"])
        assert losses.reuses is (way == "reused")
    assert found["reused"] == found["whole"]
    assert len(set(found["whole"])) == 5  # each schedule matters


def test_a_loss_is_that_of_a_mask(tmp_path):
    """By SDPA of transformers under a mask, in float64."""
    model, ids = small("llama").double(), a_text()
    schedule = ("causal()", "sinks(first=4, window=6)", "window(left=9)", "causal()")
    losses = Losses(CausalModel(tmp_path, model, None), {"one": ids}, Record(tmp_path / "record", {}))
    measured = losses.mean(schedule, ["one"])
    plain = small("llama").double()
    plain.set_attn_implementation("sdpa")
    for layer, text in zip(plain.model.layers, schedule, strict=True):
        mask = torch.zeros(1, 1, LENGTH, LENGTH, dtype=torch.float64).masked_fill(~pairs(text, LENGTH), -torch.inf)
        inner = layer.self_attn.forward
        layer.self_attn.forward = lambda *given, inner=inner, mask=mask, **named: inner(
            *given, **{**named, "attention_mask": mask}
        )
    with torch.no_grad():
        logits = plain(ids, use_cache=False).logits[0, LENGTH // 2 - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits, ids[0, LENGTH // 2 :])
    assert measured == pytest.approx(float(expected), abs=1e-10)


def test_layers_that_hand_something_on_are_run_again(tmp_path):
    """A model whose layers leave a trace beside their hidden states is never cut short."""
    model = small("llama")
    trace: list[float] = []
    for number, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(lambda *_, number=number: trace.clear() if not number else None)
        layer.mlp.register_forward_hook(lambda *_: trace.append(1.0))
    model.model.norm.register_forward_hook(lambda module, given, result: result * len(trace))
    losses = Losses(CausalModel(tmp_path, model, None), {"one": a_text()}, Record(tmp_path / "record", {}))
    losses.mean(("causal()",) * 4, ["one"])
    assert losses.reuses is False


def test_the_mass_that_heads_lose_is_that_of_the_softmax(folder):
    model = open_causal(folder).model
    grid = grid_of(describe_attention(model.config), LENGTH, 6)
    ids = a_text()
    lost = lost_mass(model, grid, ids)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="eager")
    with torch.no_grad():
        weights = plain(ids, output_attentions=True, use_cache=False).attentions
    for layer, of_layer in enumerate(weights):
        for level, pattern in enumerate(grid.ladders[layer]):
            outside = (
                (of_layer[0] * ~pairs(pattern.text, LENGTH)).sum(dim=-1).mean(dim=-1).unflatten(0, (2, 2)).mean(dim=1)
            )
            assert [head[level] for head in lost[layer]] == pytest.approx(outside.tolist(), abs=1e-6)
    assert max(head[-1] for head in lost[0]) > 0.05


# --- the whole way ----------------------------------------------------------------------------------------------------


def test_a_budget_is_kept_and_the_model_written(folder, texts, tmp_path):
    model = open_causal(folder)
    result = choose(model, texts, tmp_path / "out")
    named = {row.name: row for row in result.rows}
    assert all(row.share <= 0.4 for name, row in named.items() if name != "as it is")
    assert named["refined"].nats <= named["price list"].nats
    write_model(model, tmp_path / "sparse")
    again = open_causal(tmp_path / "sparse")
    read = read_texts(open_causal(folder), texts, LENGTH, (2, 3), 0)
    losses = []
    for ids in read.held_out:
        with torch.no_grad():
            logits = again.model(ids, use_cache=False).logits[0, LENGTH // 2 - 1 : -1]
        losses.append(float(torch.nn.functional.cross_entropy(logits, ids[0, LENGTH // 2 :])))
    assert sum(losses) / 3 == pytest.approx(named["refined"].held_out, abs=1e-9)
    assert AutoTokenizer.from_pretrained(tmp_path / "sparse").get_vocab() == model.tokenizer.get_vocab()


class Stopped(Exception):
    pass


@pytest.fixture(scope="module")
def whole(folder, texts, tmp_path_factory):
    """What is chosen if nobody stops it."""
    return choose(open_causal(folder), texts, tmp_path_factory.mktemp("whole") / "out").as_json()


@pytest.mark.parametrize("after", slow_except((0, 1, 9, 17, 30), 17))
def test_stopped_anywhere_it_ends_with_the_same(folder, texts, whole, tmp_path, monkeypatch, after):
    kept = Record.keep
    counted: list[tuple] = []

    def keep(self, schedule, piece, nats, seconds):
        if len(counted) == after:
            raise Stopped
        kept(self, schedule, piece, nats, seconds)
        counted.append((schedule, piece))

    monkeypatch.setattr(Record, "keep", keep)
    with pytest.raises(Stopped):
        choose(open_causal(folder), texts, tmp_path / "out")
    monkeypatch.setattr(Record, "keep", lambda self, *given: (kept(self, *given), counted.append(given[:2])))
    result = choose(open_causal(folder), texts, tmp_path / "out").as_json()
    assert len(counted) == len(set(counted))  # nothing is measured twice
    assert {**result, "seconds": 0} == {**whole, "seconds": 0}
    again = len(counted)
    choose(open_causal(folder), texts, tmp_path / "out", "keys=30%")
    assert len(counted) == len(set(counted)) > again  # another budget has only its own to measure


def test_prices_add_up(tmp_path):
    """On random texts, of which some cost more under fewer keys: there the means alone do not add up."""
    model, scaled = small("llama"), 0
    grid = grid_of(describe_attention(model.config), LENGTH, 6)
    for seed in range(4):
        ids = a_text(seed=seed)
        losses = Losses(CausalModel(tmp_path, model, None), {"one": ids}, Record(tmp_path / f"record-{seed}", {}))
        prices = measure_prices(losses, grid, ["one"], lost_mass(model, grid, ids), lambda text: None)
        of_layers = [sum(head[-1] for head in layer) for layer in prices.levels]
        assert of_layers == pytest.approx([prices.of_layer(number) for number in grid.layers])
        if prices.scale != 1:
            assert sum(of_layers) == pytest.approx(prices.least - prices.dense, rel=1e-6)
            scaled += abs(prices.scale - 1) > 0.01
    assert scaled


def test_a_record_of_other_settings(folder, texts, tmp_path):
    choose(open_causal(folder), texts, tmp_path / "out", trials=0)
    with refusing(CheckpointError, "output-of-other-settings", "window"):
        choose(open_causal(folder), texts, tmp_path / "out", window=5)
    with refusing(CheckpointError, "output-of-other-settings", "texts"):
        choose(open_causal(folder), texts, tmp_path / "out", seed=1)
    (tmp_path / "out" / "record.json").write_text('{"settings": {}, "losses": {"a": {"b": "x"}}, "seconds": 0}')
    with refusing(CheckpointError, "seal-missing"):
        choose(open_causal(folder), texts, tmp_path / "out")
    (tmp_path / "out" / "record.json").write_text(json.dumps(seal({"settings": {}, "losses": {}})))
    with refusing(CheckpointError, "foreign-record", "it has no 'seconds'"):
        choose(open_causal(folder), texts, tmp_path / "out")
    (tmp_path / "out" / "record.json").write_text("null")
    with refusing(CheckpointError, "damaged-fields"):
        choose(open_causal(folder), texts, tmp_path / "out")


def test_records_that_cannot_be(folder, texts, tmp_path):
    choose(open_causal(folder), texts, tmp_path / "out", trials=0)
    path = tmp_path / "out" / "record.json"
    whole = json.loads(path.read_text())
    for changed in ({"mass": "all"}, {"mass": []}, {"results": []}, {"seconds": True}, {"losses": []}):
        path.write_text(json.dumps(whole | changed))
        with refusing(CheckpointError, "file-tampered"):
            choose(open_causal(folder), texts, tmp_path / "out")


@pytest.mark.slow
def test_the_caller_s_autocast_decides_nothing(folder, texts, tmp_path):
    plain = choose(open_causal(folder), texts, tmp_path / "plain", trials=2)
    with torch.autocast("cpu", torch.bfloat16):
        found = choose(open_causal(folder), texts, tmp_path / "cast", trials=2)
    assert (found.schedule, found.rows) == (plain.schedule, plain.rows)


def test_a_model_that_was_half_written_leaves_nothing(folder, tmp_path):
    half, other = tmp_path / f".sparser-{'0' * 32}", tmp_path / f".another-{'0' * 32}"
    for path in (half, other):
        path.mkdir()
    write_model(open_causal(folder), tmp_path / "sparser")
    assert not half.exists() and other.exists()


def test_one_process_at_a_time_measures(folder, texts, tmp_path):
    with locked(tmp_path / "out"), pytest.raises(CheckpointError):
        choose(open_causal(folder), texts, tmp_path / "out")


def test_of_a_file_that_is_too_long_the_beginning_is_read(folder, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text(" ".join(prose(np.random.default_rng(0), 2000)))
    model = open_causal(folder)
    expected = read_texts(model, path, LENGTH, (1, 1), 0)
    with path.open("r+b") as file:
        file.truncate(2**42)  # blanks that take no room on the disk
    found = read_texts(model, path, LENGTH, (1, 1), 0)
    assert torch.equal(found.chosen_by[0], expected.chosen_by[0])


def test_texts_that_decide_are_not_those_that_judge(folder, texts, tmp_path):
    model = open_causal(folder)
    read = read_texts(model, texts, LENGTH, (2, 3), 0)
    numbers = [model.tokenizer.decode(ids[0, :6]) for ids in (*read.chosen_by, *read.held_out)]
    assert len(set(numbers)) == 5
    alone = tmp_path / "alone.txt"
    alone.write_text(json.loads(texts.read_text().splitlines()[0])["text"] * 6)
    cut = read_texts(model, alone, LENGTH, (2, 3), 0)
    assert (len(cut.chosen_by), len(cut.held_out)) == (2, 3)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ('{"text": "short"}\n', "text-too-short"),
        ('{"words": "none"}\n', "missing-field"),
        ('{"text": 5}\n', "bad-field"),
        ('{"text": "\\ud800 and more"}\n', "bad-field"),
        ("", "no-records"),
    ],
)
def test_texts_that_are_of_no_use(folder, tmp_path, content, code):
    (tmp_path / "texts.jsonl").write_text(content)
    with refusing(DataError, code):
        read_texts(open_causal(folder), tmp_path / "texts.jsonl", LENGTH, (1, 1), 0)


def test_budgets_that_no_schedule_meets(folder, texts, tmp_path):
    with refusing(ConfigurationError, "budget-unmet", "the nearest"):
        choose(open_causal(folder), texts, tmp_path / "out", "keys=1%")
    with refusing(ConfigurationError, "budget-met"):
        choose(open_causal(folder), texts, tmp_path / "out", "keys=4096")
    with refusing(ConfigurationError, "nothing-sparser"):
        choose(open_causal(folder), texts, tmp_path / "out", window=200)
    assert not (tmp_path / "out").exists()
