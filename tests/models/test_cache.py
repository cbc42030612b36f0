"""The cache forgets exactly what the pattern can no longer read, and forgetting changes no output."""

import sys
from threading import Thread

import numpy as np
import pytest
import torch
from refusals import refusing
from small_models import CAUSAL_MIXERS, VOCABULARY, random_tokens, small_config, small_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, StaticCache

from asterism import clear_caches, patterns
from asterism.compiler import last_reader
from asterism.compiler.slots import SlotPlan
from asterism.errors import ConfigurationError, PatternError
from asterism.layers import Rotary, SparseAttention, rows_of
from asterism.models.cache.cache import PatternCache
from asterism.models.cache.layer import PatternCacheLayer

TOKENS = 60


def feed(layer: PatternCacheLayer, *lengths: int, width: int | None = None) -> None:
    """Add so many tokens to each row; keys and values carry their position, to be recognised later."""
    tokens = layer.new_tokens(max(lengths) if width is None else width, lengths)
    positions = tokens.positions(torch.device("cpu")).expand(len(lengths), -1)
    keys = positions[:, None, :, None].expand(-1, 4, -1, 3).double()
    layer.extend(keys, keys[..., :1], tokens)


def stored(layer: PatternCacheLayer, row: int = 0) -> dict[int, set[int]]:
    """For each key head, the positions of the keys in its slots, as the tensors say."""
    found = {}
    for slots in layer.groups:
        for place, head in enumerate(slots.group.key_heads):
            keys, values = slots.keys[row, place], slots.values[row, place]
            assert torch.equal(keys[:, 0], values[:, 0])
            found[head] = set(keys[:, 0].long().tolist())
    return found


def readable_later(pattern: patterns.Pattern, seen: int, head: int = 0, horizon: int = 200) -> list[int]:
    """By brute force: keys below `seen` that a query in [seen, horizon) may read."""
    later = pattern.dense(horizon)[head % pattern.heads, seen:, :seen]
    return np.flatnonzero(later.any(axis=0)).tolist()


@pytest.mark.parametrize("restorable", [0, 3, 64])
@pytest.mark.parametrize("chunk", [1, 7, TOKENS])
@pytest.mark.parametrize(
    "text",
    [
        "causal()",
        "window(left=5)",
        "window(left=3, dilation=2)",
        "sinks(first=2, window=6)",
        "strided(stride=6)",
        "fixed(stride=8, summary=2)",
        "fixed(stride=8, summary=2, heads=4)",
        "star() & causal()",
        "split_heads(window(left=2), sinks(first=1, window=9), heads=4)",
    ],
)
def test_after_every_update_each_head_has_exactly_the_keys_it_may_read(text: str, chunk: int, restorable: int) -> None:
    pattern = patterns.parse(text)
    layer = PatternCacheLayer(pattern, restorable=restorable)
    for start in range(0, TOKENS, chunk):
        feed(layer, min(chunk, TOKENS - start))
        kept, seen = layer.kept(), layer.get_seq_length()
        assert kept == {head: readable_later(pattern, seen, head) for head in range(4)}
        assert all(set(positions) <= stored(layer)[head] for head, positions in kept.items())


@pytest.mark.parametrize("text", CAUSAL_MIXERS)
def test_no_dead_key_is_kept_and_no_living_one_lost(text: str) -> None:
    for pattern in patterns.parse_schedule(text).patterns:
        layer = PatternCacheLayer(pattern)
        for _ in range(0, TOKENS, 5):
            feed(layer, 5)
            for head, kept in layer.kept().items():
                assert (last_reader(pattern, kept) >= layer.get_seq_length()).all()
                assert set(readable_later(pattern, layer.get_seq_length(), head)) <= set(kept) <= stored(layer)[head]


def test_number_of_keys_kept() -> None:
    """window: constant; fixed: a block and the summary cells; strided: everything."""
    model = small_model(["window(left=9)", "fixed(stride=8, summary=2)", "strided(stride=6)"])
    tokens, cache = random_tokens(2, 64), PatternCache(model.config)
    counts = []
    for column in range(64):
        model(tokens[:, column : column + 1], past_key_values=cache)
        counts.append([len(layer.kept()[0]) for layer in cache.layers])
    window, fixed, strided = (list(column) for column in zip(*counts, strict=True))
    # The next query reads 9 keys and itself.
    assert window == [min(seen, 9) for seen in range(1, 65)]
    assert all(count <= 8 + 2 * (seen // 8) for seen, count in enumerate(fixed, start=1))
    assert fixed[-1] == 16
    assert strided == list(range(1, 65))


@pytest.mark.parametrize(
    ("text", "most"), [("window(left=511)", 512), ("sinks(first=4, window=508)", 512), ("window(left=99)", 100)]
)
def test_bytes_of_slots_are_bounded(text: str, most: int) -> None:
    """The living keys and those of the last tokens that can be taken back, whatever is fed and however long."""
    layer = PatternCacheLayer(patterns.parse(text))
    for count in (2000, 1, 1, 300, 65, 64, 1):
        feed(layer, count)
        assert layer.nbytes == (most + 64) * 4 * (3 + 1) * 8


def test_a_head_with_a_short_window_keeps_only_its_own_keys() -> None:
    layer = PatternCacheLayer(patterns.parse("split_heads(window(left=9), window(left=299), heads=4)"), restorable=0)
    for _ in range(400):
        feed(layer, 1)
    assert [slots.keys.shape[1:3] for slots in layer.groups] == [(2, 10), (2, 300)]
    assert [len(kept) for kept in layer.kept().values()] == [9, 9, 299, 299]


def test_rows_forget_by_their_own_positions() -> None:
    layer = PatternCacheLayer(patterns.fixed(stride=8, summary=2))
    feed(layer, 11, 5)
    assert layer.lengths == (11, 5)
    assert [layer.kept(row)[0] for row in range(2)] == [[6, 7, 8, 9, 10], [0, 1, 2, 3, 4]]
    feed(layer, 1, 1)
    assert [layer.kept(row)[0] for row in range(2)] == [[6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5]]
    assert layer.get_seq_length() == 12
    feed(layer, 0, 3)
    assert layer.lengths == (12, 9)
    assert [layer.kept(row)[0] for row in range(2)] == [[6, 7, 8, 9, 10, 11], [6, 7, 8]]
    assert all(set(layer.kept(row)[0]) <= stored(layer, row)[3] for row in range(2))


def filled(rows: int = 3) -> PatternCache:
    """Rows of different lengths, each with its own number as value."""
    cache = PatternCache(small_config("window(left=4)", num_hidden_layers=1))
    own = torch.arange(rows).double()[:, None, None, None].expand(rows, 2, 6, 1)
    tokens = cache.layers[0].new_tokens(6, [6 - row for row in range(rows)])
    cache.layers[0].extend(own.expand(-1, -1, -1, 3), own, tokens)
    return cache


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda cache: cache.reorder_cache(torch.tensor([2, 0, 0])), [2, 0, 0]),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
        (lambda cache: cache.batch_select_indices(torch.tensor([True, False, True])), [0, 2]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
    ],
)
def test_rows_travel_with_their_positions(change, rows: list[int]) -> None:
    cache = filled()
    change(cache)
    after = cache.layers[0]
    assert after.groups[0].keys[:, 0, 0, 0].tolist() == rows and after.groups[0].values[:, 1, 0, 0].tolist() == rows
    assert after.lengths == tuple(6 - row for row in rows)
    assert [after.kept(place)[0] for place in range(len(rows))] == [list(range(2 - row, 6 - row))[-4:] for row in rows]
    assert after.get_seq_length() == 6


def test_reset_forgets_everything() -> None:
    cache = filled(rows=3)
    cache.reset()
    assert cache.get_seq_length() == 0
    feed(cache.layers[0], 2)
    assert cache.layers[0].lengths == (2,) and cache.layers[0].kept()[0] == [0, 1]
    empty = PatternCache(small_config())
    for change in (empty.reset, lambda: empty.batch_repeat_interleave(2), lambda: empty.reorder_cache(torch.arange(2))):
        change()
    assert empty.get_seq_length() == 0


def test_what_transformers_asks_of_a_cache() -> None:
    cache = filled()
    assert cache.get_seq_length() == 6
    assert cache.get_mask_sizes(2, 0) == (8, 0)
    assert cache.get_max_length() == cache.layers[0].get_max_length() == -1
    assert cache.layers[0].get_max_length() == -1
    assert not cache.is_compileable and cache.is_croppable and cache.is_sliding == [False]
    assert len(cache) == 1 and cache.is_initialized


def test_refusals() -> None:
    cache = filled()
    keys = torch.zeros(3, 2, 1, 3)
    with refusing(ConfigurationError, "cache-update"):
        cache.update(keys, keys, 0)
    with refusing(PatternError, "not-prefix-stable", "bigbird(block=4)"):
        PatternCacheLayer(patterns.bigbird(block=4))
    layer = SparseAttention(32, 4, "window(left=3)")
    with pytest.raises(ConfigurationError) as caught:
        layer(torch.zeros(1, 2, 32), cache=cache.layers[0])
    assert str(caught.value) == ("the cache is for the pattern window(left=4), but the layer has window(left=3)")
    layer = SparseAttention(32, 4, "window(left=4)")
    with refusing(ConfigurationError, "mask-with-cache"):
        hidden = torch.zeros(1, 2, 32)
        layer(hidden, cache=cache.layers[0], rows=rows_of(hidden, key_mask=torch.ones(1, 2, dtype=torch.bool)))
    with refusing(ConfigurationError, "rows-without-cache"):
        layer(hidden, cache=cache.layers[0], rows=rows_of(hidden))


def test_a_refused_crop_changes_no_layer() -> None:
    model = small_model("interleave(causal(), window(left=4), window(left=4))")
    tokens, cache = random_tokens(1, 20), PatternCache(model.config, restorable=0)
    model(tokens, past_key_values=cache)
    with refusing(ConfigurationError, "crop-forgotten", "window(left=4)"):
        cache.crop(-5)
    assert [layer.get_seq_length() for layer in cache.layers] == [20, 20, 20]


@pytest.mark.parametrize("seen", [0, 3])
def test_no_token_at_all_is_refused(seen: int) -> None:
    cache, model = PatternCache(small_config("window(left=4)")), small_model("window(left=4)")
    if seen:
        model(random_tokens(1, seen), past_key_values=cache)
    with refusing(ConfigurationError, "cache-extended-by-none"):
        model(random_tokens(1, 0), past_key_values=cache)


@pytest.mark.parametrize("text", ["window(left=7)", "fixed(stride=8, summary=2)"])
def test_threads_share_a_plan(text: str) -> None:
    pattern, wrong, interval = patterns.parse(text), [], sys.getswitchinterval()
    expected = SlotPlan(pattern, 8).held(4000)

    def ask(plan: SlotPlan, first: int) -> None:
        for position in range(first, 4000, 250):
            plan.table(position, 4096)
        if not np.array_equal(plan.held(4000), expected):
            wrong.append(text)

    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            plan = SlotPlan(pattern, 8)
            threads = [Thread(target=ask, args=(plan, 60 * number)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_a_layer_alone_continues_after_what_its_cache_has_seen() -> None:
    layer = SparseAttention(32, 4, "fixed(stride=8, summary=2)", rotary=Rotary()).double()
    hidden = torch.randn(2, 30, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cache = PatternCacheLayer(layer.pattern)
    parts = [layer(part, cache=cache) for part in hidden.split([11, 1, 7, 11], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(hidden), atol=1e-12, rtol=0)


# --- what a token costs ----------------------------------------------------------------------------------------------


class Synchronisations(TorchDispatchMode):
    """Counts the operators that wait for a device to tell the host a number."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("text", ["sinks(first=2, window=30)", "split_heads(window(left=3), causal(), heads=4)"])
def test_a_token_asks_no_pattern_and_waits_for_nothing(text: str, padding: int, monkeypatch) -> None:
    """Tables of 256 positions are made once for all layers; after the prompt nothing is asked of a device."""
    model = small_model(text, position_type="rotary", num_hidden_layers=3)
    tokens, mask = random_tokens(2, 180), torch.ones(2, 20, dtype=torch.int64)
    mask[1, :padding] = 0
    asked = []
    allows = patterns.Pattern.allows
    with torch.no_grad():
        cache = PatternCache(model.config)
        model(tokens[:, :20], attention_mask=mask, past_key_values=cache)
        monkeypatch.setattr(patterns.Pattern, "allows", lambda *question: asked.append(1) or allows(*question))
        with Synchronisations() as waited:
            for column in range(20, 180):
                model(tokens[:, column : column + 1], past_key_values=cache)
    assert waited.count == 0
    assert len(asked) <= 8 * len(cache.layers[0].groups)  # a table for each width that the slots had on the way


def test_a_limit_is_kept() -> None:
    layer = PatternCacheLayer(patterns.fixed(stride=8), max_tokens=40, restorable=0)
    feed(layer, 30)
    assert layer.is_compileable and layer.get_max_length() == 40
    for _ in range(10):
        feed(layer, 1)
    with pytest.raises(ConfigurationError) as caught:
        for _ in range(10):
            feed(layer, 1)
    assert str(caught.value) == (
        "all 12 slots of the cache hold keys that are still read, and token 48 of a row needs one more;"
        " give the cache a higher max_tokens, or none"
    )
    endless = PatternCacheLayer(patterns.window(left=5), max_tokens=100)
    feed(endless, 500)
    assert endless.get_max_length() == -1 and endless.groups[0].width == 6 + 64
    for options in ({"max_tokens": 0}, {"restorable": -1}, {"max_tokens": 2.5}):
        with refusing(ConfigurationError, "cache-max-tokens"):
            PatternCacheLayer(patterns.causal(), **options)


def test_other_rows_and_tokens_out_of_turn_are_refused() -> None:
    layer = PatternCacheLayer(patterns.causal())
    early = layer.new_tokens(3)
    feed(layer, 3, 3)
    with refusing(ConfigurationError, "cache-shapes"):
        feed(layer, 1, 1, 1)
    keys = torch.zeros(2, 4, 3, 3, dtype=torch.float64)
    with refusing(ConfigurationError, "cache-order"):
        layer.extend(keys, keys[..., :1], early)


def test_no_gradient_is_left_out_in_silence() -> None:
    model, tokens = small_model(position_type="rotary"), random_tokens(1, 80)
    cache = PatternCache(model.config)
    model(tokens[:, :5], past_key_values=cache).logits.sum().backward()
    for count in (1, 70):
        logits = model(tokens[:, cache.get_seq_length() :][:, :count], past_key_values=cache).logits
        with refusing(ConfigurationError, "cache-not-differentiable"):
            logits.sum().backward()


def test_a_cache_goes_in_and_out_of_inference_mode() -> None:
    model, tokens = small_model(), random_tokens(1, 40)
    expected, cache, start = model(tokens).logits, PatternCache(model.config), 0
    for mode in (torch.inference_mode(), torch.no_grad(), torch.enable_grad(), torch.inference_mode()):
        with mode:
            logits = model(tokens[:, start : start + 10], past_key_values=cache).logits
            torch.testing.assert_close(logits, expected[:, start : start + 10], atol=1e-11, rtol=0)
            cache.reorder_cache(torch.tensor([0]))
        start += 10


# --- taking back -----------------------------------------------------------------------------------------------------


def walk(model, tokens: torch.Tensor, steps: list[tuple[str, int]], **options) -> None:
    """Feed and take back; after every step the logits of the fed tokens are those without a cache."""
    cache, seen = PatternCache(model.config, **options), 0
    wrong = (tokens + 1) % VOCABULARY
    with torch.no_grad():
        expected = model(tokens).logits
        for kind, count in steps:
            if kind == "feed":
                logits = model(tokens[:, seen : seen + count], past_key_values=cache).logits
                torch.testing.assert_close(logits, expected[:, seen : seen + count], atol=1e-11, rtol=0)
                seen += count
            elif kind == "guess":  # tokens that turn out to be wrong
                model(wrong[:, seen : seen + count], past_key_values=cache)
                cache.crop(-count)
            else:
                cache.crop(-count)
                seen -= count
            assert cache.get_seq_length() == seen


@pytest.mark.parametrize("text", CAUSAL_MIXERS)
def test_what_is_taken_back_leaves_no_trace(text: str) -> None:
    steps = [("feed", 20), ("guess", 3), ("feed", 1), ("guess", 8), ("crop", 4), ("feed", 2), ("guess", 6), ("crop", 2)]
    model, tokens = small_model(text), random_tokens(2, 60)
    steps += [("feed", 9), ("guess", 12), *[("feed", 1)] * 8, ("guess", 2), ("feed", 1)]
    walk(model, tokens, steps, restorable=12)


def test_all_can_be_taken_back_while_nothing_is_forgotten() -> None:
    model, tokens = small_model("interleave(causal(), window(left=40))"), random_tokens(2, 60)
    walk(model, tokens, [("feed", 40), ("crop", 40), ("feed", 12), ("crop", 5), ("feed", 30)], restorable=0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("text", ["window(left=3)", "fixed(stride=8)", "interleave(causal(), window(left=2))"])
def test_padding_is_taken_back_with_its_columns(text: str, seed: int) -> None:
    """Rows with holes anywhere, fed in stretches of any length and taken back by any number of columns."""
    model, tokens = small_model(text, position_type="rotary"), random_tokens(3, 40)
    random = np.random.default_rng(seed)
    mask = torch.from_numpy((random.random((3, 40)) < 0.6).astype(np.int64))
    mask[:, 0] = 1
    cache, seen, wrong = PatternCache(model.config), 0, (tokens + 1) % VOCABULARY
    with torch.no_grad():
        expected = model(tokens, attention_mask=mask).logits
        while seen < 40:
            stop = min(seen + int(random.integers(1, 9)), 40)
            guess = mask[:, :seen], torch.from_numpy(random.integers(2, size=(3, stop - seen)))
            model(wrong[:, seen:stop], attention_mask=torch.cat(guess, dim=1), past_key_values=cache)
            cache.crop(seen - stop)
            back = int(random.integers(min(seen, 6) + 1))
            cache.crop(-back)
            seen -= back
            logits = model(tokens[:, seen:stop], attention_mask=mask[:, :stop], past_key_values=cache).logits
            real = mask[:, seen:stop].bool()
            torch.testing.assert_close(logits[real], expected[:, seen:stop][real], atol=1e-11, rtol=0)
            assert cache.layers[0].lengths == tuple(mask[:, :stop].sum(dim=1).tolist())
            seen = stop


def test_rows_that_are_chosen_take_their_padding_with_them() -> None:
    model, tokens = small_model("window(left=3)", position_type="rotary"), random_tokens(2, 12)
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[0, 8:], mask[1, 2:4] = 0, 0
    cache = PatternCache(model.config)
    with torch.no_grad():
        model(tokens, attention_mask=mask, past_key_values=cache)
        cache.reorder_cache(torch.tensor([1, 1, 0]))
        cache.crop(-5)
        assert cache.layers[0].lengths == (5, 5, 7)
        chosen = tokens[[1, 1, 0]], mask[[1, 1, 0]]
        logits = model(chosen[0][:, 7:], attention_mask=chosen[1], past_key_values=cache).logits
        expected = model(chosen[0], attention_mask=chosen[1]).logits[:, 7:]
    real = chosen[1][:, 7:].bool()
    torch.testing.assert_close(logits[real], expected[real], atol=1e-11, rtol=0)


def test_more_cannot_be_taken_back_than_the_pattern_remembers() -> None:
    layer = PatternCacheLayer(patterns.window(left=5), restorable=8)
    feed(layer, 30)
    layer.crop(torch.tensor(-3))  # as transformers 5.17 gives it
    with pytest.raises(ConfigurationError) as caught:
        layer.crop(-7)
    assert str(caught.value) == (
        "crop(-7) would bring back keys that the pattern window(left=5) has forgotten: at most 5 tokens can be removed"
        " (PatternCache(..., restorable=n) allows n)"
    )
    layer.crop(-5)
    assert layer.kept()[0] == [17, 18, 19, 20, 21] and set(layer.kept()[0]) <= stored(layer)[0]
    with refusing(ConfigurationError, "crop-count", "-23", "22"):
        layer.crop(-23)
    with refusing(ConfigurationError, "crop-count", "1", "22"):
        layer.crop(1)
    ragged = PatternCacheLayer(patterns.causal())
    feed(ragged, 5, 3)
    feed(ragged, 2, 2)
    with refusing(ConfigurationError, "crop-padding", "-3", "2"):
        ragged.crop(-3)
    ragged.crop(-2)
    assert ragged.lengths == (5, 3)
    ragged = PatternCacheLayer(patterns.causal())
    keys = torch.randn(2, 1, 6, 4)
    ragged.extend(keys, keys, ragged.new_tokens(6, [6, 2], 4))  # four columns of padding on the left of the second row
    with refusing(ConfigurationError, "crop-padding", "-3", "2"):
        ragged.crop(-3)
    ragged.crop(-2)
    assert ragged.lengths == (4, 0)


# --- the cache of a model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [1, 19])
@pytest.mark.parametrize("text", CAUSAL_MIXERS)
def test_logits_with_cache_equal_logits_without(text: str, first: int) -> None:
    model, tokens = small_model(text), random_tokens(2, 48)
    with torch.no_grad():
        expected = model(tokens).logits
        out = model(tokens[:, :first], use_cache=True)
        logits = [out.logits]
        # One token at a time, then a chunk, then one at a time again.
        for start, stop in [*((i, i + 1) for i in range(first, 26)), (26, 37), *((i, i + 1) for i in range(37, 48))]:
            out = model(tokens[:, start:stop], past_key_values=out.past_key_values)
            logits.append(out.logits)
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, atol=1e-11, rtol=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"position_type": "rotary"},
        {"position_type": "factorised", "position_shape": [8, 8]},
        {"num_key_value_heads": 2, "query_key_dim": 16},
        {"implementation": "eager"},
        {"implementation": "dense"},
    ],
)
def test_logits_with_cache_equal_logits_without_for_other_models(fields: dict) -> None:
    model, tokens = small_model(**fields), random_tokens(2, 30)
    cache = PatternCache(model.config)
    with torch.no_grad():
        parts = [model(part, past_key_values=cache).logits for part in tokens.split([9, *[1] * 21], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens).logits, atol=1e-11, rtol=0)


def test_an_empty_dynamic_cache_is_filled_in_place() -> None:
    model, tokens = small_model(), random_tokens(1, 20)
    for cache in (DynamicCache(), DynamicCache(config=model.config)):
        with torch.no_grad():
            model(tokens[:, :12], past_key_values=cache)
            last = model(tokens[:, 12:], past_key_values=cache).logits
            torch.testing.assert_close(last, model(tokens).logits[:, 12:], atol=1e-11, rtol=0)
        assert all(isinstance(layer, PatternCacheLayer) for layer in cache.layers)


def test_caches_that_do_not_know_the_patterns_are_refused() -> None:
    model, tokens = small_model(), random_tokens(1, 3)
    used = DynamicCache()
    used.update(torch.zeros(1, 4, 3, 8), torch.zeros(1, 4, 3, 8), 0)
    static, offloaded = StaticCache(config=model.config, max_cache_len=8), DynamicCache(offloading=True)
    deeper = PatternCache(small_config(num_hidden_layers=4))
    for cache in (used, static, offloaded, deeper):
        with pytest.raises(
            ConfigurationError, match=f"the cache is of type {type(cache).__name__}, which cannot forget"
        ):
            model(tokens, past_key_values=cache)


def test_no_cache_is_made_unless_asked_for() -> None:
    model = small_model()
    assert model(random_tokens(1, 5)).past_key_values is None
    assert isinstance(model(random_tokens(1, 5), use_cache=True).past_key_values, PatternCache)


@pytest.mark.parametrize("between", ["another cache", "reset"])
def test_a_cache_that_was_filled_in_inference_mode_can_be_trained_with(between):
    """Tensors made in inference mode cannot be saved for a backward pass, and what is kept is asked for again."""
    clear_caches()
    model = small_model(mixers="per_head((window(left=7), causal(), window(left=7), causal()))")
    tokens, mask = random_tokens(2, 5), torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    cache = PatternCache(model.config)
    with torch.inference_mode():
        model(tokens, attention_mask=mask, past_key_values=cache)
    if between == "reset":
        cache.reset()
    else:
        cache = PatternCache(model.config)
    model.train()
    model(tokens, attention_mask=mask, past_key_values=cache).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_rows_of_very_different_lengths_find_their_tables_again(monkeypatch):
    """Of 32 rows each needs a table of its own, for hundreds of tokens."""
    clear_caches()
    layer = PatternCacheLayer(patterns.fixed(stride=64, summary=8))
    lengths = [300 * row + 5 for row in range(32)]
    feed(layer, *lengths)
    made = []
    tabulate = SlotPlan.tabulate
    monkeypatch.setattr(SlotPlan, "tabulate", lambda plan, *which: made.append(which) or tabulate(plan, *which))
    for _ in range(6):
        feed(layer, *[1] * 32)
    assert 0 < len(made) <= 33


def test_a_cache_that_forgets_has_no_tensors_of_all_keys() -> None:
    model = small_model("window(left=3)")
    cache = model(random_tokens(1, 9), use_cache=True).past_key_values
    for name in ("keys", "values"):
        with pytest.raises(
            ConfigurationError, match=rf"^layers\[i\].{name}: a cache that forgets .*get_seq_length"
        ) as said:
            getattr(cache.layers[0], name)
        assert "\n" not in str(said.value) and not hasattr(cache.layers[0], name)
